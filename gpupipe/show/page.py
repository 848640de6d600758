"""Page or sheet of the images of one batch as the network sees them, with names, targets and numbers."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ..codecs.files import Undecodable
from ..datasets.dataset import Dataset
from ..errors import ConfigError
from ..html import Page, document, embedded, table
from ..loader.any_step import FoundStep
from ..loader.dataloader import DataLoader
from ..parity.difference import to_pixels
from ..parity.drawing import cell, create_folder_of, place_of, with_targets
from ..parity.targets import Targets, targets_of
from ..transforms.ops.op import Op
from ..transforms.ops.structure import by_view

Pixels = npt.NDArray[np.uint8]

_SIDE, _FRAMES, _GAP = 224, 8, 10


@dataclass(frozen=True)
class _Shown:
    name: str
    before: Image.Image | None
    """The image as decoded."""
    after: tuple[Image.Image, ...]
    """Its views as the network sees them."""
    facts: Mapping[str, str]
    ops: tuple[str, ...]
    """Ops that changed the image, with their numbers."""


def show(loader: DataLoader, make: Callable[[], FoundStep], path: str | Path, most: int) -> Path:
    """Write the page about the step that ``make`` returns; see :meth:`gpupipe.DataLoader.show`."""
    path = Page(path)
    if path.suffix not in (".html", ".png"):
        raise ConfigError(f"show writes a .html page or a .png sheet, not {str(path)!r}")
    create_folder_of(path)
    found = make()
    shown = [_of(found, row) for row in range(min(found.plan.valid, most))]
    title = f"Epoch {found.plan.epoch}, step {found.plan.step}"
    if path.suffix == ".png":
        _sheet(shown, title).save(path, "PNG")
    else:
        path.write_text(_page(loader, found, shown, title), encoding="utf-8")
    return path


def _of(found: FoundStep, row: int) -> _Shown:
    dataset, plan = found.dataset, found.plan
    index = int(plan.indices[row])
    views = found.images if isinstance(found.images, tuple) else (found.images,)
    targets = _targets(dataset, found, row)
    ops = by_view(dataset.transform.skeleton if plan.ops is None else plan.ops)
    after = [_picture(dataset, view[row : row + 1], own, targets) for view, own in zip(views, ops, strict=True)]
    facts = {"index": str(index), **_labels_of(dataset, found.target, row)}
    if plan.sizes is not None:
        facts = {**facts, "size": "{1} x {0}".format(*plan.sizes[row].tolist())}
    told = () if plan.ops is None else tuple(text for op in ops[0] if (text := _numbers_of(op, row)))
    return _Shown(dataset.describe(index), _before(dataset, index), tuple(after), facts, told)


def _before(dataset: Dataset, index: int) -> Image.Image | None:
    if dataset.medium.moves:
        return None
    try:
        image: Image.Image = dataset.raw(index)[0].convert("RGB")
    except Undecodable:  # another sample took its place
        return None
    if max(image.size) > 2 * _SIDE:
        image.thumbnail((2 * _SIDE, 2 * _SIDE), Image.Resampling.BOX)
    return image


def _picture(dataset: Dataset, view: Tensor, ops: Sequence[Op], targets: Targets) -> Image.Image:
    """Draw one image, or the frames of a clip from left to right."""
    frames = dataset.medium.flatten(view)
    chosen = np.unique(np.linspace(0, len(frames) - 1, min(len(frames), _FRAMES)).astype(int))
    cells = [cell(with_targets(to_pixels(frames[t], ops), targets), _SIDE) for t in chosen.tolist()]
    strip = Image.new("RGB", (len(cells) * _SIDE, _SIDE))
    for k, one in enumerate(cells):
        strip.paste(one, (k * _SIDE, 0))
    return strip


def _targets(dataset: Dataset, found: FoundStep, row: int) -> Targets:
    if not isinstance(found.target, dict) or isinstance(found.images, tuple):
        return Targets()
    return targets_of(dataset, {"image": found.images, **found.target}, len(found.plan))[row]


def _labels_of(dataset: Dataset, target: Any, row: int) -> dict[str, str]:
    """Return the numbers and texts of a sample by column, with the names of classes."""
    columns = target if isinstance(target, dict) else {"label": target}
    facts = {}
    for name, values in columns.items():
        value = None if values is None else values[row]
        if isinstance(value, Tensor) and value.numel() != 1:
            value = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        elif isinstance(value, Tensor):
            value = value.item()
        classes = getattr(dataset, "classes", None)
        if name == "label" and classes and isinstance(value, int) and 0 <= value < len(classes):
            value = f"{value}, {classes[value]}"
        if value is not None:
            facts[name] = f"{value:.4g}" if isinstance(value, float) else str(value)
    return facts


def _numbers_of(op: Op, row: int) -> str:
    """Describe an op with the numbers of a row; empty if it has none, or does not change this image."""
    values = {f.name: getattr(op, f.name) for f in fields(op)}
    own = {name: value[row] for name, value in values.items() if isinstance(value, np.ndarray) and len(value) > row}
    if not own or not own.pop("mask", True):
        return ""
    numbers = ", ".join(f"{name} {np.array2string(value, precision=4)}" for name, value in own.items())
    return f"{type(op).__name__} {numbers}".strip()


def _page(loader: DataLoader, found: FoundStep, shown: Sequence[_Shown], title: str) -> str:
    plan, dataset = found.plan, found.dataset
    lead = f"{plan.valid} samples of {dataset!r}, seed {loader.seed}, engine {loader.engine}."
    figures = []
    for one in shown:
        pictures = "".join(f'<img alt="as the network sees it" src="{embedded(after)}">' for after in one.after)
        if one.before is not None:
            pictures = f'<img alt="as decoded" src="{embedded(one.before)}">{pictures}'
        ops = f"<details><summary>ops</summary>{'<br>'.join(map(html.escape, one.ops))}</details>" if one.ops else ""
        facts = table([], [(html.escape(k), html.escape(v)) for k, v in one.facts.items()], kind="facts")
        figures.append(f'<h2>{html.escape(one.name)}</h2><div class="pair">{pictures}</div>{facts}{ops}')
    return document(
        f"gpupipe: {title}",
        [
            "<style>.pair { display: flex; flex-wrap: wrap; gap: .5rem; margin: .75rem 0; } "
            ".pair img { height: min(14rem, 30vw); max-width: 100%; object-fit: contain; image-rendering: pixelated; }"
            "</style>",
            f"<h1>{title}</h1><p class=lead>{html.escape(lead)}</p>",
            f"<pre>{html.escape(repr(dataset.transform))}</pre>",
            *figures,
        ],
    )


def _sheet(shown: Sequence[_Shown], title: str) -> Image.Image:
    """Draw the images as the network sees them, four in a row, with their names."""
    across, caption, head = 4, 22, 34
    cells = [(view, one.name) for one in shown for view in one.after]
    wide = max(view.width for view, _ in cells)
    across = max(1, min(across, len(cells), across * _SIDE // wide))
    down = -(-len(cells) // across)
    image = Image.new("RGB", (across * (wide + _GAP) + _GAP, head + down * (_SIDE + caption) + _GAP), (255, 255, 255))
    draw, large, small = ImageDraw.Draw(image), ImageFont.load_default(16), ImageFont.load_default(11)
    draw.text((_GAP, 9), title, (24, 28, 36), large)
    for k, (view, name) in enumerate(cells):
        x, y = _GAP + k % across * (wide + _GAP), head + k // across * (_SIDE + caption)
        image.paste(view, (x, y))
        draw.text((x, y + _SIDE + 3), place_of(name)[-34:], (110, 116, 128), small)
    return image
