"""Translation of torchvision's and Hugging Face's image datasets, and of torch's ``Subset`` and ``ConcatDataset``."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset

from .. import datasets as ours
from ..datasets.dataset import Dataset
from ..datasets.sample_form import Rest, SampleForm, View
from ..errors import ConfigError, GpupipeError, TranslationError
from ..global_rng import lent
from ..reasons import Reason, about, failure
from ..signal_handlers import pass_on
from ..transforms import Compose, Lambda
from .classes import class_name, exact_name, known_class, shown
from .closed import NotClosed, check_pure
from .draws import NotUnderstood
from .huggingface import image_rows
from .huggingface_rows import rows_one_by_one
from .other_libraries import named_class
from .recorded import NO_TRANSFORMS, record
from .replaced import replaced
from .rows import Rows, rows_of
from .same_names import UnsupportedError
from .transforms import translation
from .user_functions import are_alike

I64 = npt.NDArray[np.int64]


OfRows = Callable[[Rows], Dataset | None]


class OnlyRows(TranslationError):
    """The dataset has no transforms. Its samples are rows of arrays, and torch's loader can make batches of these."""

    rows: Rows | None = None


_FOLDERS = ("ImageFolder", "DatasetFolder")
_COLOR_ARRAYS = ("CIFAR10", "CIFAR100", "SVHN", "STL10")
_PLANES = ("SVHN", "STL10")
"""Datasets that hold u8[N, 3, H, W], and ``labels`` instead of ``targets``."""
_GRAY_ARRAYS = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "USPS")
_READS = {"__getitem__", "__getitems__", "__getattribute__", "__len__"}
_UNKNOWN = "gpupipe does not know what it reads"
_CHOICES = (
    "Alternatives: gpupipe.datasets (ImageFolder, WebDataset, Parquet, Arrays, ...), "
    "gpupipe.datasets.from_torch(dataset, media=..., transform=...) for a dataset that returns paths, bytes or arrays, "
    'or DataLoader(..., engine="torch"), which runs the dataset as it is.'
)


def translate_dataset(ds: Any, *, small: bool = True, of_rows: OfRows = Rows.dataset) -> Dataset:
    """Return a gpupipe dataset with the same samples, labels and transforms.

    Args:
        ds: torchvision's ImageFolder or DatasetFolder with its own image loader, CIFAR10, CIFAR100, SVHN, STL10,
            MNIST, FashionMNIST, KMNIST, EMNIST or USPS; torch's ``Subset`` of these or of gpupipe datasets, in any
            depth, and ``ConcatDataset`` of folders; a Hugging Face dataset, see :mod:`gpupipe.interop.huggingface`; a
            gpupipe dataset, which is returned as it is.
        small: whether to translate a script's own dataset of small images in memory.
        of_rows: returns a dataset of the arrays from which a script's own dataset takes its samples; ``None`` if its
            code shall run.

    Raises:
        TranslationError: the dataset is unknown, or has Python code that would not run; lists the alternatives.
    """
    if isinstance(ds, Dataset):
        return ds
    try:
        # A known class comes first, because its files or arrays can be read without running the script's code.
        return _native(ds, small, of_rows)
    except OnlyRows:
        raise
    except TranslationError as e:
        is_table = exact_name(ds, "datasets.arrow_dataset") == "Dataset"
        try:
            return record(rows_one_by_one(ds) if is_table else ds, small=small)
        except UnsupportedError as refused:
            # The first error names what is wrong with a known class. Only for an unknown one does recording say more.
            if is_table or _UNKNOWN not in str(e) or type(ds).__module__.startswith("torch."):  # which holds others
                raise e from None
            _refuse(ds, str(refused), refused.code, e)
        except GpupipeError as other:
            raise other from None
        except Exception as failed:  # a mistake of gpupipe's, which need not stop a script that torch can run
            pass_on(failed)
            _refuse(
                ds, f"gpupipe's trial of it failed with {failure(failed)}; please report this", "trial-fails", failed
            )


