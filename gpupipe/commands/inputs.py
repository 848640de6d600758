"""Datasets, pipelines and devices from command-line arguments."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from ..datasets import (
    CocoDetection,
    ImageFolder,
    ImageList,
    SegmentationFolder,
    VideoFolder,
    VideoList,
)
from ..datasets.folder import IMG_EXTENSIONS
from ..datasets.images import EncodedImages
from ..datasets.video.files import VideoFiles
from ..datasets.video.folder import VIDEO_EXTENSIONS
from ..errors import ConfigError, DatasetError, GpupipeError, no_such_path
from ..transforms.compose import Compose, as_compose
from ..transforms.transform import Transform


def open_dataset(path: Path, *, exif: bool = False) -> EncodedImages:
    """Open a folder of class folders as ``ImageFolder``, and a folder of images or a file as ``ImageList``.

    Raises :class:`DatasetError` if there is no image.
    """
    path = path.expanduser()
    if path.is_file():
        return ImageList(path, exif=exif)
    if not path.is_dir():
        raise DatasetError(f"{no_such_path(path)}; name a folder of images, or a list of them")
    if any(entry.is_dir() for entry in path.iterdir()):
        folder = ImageFolder(path, exif=exif, allow_empty=True)
        if len(folder):
            return folder
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in IMG_EXTENSIONS)
    if not files:
        raise DatasetError(
            f"{path}: no images here or in folders below; supported extensions are {', '.join(IMG_EXTENSIONS)}"
        )
    return ImageList(files, exif=exif)


def open_media(
    path: Path, *, exif: bool = False, frames: int = 16, stride: int | None = None
) -> EncodedImages | VideoFiles:
    """Open images like :func:`open_dataset`. If there are none, open class folders of videos as ``VideoFolder``, and a
    folder of videos as ``VideoList``.

    Raises :class:`DatasetError` if there is neither.
    """
    try:
        return open_dataset(path, exif=exif)
    except DatasetError:
        path = path.expanduser()
        found = path.rglob("*") if path.is_dir() else ()
        videos = [p for p in found if p.suffix.lower() in VIDEO_EXTENSIONS and p.is_file()]
        if any(p.parent != path for p in videos):
            return VideoFolder(path, frames, stride=stride, allow_empty=True)
        if not videos:
            raise
        return VideoList(sorted(videos), frames, stride=stride)


def open_samples(path: Path, *, frames: int, stride: int) -> EncodedImages | VideoFiles:
    """Open a folder in the layout of COCO (``annotations/instances_NAME.json`` beside ``NAME``), of VOC
    (``VOCdevkit``), or with ``images`` and ``masks``; any other as :func:`open_media` does."""
    path = path.expanduser()
    for file in sorted(path.glob("annotations/instances_*.json")):
        images = path / file.stem.removeprefix("instances_")
        if images.is_dir():
            return CocoDetection(images, file)
    for masks in sorted(path.glob("VOCdevkit/VOC*/SegmentationClass")):
        split = masks.parent / "ImageSets/Segmentation/train.txt"
        return SegmentationFolder(masks.parent / "JPEGImages", masks, split=split, fill=255)
    if (path / "images").is_dir() and (path / "masks").is_dir():
        return SegmentationFolder(path / "images", path / "masks")
    return open_media(path, frames=frames, stride=stride)


def open_pipeline(text: str) -> Compose:
    """Return the pipeline that ``module.function``, ``module.function:size=128`` or ``file.py:function`` names.

    Raises :class:`ConfigError` that lists the valid names or arguments.
    """
    target, _, arguments = text.partition(":")
    if target.endswith(".py"):
        name, _, arguments = arguments.partition(":")
        if not name:
            raise ConfigError(f"{text!r}: name the function too, as in {target}:train")
        module = _load(Path(target))
    else:
        module_name, _, name = target.rpartition(".")
        module = _ready_made(module_name, text)
    function = getattr(module, name, None)
    if isinstance(function, Compose) and not arguments:
        return function
    if not callable(function) or name.startswith("_"):
        raise ConfigError(f"{text!r}: no function {name!r}; choose from {', '.join(_functions(module)) or 'none'}")
    named = _arguments(arguments, text)
    try:
        # Checked before the call, so that a TypeError from within the function is not taken for wrong arguments.
        inspect.signature(function).bind(**named)
    except TypeError as e:
        raise ConfigError(f"{text!r}: {e}; its signature is {name}{inspect.signature(function)}") from None
    try:
        made = function(**named)
        if not (callable(made) or isinstance(made, (Compose, Transform, list, tuple))):
            raise ConfigError(f"{text!r} returned {type(made).__name__}, not transforms")
        return as_compose(made)
    except GpupipeError:
        raise
    except Exception as e:  # raised by user code, or by values that no pipeline accepts
        raise ConfigError(f"{text!r}: {type(e).__name__}: {e}") from e


def check_file(path: Path, what: str) -> None:
    """Raise :class:`ConfigError` if ``path`` is not a file. ``what`` names what it should be."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a {what}")
    if not path.is_file():
        raise ConfigError(f"{no_such_path(path)}; name a {what}")


def device_type(device: str | None) -> tuple[str, Literal["cpu", "cuda"]]:
    """Return (device, its type). By default this is a GPU if there is one.

    Raises :class:`ConfigError` if torch does not see the device.
    """
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device, "cpu"
    if device.partition(":")[0] == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"--device {device}: torch sees no GPU; run gpupipe doctor")
        return device, "cuda"
    raise ConfigError(f"--device {device}: it must be cpu, cuda or cuda:N")


def _ready_made(module: str, text: str) -> ModuleType:
    package = importlib.import_module("gpupipe.pipelines")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))
    if module not in names:
        found = [f"{n}.{f}" for n in names for f in _functions(importlib.import_module(f"gpupipe.pipelines.{n}"))]
        raise ConfigError(
            f"unknown pipeline {text!r}; choose from {', '.join(found)}, or name your own: path/to/file.py:function"
        )
    return importlib.import_module(f"gpupipe.pipelines.{module}")


def _functions(module: ModuleType) -> list[str]:
    """Return the functions that a module itself defines."""
    return sorted(
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    )


def _load(path: Path) -> ModuleType:
    check_file(path, "file of Python code")
    spec = importlib.util.spec_from_file_location(f"gpupipe_pipeline_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as e:  # raised by user code
        raise ConfigError(f"{path}: {type(e).__name__}: {e}") from e
    return module


def _arguments(text: str, whole: str) -> dict[str, Any]:
    """Parse ``size=128,dtype=uint8`` as keyword arguments. Values are Python literals; a bare word is text."""
    try:
        # Parsed and never run: only literals are evaluated.
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args and all(k.arg for k in call.keywords)
        return {
            str(k.arg): k.value.id if isinstance(k.value, ast.Name) else ast.literal_eval(k.value)
            for k in call.keywords
        }
    except (SyntaxError, ValueError, AssertionError):
        raise ConfigError(f"{whole!r}: write arguments like imagenet.train:size=128,dtype=uint8") from None
