"""Translation of Hugging Face's ``datasets.Dataset`` with a column of images. Its samples are dictionaries. The images
are read from its Arrow files, the other columns go into the index, and the engine does what its transform was seen to
do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from .. import transforms as ours
from ..codecs.limits import Limits
from ..codecs.unread import Undecoded
from ..datasets.images import EncodedImages
from ..datasets.sample_form import Rest, SampleForm, View, kept, leaves, rebuilt, view_of
from ..errors import DatasetError
from ..formats.huggingface import HuggingFaceRows
from ..targets import NumberColumn, Target
from .marks import marked_function
from .recording import InspectionError, Mark, StandIn, watched
from .same_names import UnsupportedError
from .transforms import translation

_GRAY = ("1", "L", "LA", "RGB", "RGBA")
"""Modes of Pillow, with the gray mode that belongs to each."""
_MODES = (*_GRAY, "P", "PA", "CMYK", "YCbCr")
_KINDS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float16", "float32", "float64"} | {
    "bool", "string", "large_string",
}  # fmt: skip


class ImageRows(EncodedImages):
    """The images of a ``datasets.Dataset`` and some of its columns.

    Args:
        ds: the script's dataset.
        image: the column of images.
        columns: the columns that samples have beside their images.
        tensors: whether floats are f32, as in the format ``"torch"``.
    """

    def __init__(self, ds: Any, image: str, columns: tuple[str, ...], transform: Any, form: SampleForm, tensors: bool):
        source = HuggingFaceRows(ds, image, None, (), columns)
        self._tensors, self._image = tensors, image
        # A sample may also hold the image as it was before its transforms.
        stands = any(isinstance(leaf, Rest) and leaf.path == (image,) for leaf in leaves(form.tree))
        self._originals = {image: Originals(ds, image, self)} if stands else {}
        super().__init__(source, transform, Limits(exif=True))  # `datasets` turns images upright
        self.form = form

    @property
    def columns(self) -> Mapping[str, Target]:
        columns = {**super().columns, **self._originals}
        return {name: _single(column) for name, column in columns.items()} if self._tensors else columns

    @property
    def modes(self) -> set[str]:
        """Modes of the good images, as Pillow names them."""
        return {coding.mode for coding in self.codings[1] if coding.format}

    def __repr__(self) -> str:
        return f"datasets.Dataset({len(self):,} samples of {self._image!r}, read from its files)"


class Originals(Target):
    """Images as ``datasets`` opens them, before their transforms, for samples that contain them. torch's
    ``default_collate`` cannot batch such images, and little code looks at them, so each is decoded at its first use."""

    def __init__(self, ds: Any, image: str, rows: ImageRows):
        self._ds, self._image, self._rows = ds.with_format(None), image, rows

    def of(self, indices: npt.NDArray[np.int64]) -> list[Image.Image]:
        sizes, (which, names) = self._rows.sizes, self._rows.codings
        assert sizes is not None
        return [_Original(self, int(i), (int(sizes[i, 1]), int(sizes[i, 0])), names[which[i]].mode) for i in indices]

    def collate(self, values: Sequence[Image.Image]) -> list[Image.Image]:  # type: ignore[override]
        return list(values)

    def opened(self, row: int) -> Image.Image:
        image: Image.Image = self._ds[row][self._image]
        return image


class _Original(Undecoded):
    """An image that is decoded at its first use."""

    def __init__(self, images: Originals, row: int, size: tuple[int, int], mode: str):
        super().__init__(size, mode)
        self._images, self._row = images, row

    def made(self) -> Image.Image:
        return self._images.opened(self._row)


def _single(column: Target) -> Target:
    if isinstance(column, NumberColumn) and column.kind == "float":
        return NumberColumn(column.column, "float32")
    return column


def image_rows(ds: Any) -> ImageRows:
    """Translate a ``datasets.Dataset``.

    Raises:
        UnsupportedError: it has no single column of images, or its format or transform does something else than passing
            images to transforms and values on.
        TranslationError: a transform has no equivalent in gpupipe.
    """
    names = [name for name in ds.column_names if ds._format_columns is None or name in ds._format_columns]
    images = [name for name in names if type(ds.features[name]).__name__ == "Image"]
    if len(images) != 1:
        raise UnsupportedError(
            f"it has {len(images)} columns of images" if images else "it has no column of images", "dataset-form"
        )
    (image,) = images
    feature = ds.features[image]
    if not feature.decode or feature.mode not in (None, "RGB", "L"):
        raise UnsupportedError(f"its images are {feature}", "dataset-form")
    if ds._output_all_columns and len(names) < len(ds.column_names):
        raise UnsupportedError("it has output_all_columns=True", "dataset-form")
    if ds._format_type == "torch" and not ds._format_kwargs:
        tree: Any = {name: View(0) if name == image else Rest((name,), tensor=True) for name in names}
        # A feature with a mode converts every image to it.
        modes = {mode: feature.mode or mode for mode in _MODES}
        return _checked(ds, image, tree, _tensors, modes, tensors=True)
    if ds._format_type != "custom":
        raise UnsupportedError(
            "its samples hold PIL images, of which no batch is made"
            if ds._format_type is None
            else f"its format is {ds._format_type!r}",
            "dataset-form",
        )
    example, modes = _arranged(ds._format_kwargs["transform"], names, image, feature.mode)
    made = [leaf for leaf in leaves(example) if isinstance(leaf, StandIn) and leaf.steps]
    if not made:
        raise UnsupportedError("no image in its samples comes from transforms that it holds", "own-pixels")
    # kept() visits the leaves in the order in which `made` lists them.
    views = iter(_pipeline_of(made, 3)[1])

    def place(leaf: Any) -> Any:
        if isinstance(leaf, _Column):
            return Rest((leaf.name,))
        if not leaf.steps:
            return Rest((image,))
        return next(views)

    tree = kept(place, example)
    return _checked(ds, image, tree, lambda channels: _pipeline_of(made, channels)[0], modes, tensors=False)


def _pipeline_of(images: list[StandIn], channels: int) -> tuple[ours.Compose, list[Any]]:
    """Return one pipeline for all results of an image, and the position of each result in a sample. Raises
    :class:`UnsupportedError`."""
    chains = [translation(list(image.steps), channels=channels) for image in images]
    if len(chains) == 1:
        return chains[0].pipeline, [chains[0].views]
    if any(chain.tree is not None for chain in chains):
        raise UnsupportedError("more than one of its transforms makes several views", "views")
    pipeline = ours.Compose([ours.MultiView([chain.pipeline for chain in chains])])
    return pipeline, [view_of(number, chain.kind) for number, chain in enumerate(chains)]


def _tensors(channels: int) -> ours.Compose:
    gray = [ours.Grayscale(1)] if channels == 1 else []
    return ours.Compose([*gray, ours.PILToTensor()])


def _checked(
    ds: Any,
    image: str,
    tree: Any,
    pipeline: Callable[[int], ours.Compose],
    modes: Mapping[str, str],
    *,
    tensors: bool,
) -> ImageRows:
    """Return the dataset if its columns can be kept and its transforms get all images in one mode.

    Args:
        pipeline: builds the pipeline for images with this number of channels.
        modes: the mode in which images of each mode reach the first transform.
    """
    names = dict.fromkeys(leaf.path[0] for leaf in leaves(tree) if isinstance(leaf, Rest))
    columns = tuple(name for name in names if name != image)
    for name in columns:
        feature = ds.features[name]
        if type(feature).__name__ != "ClassLabel" and getattr(feature, "dtype", None) not in _KINDS:
            raise UnsupportedError(
                f"its column {name!r} is {feature}; columns can hold numbers, booleans and texts", "dataset-form"
            )
        if ds.data.column(name).null_count:
            raise UnsupportedError(f"its column {name!r} has no value in some rows", "dataset-form")
    form = SampleForm(tree)
    try:
        found = ImageRows(ds, image, columns, pipeline(3), form, tensors)
    except DatasetError as e:
        raise UnsupportedError(str(e).removeprefix("HuggingFace: "), "dataset-form") from None
    # A mode that the transform rejects is not in `modes`. The empty text fails the check below.
    known = {mode: modes.get(mode, "") for mode in found.modes}
    if len({*known.values()}) > 1 or not {*known.values()} <= {"RGB", "L"}:
        raise UnsupportedError(
            f"its images have the modes {', '.join(sorted(found.modes))}, and its transforms get them unconverted: "
            'convert all of them, image.convert("RGB")',
            "unlike-samples",
        )
    # Only the index, which was made with the dataset, shows which modes there are.
    if "L" in known.values():
        found.transform = pipeline(1)
    return found


@dataclass(frozen=True)
class _Column:
    """A column's value, by the name of the column."""

    name: str
    row: int