def _native(ds: Any, small: bool, of_rows: OfRows) -> Dataset:
    """Translate a dataset from the files or arrays that its class is known to hold."""
    _check_replaced(ds)
    name = exact_name(ds, "torch.utils.data")
    if name == "Subset":
        indices = np.asarray(ds.indices)
        if indices.dtype.kind == "i" and (indices < 0).any():
            why = f"its index {indices.min()} counts from the end, and only the inner dataset knows what that means"
            _refuse(ds, why, "negative-index")
        return ours.Subset(translate_dataset(ds.dataset, small=small, of_rows=of_rows), indices)
    if name == "ConcatDataset":
        return _concatenated(ds)
    if exact_name(ds, "datasets.arrow_dataset") == "Dataset":
        try:
            return image_rows(ds)
        except UnsupportedError as e:
            _refuse(ds, f"{e}; {named_class(ds)}", e.code)
    cls = known_class(ds, "torchvision.datasets")
    if (cls is None or _own_methods(ds, cls)) and (made := _of_rows(ds, of_rows)) is not None:
        return made
    if cls is None:
        other = named_class(ds)
        if other is not None:
            _refuse(ds, other, "other-library")
        if isinstance(ds, IterableDataset):
            _refuse(ds, "an IterableDataset is a stream, whose samples cannot be ordered", "stream")
        _refuse(ds, _UNKNOWN, "unknown-dataset")
    if cls.__name__ not in (*_FOLDERS, *_COLOR_ARRAYS, *_GRAY_ARRAYS):
        _refuse(ds, _UNKNOWN, "unknown-dataset")
    if own := _own_methods(ds, cls):
        _refuse(ds, f"it is a subclass of {cls.__name__} with its own {', '.join(sorted(own))}", "own-methods")
    if cls.__name__ in _FOLDERS:
        return _folder(ds, exact=cls is type(ds))
    return _arrays(ds, cls.__name__)


def _of_rows(ds: Any, of_rows: OfRows) -> Dataset | None:
    """Return a dataset of the arrays from which a script's dataset takes its samples; ``None`` if its code has to
    run."""
    found = rows_of(ds)
    if found is None:
        return None
    if not found.views:
        error = _refusal(ds, NO_TRANSFORMS, "own-pixels", OnlyRows)
        error.rows = found
        raise error
    try:
        return of_rows(found)
    except (NotUnderstood, UnsupportedError, GpupipeError):
        return None  # what cannot be translated shows better when the code runs


def _own_methods(ds: Any, cls: type) -> list[str]:
    """Return the methods of the classes between the script's own and the library's that decide what is read."""
    classes = type(ds).__mro__[: type(ds).__mro__.index(cls)]
    return [f"{c.__qualname__}.{n}" for c in classes for n in _READS & vars(c).keys()]


def _arrays(ds: Any, name: str) -> Dataset:
    pixels = np.asarray(ds.data) if name in _COLOR_ARRAYS else ds.data
    labels = ds.labels if name in _PLANES else ds.targets
    if labels is None:
        _refuse(ds, "it has no labels, so the target of its samples is None", "unknown-dataset")
    if name in _PLANES:
        pixels = np.moveaxis(pixels, 1, -1)
    channels = 3 if name in _COLOR_ARRAYS else 1
    (transform, form), numbers = _all(
        lambda: _transform(ds, channels=channels, size=tuple(pixels.shape[1:3])),
        lambda: _labels(ds, np.asarray(labels)),
    )
    return _formed(ours.Arrays(pixels, numbers, transform=transform), form)


def _check_replaced(ds: Any) -> None:
    is_known = known_class(ds, "torchvision", "torch.utils.data") is not None
    if is_known and (name := replaced(ds)):
        _refuse(ds, f"{name} is no longer the library's own", "replaced-function")


def _concatenated(ds: Any) -> Dataset:
    """Join folders and lists of image files into one list of files."""
    parts = [translate_dataset(part) for part in ds.datasets]
    first = parts[0]
    if not all(part.whole_files and not part.limits.exif and not part.columns for part in parts):
        _refuse(
            ds, "some of its parts are not folders or lists of image files with one image and one label", "unlike-parts"
        )
    if not all(are_alike(part.transform, first.transform) and part.form == first.form for part in parts):
        _refuse(ds, "its parts have different transforms", "unlike-parts")
    limits = {part.limits for part in parts}
    if len(limits) > 1 or len({part.labels is None for part in parts}) > 1:
        _refuse(ds, "its parts differ in what they treat as bad samples, or in having labels", "unlike-parts")
    paths = [os.fsdecode(path.tobytes()) for part in parts for path in part.encoded_paths(np.arange(len(part)))]
    labels = None if first.labels is None else np.concatenate([part.labels for part in parts])
    return _formed(ours.ImageList(paths, labels, transform=first.transform, **limits.pop()._asdict()), first.form)


E = TypeVar("E", bound=TranslationError)


def _refusal(ds: Any, why: str, code: str, kind: type[E]) -> E:
    return kind(
        f"{shown(ds)} ({class_name(ds)}) cannot be translated: {why}. {_CHOICES}",
        [Reason(about(type(ds).__name__, why), code)],
    )


