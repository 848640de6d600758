"""The ``gpupipe`` command line. Each command imports its module when called, so that ``--help`` is fast."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional

import typer

from . import __version__
from .errors import GpupipeError

app = typer.Typer(
    help="DALI's speed with torch's DataLoader, and proof that nothing else changed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"gpupipe {__version__}")
        raise typer.Exit


@app.callback()
def _before(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Handle options before any command."""


# typer reads these annotations at run time, and Python 3.10 lacks some of the shorter forms
Folder = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="One folder per class, a folder of images, or a CSV of paths and labels."),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SRC", help="Folder or list of images, shards of any format ('train-{000..127}.tar'), or a URL."
    ),
]
Kind = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--source", help="Kind of SRC if its name does not show it: webdataset, parquet, lmdb, ..."),
]
ImageColumn = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--image", help="Column, feature or extension of images in SRC."),
]
LabelColumn = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--label", help="Column, feature or extension of labels in SRC."),
]
PipelineName = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="For example imagenet.train, imagenet.train:size=128,dtype=uint8 or path/to/file.py:function.",
    ),
]
DeviceName = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--device", help="cpu, cuda or cuda:1; by default a GPU if there is one."),
]
Frames = Annotated[int, typer.Option(min=1, help="Frames per video clip.")]
Stride = Annotated[int, typer.Option(min=1, help="Distance between consecutive frames of a clip.")]
Workers = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--num-workers", min=1, help="DALI threads or torch processes; all cores by default."),
]


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def _command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Register a command that returns its exit code, with the option ``--json``."""
    return app.command()(_with_json(function))


def _command_of_script(function: Callable[..., int | None]) -> Callable[..., None]:
    """Register a command whose last arguments are a script and its arguments."""
    settings = {"allow_interspersed_args": False, "ignore_unknown_options": True}
    return app.command(context_settings=settings)(_with_json(function))


def _with_json(function: Callable[..., int | None]) -> Callable[..., None]:
    signature = inspect.signature(function, eval_str=True)

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        _run(function, **arguments)

    flag = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), flag])  # type: ignore[attr-defined]
    return run


def _run(function: Callable[..., int | None], *, as_json: bool, **arguments: Any) -> NoReturn:
    """Exit with the code that a command returns, or with 2 after one red message for an error of gpupipe."""
    from .commands.answer import answering

    with answering(function.__name__, as_json) as answer:
        try:
            answer.code = function(**arguments) or 0
        except (GpupipeError, OSError) as e:  # such as a folder without permission
            answer.fail(e)
    raise typer.Exit(answer.code)


@_command
def index(
    source: Source,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Check every file again.")] = False,
    exif: Annotated[bool, typer.Option("--exif", help="Report sizes after EXIF orientation.")] = False,
    beside: Annotated[
        bool, typer.Option("--beside", help="Store the index next to remote data, for other machines.")
    ] = False,
    kind: Kind = None,
    image: ImageColumn = None,
    label: LabelColumn = None,
) -> int:
    """Scan a dataset once: sizes, formats, bad files. Exits with 1 if no file is usable."""
    from .commands.index import run

    return run(source, rebuild=rebuild, exif=exif, beside=beside, kind=kind, image=image, label=label)


@_command
def pack(
    source: Source,
    destination: Annotated[str, typer.Argument(metavar="DST", help="New folder, or one to continue.")],
    format: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--format", help="webdataset, tfrecord or parquet."),
    ] = None,
    sliceable: Annotated[
        bool,
        typer.Option(
            "--sliceable", help="Write JPEGs that can be decoded in part, without changing pixels. Needs jpegtran."
        ),
    ] = False,
    resize: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--resize", min=1, metavar="SIDE", help="Shrink larger images to this shorter side."),
    ] = None,
    quality: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--quality", min=1, max=100, help="JPEG quality, with --resize; 90 by default."),
    ] = None,
    decoded: Annotated[
        bool, typer.Option("--decoded", help="Write pixels: many times larger, but no decoding.")
    ] = False,
    exif: Annotated[bool, typer.Option("--exif", help="Apply EXIF orientation, with --resize or --decoded.")] = False,
    shards: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--shards", min=1, help="Number of shards."),
    ] = None,
    shard_bytes: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--shard-bytes",
            metavar="SIZE",
            help="Approximate maximum size of a shard, such as 500MB or 1GiB; 512MiB by default.",
        ),
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Write samples in random order, for readers that shuffle in a buffer.")
    ] = False,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--seed", help="Seed of --shuffle; 0 by default."),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Prefix of shard names.")] = "train",
    kind: Kind = None,
    image: ImageColumn = None,
    label: LabelColumn = None,
    columns: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--columns", metavar="A,B", help="Columns to copy; all by default, none for images and labels only."
        ),
    ] = None,
    num_workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--num-workers", min=1, help="Worker processes; all cores by default. 1 starts none."),
    ] = None,
    part: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--part", metavar="K/N", help="Write only part K of N, on one of N machines."),
    ] = None,
    complete: Annotated[bool, typer.Option("--complete", help="Join and verify the parts of all machines.")] = False,
) -> int:
    """Copy a dataset into a form that is faster to read. Exit code 3: some bad samples were left out."""
    from .commands.pack import run
    from .commands.pack_request import Request

    return run(
        Request(
            source,
            destination,
            format=format,
            sliceable=sliceable,
            resize=resize,
            quality=quality,
            decoded=decoded,
            exif=exif,
            shards=shards,
            shard_bytes=shard_bytes,
            shuffle=shuffle,
            seed=seed,
            split=split,
            kind=kind,
            image=image,
            label=label,
            columns=columns,
            num_workers=num_workers,
            part=part,
            complete=complete,
        )
    )


@_command
def doctor() -> int:
    """Show what is installed, what will be used, and what is wrong."""
    from .commands.doctor import run

    return run()


@_command
def compare(
    pipeline: PipelineName,
    folder: Folder,
    samples: Annotated[int, typer.Option(min=1, help="Number of images or video clips.")] = 64,
    frames: Frames = 16,
    stride: Stride = 4,
    device: DeviceName = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Write a PNG of the images that differ most."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the choice of images and of the augmentation.")] = 0,
) -> int:
    """Compare DALI with the reference, pixel by pixel, after each transform."""
    from .commands.compare import run

    return run(pipeline, folder, samples=samples, frames=frames, stride=stride, device=device, out=out, seed=seed)


Samples = Annotated[int, typer.Option(min=1, help="Number of samples on the page.")]
Page = Annotated[Path, typer.Option(help="A .html page, or a .png sheet of images and names.")]
Epoch = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(min=0, help="Number of the epoch, counted from 0."),
]
Step = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(min=0, help="Number of the batch within the epoch, counted from 0."),
]


@_command
def show(
    pipeline: PipelineName,
    folder: Folder,
    epoch: Epoch = None,
    step: Step = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of a batch.")] = 16,
    samples: Samples = 32,
    frames: Frames = 16,
    stride: Stride = 4,
    device: DeviceName = None,
    out: Page = Path("batch.html"),
    seed: Annotated[int, typer.Option(help="Seed of order and augmentation.")] = 0,
) -> int:
    """Write a page with the images of a batch, as decoded and as the network sees them."""
    from .commands.show import run

    return run(
        pipeline,
        folder,
        epoch=epoch,
        step=step,
        batch_size=batch_size,
        samples=samples,
        frames=frames,
        stride=stride,
        device=device,
        out=out,
        seed=seed,
    )


@_command
def replay(
    pipeline: PipelineName,
    folder: Folder,
    state: Annotated[
        Path,
        typer.Argument(metavar="STATE", help="JSON file or checkpoint of torch.save that holds loader.state_dict()."),
    ],
    epoch: Epoch = None,
    step: Step = None,
    samples: Samples = 32,
    frames: Frames = 16,
    stride: Stride = 4,
    device: DeviceName = None,
    out: Page = Path("batch.html"),
) -> int:
    """Write a page with the images of one step of a training run, from all ranks: by default the step before STATE."""
    from .commands.show import run

    return run(
        pipeline,
        folder,
        state=state,
        epoch=epoch,
        step=step,
        samples=samples,
        frames=frames,
        stride=stride,
        device=device,
        out=out,
    )


@_command
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="Lock file that loader.lock() wrote.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Lock file of another run, version or machine.")],
    most: Annotated[int, typer.Option(min=1, help="Differences of each kind to print.")] = 20,
) -> int:
    """Compare what two runs read: samples, order, draws and pixels. Exits with 1 if they differ in more than
    versions."""
    from .commands.diff import run

    return run(before, after, most=most)


@_command
def bench(
    pipeline: PipelineName,
    folder: Folder,
    batch_size: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="64 by default, 4 for clips."),
    ] = None,
    frames: Frames = 16,
    stride: Stride = 4,
    num_workers: Workers = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of alternating rounds.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds per measurement.")] = 3.0,
    engines: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="Comma-separated: dali, torch, null, torchvision, pillow, timm, dali-by-hand, for clips pyav, "
            "torchcodec, decord; all that are installed by default."
        ),
    ] = None,
    limits: Annotated[
        bool, typer.Option("--limits", help="Also measure parts alone: reading, decoding, transforms, copies to a GPU.")
    ] = False,
    device: DeviceName = None,
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="Also train with the batches, and name what limits it: a model of torchvision, module:function, or "
            "path/to/file.py:function."
        ),
    ] = None,
) -> int:
    """Measure engines and other loaders side by side: images/s or clips/s, and their ratio to torch's DataLoader."""
    from .commands.bench import run

    return run(
        pipeline,
        folder,
        batch_size=batch_size,
        frames=frames,
        stride=stride,
        num_workers=num_workers,
        rounds=rounds,
        seconds=seconds,
        engines=engines,
        limits=limits,
        device=device,
        model=model,
    )