class _Value:
    """Stand-in for a value of a column. Nothing may look at it."""

    def __init__(self, column: str, row: int):
        self.column = _Column(column, row)

    def __getattribute__(self, name: str) -> Any:
        raise InspectionError(f"it looks at values of columns ({name})")

    def _looked(self, *_: Any) -> Any:
        raise InspectionError("it looks at values of columns")

    __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _looked
    __bool__ = __int__ = __float__ = __index__ = __str__ = __repr__ = __format__ = __hash__ = _looked
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = _looked
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _looked
    __mod__ = __rmod__ = __floordiv__ = __neg__ = __invert__ = __and__ = __or__ = __array__ = _looked


class _Opened(StandIn):
    """Stand-in for an image as ``datasets`` opens it. Code may convert it and read its mode, nothing else.

    ``lost``: whether the file may have colors that the converted image lacks.
    """

    def __init__(self, row: int, mode: str, lost: bool):
        super().__init__((row, mode, lost))

    def __getattribute__(self, name: str) -> Any:
        if name == "convert":
            return object.__getattribute__(self, name)
        return self.image[1] if name == "mode" else super().__getattribute__(name)

    def convert(self, mode: str | None = None, *more: Any, **named: Any) -> Any:
        row, now, lost = self.image
        # Engines decode in color or in gray, and for other modes than these their gray may differ.
        if more or named or not (mode == "RGB" or mode == now or (mode == "L" and now in _GRAY)):
            raise InspectionError(f"it converts images to {mode}")
        # Here the script has gray, but an engine would decode the colors of the file.
        if lost and mode != now:
            raise InspectionError(f"it converts gray images to {mode}; use the transform Grayscale(3)")
        return _Opened(row, str(mode), lost or (mode == "L" and now != "L"))