def _refuse(ds: Any, why: str, code: str, cause: Exception | None = None) -> NoReturn:
    raise _refusal(ds, why, code, TranslationError) from cause


def _transform(ds: Any, channels: int = 3, size: tuple[int, int] | None = None) -> tuple[Compose, SampleForm | None]:
    """Return the pipeline, and the form of a sample (image, label) unless its image is one plain tensor."""
    # torchvision's __getitem__ uses these two attributes, not `transforms`.
    found = translation(ds.transform, channels=channels, size=size)
    return found.pipeline, None if found.views == View(0) else SampleForm((found.views, Rest()))


def _formed(dataset: Dataset, form: SampleForm | None) -> Dataset:
    dataset.form = form
    return dataset


def _all(*parts: Callable[[], Any]) -> list[Any]:
    """Return the results of all ``parts``. If some cannot be translated, raise one error with all reasons."""
    made, errors = [], []
    for part in parts:
        try:
            made.append(part())
        except TranslationError as e:
            errors.append(e)
    if errors:
        reasons = [reason for e in errors for reason in e.reasons]
        # The engines would reject these later; one error names everything at once.
        composed = [it[0] for it in made if isinstance(it, tuple) and isinstance(it[0], Compose)]
        functions = [t for it in composed for t in it if isinstance(t, Lambda)]
        reasons += [Reason(f"transform {shown(t)} is user code", "own-function") for t in functions]
        raise TranslationError("\n".join(map(str, errors)), reasons)
    return made


def _labels(ds: Any, labels: npt.NDArray[Any]) -> I64:
    """Return integer labels i64[N] after ``target_transform``, which is called once per class, not once per sample."""
    if len(labels) == 0:
        return np.empty(0, np.int64)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        _refuse(
            ds, f"its labels are {labels.dtype}{list(labels.shape)}, not one integer per sample", "target-transform"
        )
    function = ds.target_transform
    if function is None:
        return labels.astype(np.int64)
    try:
        check_pure(function)
    except NotClosed as e:
        _refuse(ds, f"its target_transform may return a different label each time: {e}", "target-transform")
    classes, which = np.unique(labels, return_inverse=True)
    with lent():
        mapped = [_index(ds, c, function(c)) for c in classes.tolist()]
    return np.asarray(mapped, np.int64)[which.reshape(-1)]


def _index(ds: Any, label: int, made: Any) -> int:
    try:
        return operator.index(made)
    except TypeError:
        why = f"its target_transform turns label {label} into {shown(made)}, and a label must be an integer"
        _refuse(ds, why, "target-transform")


def _folder(ds: Any, exact: bool) -> Dataset:
    paths = [path for path, _ in ds.samples]
    labels = np.asarray([label for _, label in ds.samples])
    transform, numbers, _ = _all(lambda: _transform(ds), lambda: _labels(ds, labels), lambda: _check_loader(ds))
    transform, form = transform
    # `imgs` is torchvision's second name for the list, and shows whether a script has replaced the list.
    untouched = exact and ds.target_transform is None and getattr(ds, "imgs", ds.samples) is ds.samples
    # The folder stands for the list only if it has the same files with the same labels.
    if untouched and ds.extensions:
        try:
            found = ours.ImageFolder(ds.root, transform, extensions=tuple(ds.extensions), allow_empty=True)
        except ConfigError:
            pass  # the folder has changed or never was one; the list names the files
        else:
            if _same_samples(found, ds.samples):
                return _formed(found, form)
    return _formed(ours.ImageList([os.path.abspath(path) for path in paths], numbers, transform=transform), form)


def _check_loader(ds: Any) -> None:
    loader = ds.loader
    name = getattr(loader, "__name__", "")
    if getattr(loader, "__module__", "") != "torchvision.datasets.folder" or name not in (
        "default_loader",
        "pil_loader",
    ):
        _refuse(
            ds,
            f"it reads files with {shown(loader)}, and gpupipe knows only torchvision's own image loader",
            "own-image-loader",
        )


def _same_samples(found: ours.ImageFolder, samples: Sequence[tuple[str, int]]) -> bool:
    if len(found) != len(samples) or found.labels is None:
        return False
    if not np.array_equal(found.labels, np.fromiter((label for _, label in samples), np.int64, len(samples))):
        return False
    here = os.path.join(os.getcwd(), "")
    # os.path.abspath would cost more than all the rest for a million files. Both sides start at the same root.
    return all(
        found.describe(i) == (path if path.startswith("/") else os.path.normpath(here + path))
        for i, (path, _) in enumerate(samples)
    )
