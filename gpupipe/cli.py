"""The ``gpupipe`` command: arguments only. Each command's module is imported when it is called, so help is quick."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from . import __version__
from .errors import GpupipeError

__all__ = ["app", "main"]

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
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and end.")
    ] = False,
) -> None:
    """Options before any command."""


# typer reads these at run time, and Python 3.10 does not know all of the shorter forms
Folder = Annotated[Path, typer.Argument(help="One folder per class, a folder of images, or a CSV of paths and labels.")]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SRC", help="A folder or list of images, shards of any format ('train-{000..127}.tar'), a URL."
    ),
]
Kind = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--source", help="What SRC is, if its name does not say it: webdataset, parquet, lmdb, ..."),
]
ImageColumn = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--image", help="Column, feature or extension of images in SRC."),
]
LabelColumn = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--label", help="The same of labels."),
]
PipelineName = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="Such as imagenet.train, imagenet.train:size=128,dtype=uint8 or path/to/file.py:function.",
    ),
]
DeviceName = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--device", help="cpu, cuda or cuda:1; a GPU if there is one."),
]
Frames = Annotated[int, typer.Option(min=1, help="Of a clip of videos.")]
Stride = Annotated[int, typer.Option(min=1, help="From one frame of a clip to the next.")]
Workers = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--num-workers", min=1, help="Threads of DALI, processes of torch; all cores by default."),
]


def _command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Register a command that returns its exit code; what gpupipe raises on purpose is one red message, and code 2."""

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        try:
            code = function(**arguments)
        except GpupipeError as e:
            from .commands.console import print_error

            print_error(e)
            code = 2
        raise typer.Exit(code or 0)

    return app.command()(run)


@_command
def index(
    source: Source,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Look at every file again.")] = False,
    exif: Annotated[bool, typer.Option("--exif", help="Sizes as turned upright by EXIF.")] = False,
    beside: Annotated[
        bool, typer.Option("--beside", help="Leave the index beside data behind a network, for other machines.")
    ] = False,
    kind: Kind = None,
    image: ImageColumn = None,
    label: LabelColumn = None,
) -> int:
    """Scan a dataset once: sizes, formats, bad files."""
    from .commands.index import run

    return run(source, rebuild=rebuild, exif=exif, beside=beside, kind=kind, image=image, label=label)


@_command
def pack(
    source: Source,
    destination: Annotated[str, typer.Argument(metavar="DST", help="A new folder, or one to go on with.")],
    format: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--format", help="webdataset, tfrecord or parquet."),
    ] = None,
    sliceable: Annotated[
        bool,
        typer.Option(
            "--sliceable", help="JPEGs of which only what a crop needs is decoded; no pixel changes. Needs jpegtran."
        ),
    ] = False,
    resize: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--resize", min=1, metavar="SIDE", help="Reduce larger images to this shorter side."),
    ] = None,
    quality: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--quality", min=1, max=100, help="Of JPEG, with --resize; 90 by default."),
    ] = None,
    decoded: Annotated[
        bool, typer.Option("--decoded", help="Plain pixels: many times the bytes, and no decoding.")
    ] = False,
    exif: Annotated[bool, typer.Option("--exif", help="Turn images upright, with --resize or --decoded.")] = False,
    shards: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--shards", min=1, help="How many."),
    ] = None,
    shard_bytes: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--shard-bytes", metavar="SIZE", help="Of a shard at most, about: 500MB, 1GiB; 512MiB by default."
        ),
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Write samples in a random order, for readers that shuffle in a buffer.")
    ] = False,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--seed", help="Of --shuffle; 0 by default."),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="What the names of shards begin with.")] = "train",
    kind: Kind = None,
    image: ImageColumn = None,
    label: LabelColumn = None,
    num_workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--num-workers", min=1, help="Processes; all cores by default, and 1 starts none."),
    ] = None,
) -> int:
    """Write a dataset anew, once, so that reading it costs less. Exit code 3: some bad samples were left out."""
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
            num_workers=num_workers,
        )
    )


@_command
def doctor() -> int:
    """Say what is installed, what will be used, and what is wrong."""
    from .commands.doctor import run

    return run()


@_command
def compare(
    pipeline: PipelineName,
    folder: Folder,
    samples: Annotated[int, typer.Option(min=1, help="How many images, or clips of videos.")] = 64,
    frames: Frames = 16,
    stride: Stride = 4,
    device: DeviceName = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Draw the images that differ most into this PNG."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the choice of images and of the augmentation.")] = 0,
) -> int:
    """DALI against the reference, pixel by pixel, after each transform."""
    from .commands.compare import run

    return run(pipeline, folder, samples=samples, frames=frames, stride=stride, device=device, out=out, seed=seed)


@_command
def bench(
    pipeline: PipelineName,
    folder: Folder,
    batch_size: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="64 by default, of clips 4."),
    ] = None,
    frames: Frames = 16,
    stride: Stride = 4,
    num_workers: Workers = None,
    rounds: Annotated[int, typer.Option(min=1, help="The engines take turns this often.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each reading.")] = 3.0,
    engines: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Some of dali,torch,null,torchvision; all that are there by default."),
    ] = None,
    device: DeviceName = None,
    json: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Write every round and the machine's facts into this file."),
    ] = None,
) -> int:
    """Engines side by side, in turns: images/s, of videos clips/s, and their ratio to torch's DataLoader."""
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
        device=device,
        json_file=json,
    )


@_command
def demo(
    folder: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(help="One folder per class; photographs made from numbers by default."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo-report"),
    seed: Annotated[int, typer.Option()] = 0,
    device: DeviceName = None,
) -> int:
    """Train a small network through DALI and through the reference, compare, and write a report."""
    from .commands.demo import run

    return run(folder, epochs=epochs, out=out, seed=seed, device=device)


def main() -> None:
    """The entry point."""
    app(prog_name="gpupipe")


if __name__ == "__main__":
    main()
