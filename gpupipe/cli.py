"""The ``gpupipe`` command line. Each command imports its module when called, so that ``--help`` is fast."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

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
    str | None,
    typer.Option("--source", help="Kind of SRC if its name does not show it: webdataset, tfrecord, zip, ..."),
]
ImageColumn = Annotated[
    str | None,
    typer.Option("--image", help="Column, feature or extension of images in SRC."),
]
LabelColumn = Annotated[
    str | None,
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
    str | None,
    typer.Option("--device", help="cpu, cuda or cuda:1; by default a GPU if there is one."),
]
Frames = Annotated[int, typer.Option(min=1, help="Frames per video clip.")]
Stride = Annotated[int, typer.Option(min=1, help="Distance between consecutive frames of a clip.")]
Workers = Annotated[
    int | None,
    typer.Option("--num-workers", min=1, help="DALI threads or torch processes; all cores by default."),
]


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
AsJsonBefore = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of text. Stands before SCRIPT.")
]


_OF_A_SCRIPT = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Settings of a command whose last arguments are a script and its arguments."""


def _command(module: str, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command that runs ``run()`` of a module in ``commands/``, which returns the exit code.

    The decorated function only declares arguments. They are those of ``run()``; ``--json`` comes in addition.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)

        @functools.wraps(function)
        def call(**arguments: Any) -> None:
            _run(function.__name__, module, **arguments)

        kind = AsJsonBefore if settings.get("context_settings") is _OF_A_SCRIPT else AsJson
        flag = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        call.__signature__ = signature.replace(parameters=[*signature.parameters.values(), flag])  # type: ignore[attr-defined]
        return app.command(**settings)(call)

    return register


def _run(command: str, module: str, *, as_json: bool, **arguments: Any) -> NoReturn:
    """Exit with the code that a command returns, or with 2 after one red message for an error of gpupipe."""
    from .commands.answer import answering

    with answering(command, as_json) as answer:
        try:
            answer.code = import_module(f"{__package__}.commands.{module}").run(**arguments) or 0
        except (GpupipeError, OSError) as e:  # such as a folder without permission
            answer.fail(e)
    raise typer.Exit(answer.code)


@_command("index")
def index(
    source: Source,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Check every file again.")] = False,
    exif: Annotated[bool, typer.Option("--exif", help="Report sizes after EXIF orientation.")] = False,
    kind: Kind = None,
    image: ImageColumn = None,
    label: LabelColumn = None,
) -> None:
    """Scan a dataset once: sizes, formats, bad files. Exits with 1 if no file is usable."""


@_command("pack")
def pack(
    source: Source,
    destination: Annotated[str, typer.Argument(metavar="DST", help="New folder, or one to continue.")],
    resize: Annotated[
        int | None,
        typer.Option("--resize", min=1, metavar="SIDE", help="Shrink larger images to this shorter side."),
    ] = None,
    quality: Annotated[
        int | None,
        typer.Option("--quality", min=1, max=100, help="JPEG quality, with --resize; 90 by default."),
    ] = None,
    exif: Annotated[bool, typer.Option("--exif", help="Apply EXIF orientation, with --resize.")] = False,
    shards: Annotated[
        int | None,
        typer.Option("--shards", min=1, help="Number of shards."),
    ] = None,
    shard_bytes: Annotated[
        str | None,
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
        int | None,
        typer.Option("--seed", help="Seed of --shuffle; 0 by default."),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Prefix of shard names.")] = "train",
    kind: Kind = None,
    image: ImageColumn = None,
    label: LabelColumn = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="A,B", help="Columns to copy beside images and labels."),
    ] = None,
    num_workers: Annotated[
        int | None,
        typer.Option("--num-workers", min=1, help="Worker processes; all cores by default. 1 starts none."),
    ] = None,
) -> None:
    """Copy a dataset into tar files, which are faster to read. Exit code 3: some bad samples were left out."""


@_command("doctor")
def doctor() -> None:
    """Show what is installed, what will be used, and what is wrong."""


@_command("compare")
def compare(
    pipeline: PipelineName,
    folder: Folder,
    samples: Annotated[int, typer.Option(min=1, help="Number of images or video clips.")] = 64,
    frames: Frames = 16,
    stride: Stride = 4,
    device: DeviceName = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a PNG of the images that differ most."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the choice of images and of the augmentation.")] = 0,
) -> None:
    """Compare DALI with the reference, pixel by pixel, after each transform."""


@_command("bench")
def bench(
    pipeline: PipelineName,
    folder: Folder,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="64 by default, 4 for clips."),
    ] = None,
    frames: Frames = 16,
    stride: Stride = 4,
    num_workers: Workers = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of alternating rounds.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds per measurement.")] = 3.0,
    engines: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: dali, torch, null, and torchvision, which is torch's DataLoader with its "
            "transforms; by default the engines, and for images torch's DataLoader."
        ),
    ] = None,
    limits: Annotated[
        bool, typer.Option("--limits", help="Also measure parts alone: reading, decoding, transforms, copies to a GPU.")
    ] = False,
    device: DeviceName = None,
) -> None:
    """Measure engines and torch's DataLoader side by side: images/s or clips/s, and ratios."""


Script = Annotated[Path, typer.Argument(metavar="SCRIPT", help="Training script, with torch's or gpupipe's loader.")]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS", help="Arguments of the script."),
]


@_command("why", context_settings=_OF_A_SCRIPT)
def why(
    script: Script,
    arguments: ScriptArguments = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds per measurement; 0 measures nothing. Stands before SCRIPT.")
    ] = 3.0,
) -> None:
    """Run a script up to its loaders: their engines, why, what it costs, the smallest change that helps, and what a
    perfect loader would save."""


@_command("demo")
def demo(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="One folder per class; synthetic photographs by default."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs to train through each engine.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo-report"),
    seed: Annotated[int, typer.Option(help="Seed of weights, order and augmentation.")] = 0,
    device: DeviceName = None,
) -> None:
    """Train through DALI and the reference, compare, read a bad file, resume, time, and write a page about it."""


def main() -> None:
    """The entry point."""
    app(prog_name="gpupipe")


if __name__ == "__main__":
    main()