def _arranged(function: Any, names: list[str], image: str, mode: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a batch transform makes of a sample: (containers of stand-ins and values, the mode in which images of
    each mode reach its transforms).

    Raises :class:`UnsupportedError` if the transform does anything else.
    """
    other, found = marked_function(function, Mark)
    if not found:
        raise UnsupportedError("its transform holds no transforms that an engine could do", "own-pixels")
    first = _called(other, names, image, mode, "RGB", 2)
    shape, modes = _shape(first[0], 0), dict[str, str]()
    for has in _MODES:
        try:
            # Three rows after two: what depends on the size of a batch comes out with another shape.
            samples = _called(other, names, image, mode, has, 3)
        except UnsupportedError:
            continue  # it rejects or inspects such images; whether there are any is checked later
        if any(_shape(sample, i) != shape for i, sample in enumerate(samples)):
            continue
        seen = {leaf.image[1] for leaf in leaves(samples[0]) if isinstance(leaf, StandIn) and leaf.steps}
        # A text that names no mode is rejected later, if there are such images.
        modes[has] = seen.pop() if len(seen) == 1 else f"{has} and others"
    return first[0], modes


def _called(other: Any, names: list[str], image: str, mode: str | None, has: str, rows: int) -> list[dict[str, Any]]:
    """Call the transform with a batch of ``rows`` samples, whose files have the mode ``has`` and are opened in
    ``mode``. Return its samples."""
    batch: dict[str, list[Any]] = {
        # A feature of mode L has converted the colors of the file already.
        name: [_Opened(i, mode or has, mode == "L") if name == image else _Value(name, i) for i in range(rows)]
        for name in names
    }
    made = watched(other, batch, "its transform", seed=rows)
    if not isinstance(made, Mapping) or not all(type(v) in (list, tuple) and len(v) == rows for v in made.values()):
        raise UnsupportedError(
            "its transform does not return a dictionary of lists with a value for each sample", "dataset-form"
        )
    return [{key: _plain(values[i]) for key, values in made.items()} for i in range(rows)]


def _plain(part: Any) -> Any:
    """Replace stand-ins for values by placeholders that can be compared."""
    # isinstance() may ask the stand-in for __class__, which raises.
    if type(part) is _Value:
        return object.__getattribute__(part, "column")
    if isinstance(part, Mapping):
        return {key: _plain(value) for key, value in part.items()}
    return rebuilt(part, [_plain(value) for value in part]) if isinstance(part, (list, tuple)) else part


def _shape(sample: Any, row: int) -> Any:
    """Return a sample without what tells it from other samples. Raises :class:`UnsupportedError` if it contains a part
    of another sample."""

    def leaf(part: Any) -> Any:
        what: Any
        if isinstance(part, _Column):
            of, what = part.row, part.name
        elif isinstance(part, StandIn):
            of, what = part.image[0], tuple(map(id, part.steps))
        else:
            raise UnsupportedError(
                f"its transform returns an object of its own class ({type(part).__name__})", "own-view"
            )
        if of != row:
            raise UnsupportedError("its transform mixes samples with each other", "mixes-samples")
        return ("leaf", what)

    return kept(leaf, sample)