Script = Annotated[Path, typer.Argument(metavar="SCRIPT", help="Training script, with torch's or gpupipe's loader.")]
ScriptArguments = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(metavar="ARGS", help="Arguments of the script."),
]


@_command_of_script
def why(
    script: Script,
    arguments: ScriptArguments = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds per measurement; 0 measures nothing. Stands before SCRIPT.")
    ] = 3.0,
) -> int:
    """Run a script up to its loaders: their engines, why, what it costs, and the smallest change that helps."""
    from .commands.why import run

    return run(script, arguments or [], seconds=seconds)


@_command_of_script
def ceiling(
    script: Script,
    arguments: ScriptArguments = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the whole training. Stands before SCRIPT.")] = 1,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds per measurement.")] = 10.0,
    loader: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Number of the loader in the order of making; by default the first in long use."),
    ] = None,
) -> int:
    """Run a script for some steps, replay its batches from memory, and show what a perfect loader would save."""
    from .commands.ceiling import run

    return run(script, arguments or [], epochs=epochs, seconds=seconds, loader=loader)


@_command
def demo(
    folder: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(
            metavar="FOLDER",
            help="One folder per class; photographs of installed packages, or synthetic ones, by default.",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs to train through each engine.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo-report"),
    seed: Annotated[int, typer.Option(help="Seed of weights, order and augmentation.")] = 0,
    device: DeviceName = None,
) -> int:
    """Train through DALI and the reference, compare, read a bad file, resume, time, and write a page about it."""
    from .commands.demo import run

    return run(folder, epochs=epochs, out=out, seed=seed, device=device)


def main() -> None:
    """The entry point."""
    app(prog_name="gpupipe")


if __name__ == "__main__":
    main()
