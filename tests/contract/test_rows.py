"""Scripts' datasets whose samples are rows of arrays: batches are torch's, and changes show as with torch's loader."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data
from torch.utils.data import Subset, random_split
from torchvision import datasets as tv, transforms as tvt
from torchvision.transforms import functional as F, v2

from gpupipe import DataLoader, interop
from gpupipe.datasets import Dataset
from gpupipe.interop.rows import rows_of

N = 50
COLOR = np.random.default_rng(0).integers(0, 256, (N, 12, 10, 3), np.uint8)
GRAY = np.random.default_rng(1).integers(0, 256, (N, 9, 9), np.uint8)
LABELS = np.random.default_rng(2).integers(0, 10, N)
EVAL = tvt.Compose([tvt.ToTensor(), tvt.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))])


class Own(data.Dataset[Any]):
    """The dataset that most scripts with arrays have."""

    images: Any = COLOR
    labels: Any = LABELS

    def __init__(self, transform: Any = EVAL):
        self.data, self.targets, self.transform = type(self).images.copy(), type(self).labels, transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index])), int(self.targets[index])


class AsWritten(Own):
    labels = LABELS.tolist()

    def __getitem__(self, index: Any) -> Any:
        if torch.is_tensor(index):
            index = index.tolist()
        if index < 0 or index >= len(self):
            raise IndexError(index)
        image, target = self.data[index], self.targets[index]
        image = Image.fromarray(image, mode="RGB").convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        return image, target, index


class Dictionary(Own):
    labels = LABELS.astype(np.uint8)

    def __getitem__(self, index: int) -> Any:
        sample = {"image": Image.fromarray(np.array(self.data[index])), "label": self.targets[index]}
        sample["image"] = self.transform(sample["image"])
        return sample


class OfTensors(Own):
    labels = torch.from_numpy(LABELS)


class Deep(Own):
    labels = np.random.default_rng(3).random((N, 4), np.float32)

    def __getitem__(self, index: int) -> Any:
        image = self.transform(Image.fromarray(self.data[index]))
        return [image, (self.targets[index], {"first": float(self.targets[index][0]), "again": image})]


class Alone(Own):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index]))


class Types(Own):
    def __getitem__(self, index: int) -> Any:
        label = self.targets[index]
        return (
            self.transform(Image.fromarray(self.data[index])),
            torch.tensor(label, dtype=torch.float32),
            torch.tensor(label).float(),
            float(label),
            torch.as_tensor(label).long(),
            label.item(),
        )


class Helpers(Own):
    """Its code is in methods, a property, and a function of the module."""

    mode = "RGB"

    def opened(self, index: int) -> Any:
        return Image.fromarray(self.data[index]).convert(self.mode)

    @property
    def chosen(self) -> Any:
        return self.transform

    @staticmethod
    def number(value: Any) -> int:
        return as_integer(value)

    def __getitem__(self, index: int) -> Any:
        return self.chosen(self.opened(index)), self.number(self.targets[index])


def as_integer(value: Any) -> int:
    return int(value) if isinstance(value, np.integer) else -1


class Asks(Own):
    def __getitem__(self, index: int) -> Any:
        image = Image.fromarray(self.data[index])
        if isinstance(self.transform, tvt.Compose) and isinstance(image, Image.Image):
            return self.transform(image), len(self) if isinstance(self.data, list) else self.targets[index]
        return 0


class Fewer(Own):
    labels = np.arange(N + 9)

    def __len__(self) -> int:
        return N - 3


class Tensors(data.Dataset[Any]):
    """The class of a well-known answer to "transforms for a TensorDataset"."""

    def __init__(self, tensors: Any, transform: Any = None):
        assert all(tensors[0].size(0) == tensor.size(0) for tensor in tensors)
        self.tensors = tensors
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        x = self.tensors[0][index]
        if self.transform:
            x = self.transform(x)
        y = self.tensors[1][index]
        return x, y

    def __len__(self) -> int:
        return int(self.tensors[0].size(0))


class Pixels(Own):
    """Rows of a table of pixels, as they come from a CSV file."""

    images = GRAY.reshape(N, -1)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.data[index].reshape(9, 9, 1)), self.targets[index]


class Wrapped(data.Dataset[Any]):
    def __init__(self, subset: Any, transform: Any = None):
        self.subset, self.transform = subset, transform

    def __getitem__(self, index: int) -> Any:
        x, y = self.subset[index]
        if self.transform:
            x = self.transform(x)
        return x, y

    def __len__(self) -> int:
        return len(self.subset)


class Split(data.Dataset[Any]):
    """Part of a dataset, as federated learning has it."""

    def __init__(self, dataset: Any, idxs: Any):
        self.dataset = dataset
        self.idxs = list(idxs)

    def __len__(self) -> int:
        return len(self.idxs)

    def __getitem__(self, item: int) -> Any:
        image, label = self.dataset[self.idxs[item]]
        return torch.tensor(image), torch.tensor(label)


class OfTable(Wrapped):
    """It makes images of the tensors of another dataset."""

    def __getitem__(self, index: int) -> Any:
        x, y = self.subset[index]
        return self.transform(F.to_pil_image(x)), y


class Chosen(data.Dataset[Any]):
    """Part of a dataset, with labels of its own."""

    def __init__(self, dataset: Any, indices: Any, labels: Any):
        self.dataset, self.indices, self.labels = dataset, indices, labels

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> Any:
        image, _ = self.dataset[self.indices[item]]
        return image, self.labels[item], self.indices[item]


class Repeated(Own):
    def __len__(self) -> int:
        return 3 * len(self.data)

    def __getitem__(self, index: int) -> Any:
        return super_of(self, index % len(self.data))


def super_of(dataset: Own, index: int) -> Any:
    return dataset.transform(Image.fromarray(dataset.data[index])), dataset.targets[index]


class Cifar(tv.CIFAR10):
    def __init__(self, transform: Any = None):
        self.data, self.targets, self.transform, self.target_transform = COLOR, LABELS.tolist(), transform, None


class Mnist(tv.MNIST):
    def __init__(self, transform: Any = None):
        self.data, self.targets = torch.from_numpy(GRAY), torch.from_numpy(LABELS)
        self.transform, self.target_transform = transform, None


class CifarPair(Cifar):
    """Two views, as SimCLR has them."""

    def __getitem__(self, index: int) -> Any:
        img, target = self.data[index], self.targets[index]
        img = Image.fromarray(img)
        if self.transform is not None:
            one = self.transform(img)
            two = self.transform(img)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return one, two, target


def exactly(cls: type, made: Any) -> Any:
    made.__class__ = cls
    return made


TENSORS = (torch.from_numpy(COLOR).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(LABELS))
RECOGNIZED: dict[str, Callable[[], Any]] = {
    "plain": Own,
    "as written": AsWritten,
    "dictionary": Dictionary,
    "labels in a tensor": OfTensors,
    "deep": Deep,
    "alone": Alone,
    "types": Types,
    "helpers": Helpers,
    "asks for classes": Asks,
    "fewer than it has": lambda: Subset(Fewer(), range(20)),
    "arrays": lambda: Pixels(tvt.ToTensor()),
    "from arrays to PIL": lambda: Pixels(tvt.Compose([tvt.ToPILImage(), tvt.CenterCrop(5), tvt.ToTensor()])),
    "tensors": lambda: Tensors(TENSORS, v2.Compose([v2.CenterCrop(8), v2.ToDtype(torch.float32, scale=True)])),
    "from tensors to PIL": lambda: Tensors(TENSORS, tvt.Compose([tvt.ToPILImage(), tvt.CenterCrop(8), EVAL])),
    "wrapped subset": lambda: Wrapped(random_split(exactly(tv.CIFAR10, Cifar()), [20, 30])[1], EVAL),
    "wrapped gray": lambda: Wrapped(exactly(tv.MNIST, Mnist()), tvt.ToTensor()),
    "wrapped twice": lambda: Wrapped(Wrapped(exactly(tv.CIFAR10, Cifar(EVAL)))),
    "subset of it": lambda: Subset(Own(), [3, 1, 4, 1, 5]),
    "part": lambda: Split(exactly(tv.MNIST, Mnist(tvt.ToTensor())), np.arange(9, 30, 2)),
    "table": lambda: OfTable(data.TensorDataset(*TENSORS), EVAL),
    "part with labels": lambda: Chosen(Own(), np.arange(0, N, 3), [0.5 * k for k in range(len(range(0, N, 3)))]),
    "repeated": Repeated,
    "views": lambda: CifarPair(EVAL),
}


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        alike = type(one) is type(two) and one.dtype == two.dtype and one.stride() == two.stride()
        return alike and torch.allclose(one, two, rtol=0, atol=2e-6)
    if isinstance(one, dict):
        return type(one) is type(two) and [*one] == [*two] and all(same(one[key], two[key]) for key in one)
    return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # from torch, once per process
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", RECOGNIZED)
def test_batches_of_rows_are_torchs(name: str, workers: int) -> None:
    dataset = RECOGNIZED[name]()
    theirs = list(data.DataLoader(dataset, 8, num_workers=workers))
    with DataLoader(dataset, 8, num_workers=workers, device="cpu") as loader:
        ours = list(loader)
    assert same(theirs, ours)
    assert not interop.translate_dataset(dataset).runs_user_code


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_views_of_rows_draw_for_themselves(engine: Any) -> None:
    dataset = CifarPair(tvt.Compose([tvt.RandomHorizontalFlip(), tvt.RandomCrop(8), tvt.ToTensor()]))
    with DataLoader(dataset, N, engine=engine, device="cpu", seed=3) as loader:
        one, two, _ = next(iter(loader))
    differ = (one != two).flatten(1).any(1)
    assert 0.8 * N < differ.sum() < N or differ.all()


# ---- code that may treat indices differently


class Draws(Own):
    def __getitem__(self, index: int) -> Any:
        index = random.randrange(N) if random.random() < 0.5 else index
        return self.transform(Image.fromarray(self.data[index])), 1


class Counts(Own):
    count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


class Branches(Own):
    def __getitem__(self, index: int) -> Any:
        index = 0 if index > 40 else index
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


class Relabels(Own):
    def __getitem__(self, index: int) -> Any:
        label = self.targets[index]
        return self.transform(Image.fromarray(self.data[index])), 0 if label == 3 else label


class Swallows(Own):
    def __getitem__(self, index: int) -> Any:
        try:
            label = 0 if self.targets[index] > 3 else self.targets[index]
        except Exception:
            label = self.targets[index]
        return self.transform(Image.fromarray(self.data[index])), label


class Computes(Own):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(255 - self.data[index])), self.targets[index]


class TwiceConverted(Own):
    labels = LABELS + 2**24 + 0.7

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index])), torch.tensor(self.targets[index]).float().long()


class Typed(Own):
    def __getitem__(self, index: int) -> Any:
        label = self.targets[index] if type(index) is int else 0
        return self.transform(Image.fromarray(self.data[index])), label


KEPT: list[Any] = []


class Keeps(Own):
    def __getitem__(self, index: int) -> Any:
        KEPT.append(index)
        return self.transform(Image.fromarray(self.data[index])), len(KEPT)


class Looked(Own):
    def __getitem__(self, index: int) -> Any:
        image = Image.fromarray(self.data[index])
        return self.transform(image if image.getbbox() else image.rotate(90)), self.targets[index]


class Untwined(Own):
    def __getitem__(self, index: int) -> Any:
        made = self.transform(Image.fromarray(self.data[index]))
        return made[0] if isinstance(made, list) else made, self.targets[index]


class Drawn(Own):
    """Both views have the crop that was drawn once."""

    def __getitem__(self, index: int) -> Any:
        image = CROP(Image.fromarray(self.data[index]))
        return self.transform(image), FLIP(image)


CROP, FLIP = tvt.RandomCrop(8), tvt.Compose([tvt.RandomHorizontalFlip(), tvt.ToTensor()])


class DrawnAndShown(Own):
    def __getitem__(self, index: int) -> Any:
        made = FLIP(Image.fromarray(self.data[index]))
        return made, ERASE(made), self.targets[index]


ERASE = tvt.Normalize((0.5,), (0.5,))


class Makes(Own):
    def __getitem__(self, index: int) -> Any:
        image = tvt.RandomHorizontalFlip(0.0)(Image.fromarray(self.data[index]))
        return self.transform(image), self.targets[index]


class OfClass(Own):
    def __getitem__(self, index: int) -> Any:
        Settings.calls += 1
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


class Settings:
    calls = 0
    first = 0


class Logs(Own):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = [0]

    def __getitem__(self, index: int) -> Any:
        self.log.append(0)
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


def wrapping(function: Any) -> Any:
    def wrapped(self: Any, index: int) -> Any:
        return function(self, index)

    return wrapped


class Enclosed(Own):
    @wrapping
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index])), random.random()


class TwoTypes(Own):
    def __getitem__(self, index: int) -> Any:
        pixels = self.data[index]
        return self.transform(pixels), self.transform(pixels.astype(np.float32))


class Narrow(Own):
    labels = [-1, *LABELS.tolist()[1:]]

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index])), torch.tensor(self.targets[index], dtype=torch.uint8)


class Identical(Own):
    labels = LABELS.tolist()

    def __getitem__(self, index: int) -> Any:
        label = self.targets[index]
        return self.transform(Image.fromarray(self.data[index])), 100 if label is SEVEN else label


SEVEN = 7


class InC(Own):
    """torch's functions in C take anything for a tensor that says it is one."""

    labels = torch.from_numpy(LABELS)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index])), torch.add(self.targets[index], 1)


class InCByName(InC):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index])), torch.as_tensor(data=self.targets[index])


class Anything(Own):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class InMethods(Own):
    """The method of the base class is not the one that the object shows."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


NOT_RECOGNIZED = [
    Draws, Counts, Branches, Relabels, Swallows, Computes, TwiceConverted, Typed, Keeps, Looked, Untwined, Anything,
    InMethods, Makes, OfClass, Logs, Enclosed, TwoTypes, Narrow, Identical, InC,
    InCByName,
]  # fmt: skip


@pytest.mark.parametrize("cls", NOT_RECOGNIZED)
def test_code_that_may_treat_indices_differently_is_left_alone(cls: Any) -> None:
    assert rows_of(cls()) is None


@pytest.mark.parametrize("cls", [Drawn, DrawnAndShown])
def test_random_results_that_are_used_twice_are_left_alone(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert interop.translate_dataset(cls()).runs_user_code
    monkeypatch.setitem(globals(), "CROP", tvt.CenterCrop(8))
    assert interop.translate_dataset(cls()).runs_user_code == (cls is DrawnAndShown)


@pytest.mark.parametrize("workers", [0, 2])
def test_indices_that_code_can_tell_apart(workers: int) -> None:
    for sampler in ([np.int32(3), np.int32(1)], [3, 1]):
        given: dict[str, Any] = {"sampler": sampler, "num_workers": workers}
        with DataLoader(AsWritten(), 2, **given, device="cpu") as loader:
            assert same(list(data.DataLoader(AsWritten(), 2, **given)), list(loader))


def test_the_generators_of_the_script_stay_where_they_are() -> None:
    torch.manual_seed(1), random.seed(1), np.random.seed(1)  # noqa: NPY002
    before = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist()  # noqa: NPY002
    for cls in (Own, Draws, Enclosed, Makes):
        rows_of(cls())
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist())  # noqa: NPY002


def test_a_replaced_function_is_code_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_of(Own()) is not None
    really = Image.fromarray
    monkeypatch.setattr(Image, "fromarray", lambda array: really(array[::-1]))
    assert rows_of(Own()) is None


# ---- changes


SHIFT = 0


class Shifted(Own):
    start = 0

    def __init__(self, transform: Any):
        super().__init__(transform)
        self.order = np.arange(N)
        self.others = list(range(N))
        self.list = self.targets.tolist()
        self.soft = np.zeros((N, 3))

    def __getitem__(self, index: int) -> Any:
        at = self.others[self.order[(index + self.start + SHIFT + Settings.first + 1) % 50]]
        image = self.transform(Image.fromarray(self.data[at]))
        return image, self.targets[index], self.list[at], torch.tensor(self.soft[index]).float(), at


def _label(dataset: Any) -> None:
    dataset.targets = LABELS[::-1].copy()


def _in_place(dataset: Any) -> None:
    dataset.data[:] = 255 - dataset.data


def _transform(dataset: Any) -> None:
    dataset.transform = tvt.Compose([tvt.CenterCrop(7), tvt.ToTensor()])


def _inside(dataset: Any) -> None:
    dataset.transform.transforms[1] = tvt.Normalize((0.1, 0.1, 0.1), (0.5, 0.5, 0.5))


def _of_class(dataset: Any) -> None:
    Shifted.start = 5


def _outside(dataset: Any) -> None:
    globals()["SHIFT"] = 7


def _settings(dataset: Any) -> None:
    Settings.first = 3


def _list(dataset: Any) -> None:
    dataset.list[:] = [-1] * N


def _soft(dataset: Any) -> None:
    dataset.soft[:] = 1


def _order(dataset: Any) -> None:
    dataset.order[:] = dataset.order[::-1].copy()


def _others(dataset: Any) -> None:
    dataset.others.reverse()


def _method(dataset: Any) -> None:
    Shifted.__getitem__ = Own.__getitem__  # type: ignore[method-assign]


CHANGES = [
    _label,
    _in_place,
    _transform,
    _inside,
    _of_class,
    _outside,
    _method,
    _settings,
    _list,
    _soft,
    _order,
    _others,
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("in_the_middle", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_show_as_with_torchs_loader(
    change: Any, in_the_middle: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches(make: Any) -> Any:
        transform = tvt.Compose([tvt.ToTensor(), tvt.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))])
        dataset = Shifted(transform)
        with monkeypatch.context() as patch:
            # What a change sets returns at the end.
            for name in ("start", "__getitem__"):
                patch.setattr(Shifted, name, vars(Shifted)[name])
            patch.setattr(Settings, "first", 0)
            patch.setitem(globals(), "SHIFT", 0)
            assert rows_of(dataset) is not None
            loader, found = make(dataset, 10, num_workers=workers), []
            for _ in range(2):
                for number, batch in enumerate(loader):
                    found.append(batch)
                    if in_the_middle and number == 1 and len(found) == 2:
                        change(dataset)
                if not in_the_middle and len(found) == 5:
                    change(dataset)
        return found

    theirs = batches(data.DataLoader)
    ours = batches(lambda *args, **options: DataLoader(*args, device="cpu", **options))
    # Pixels that are read ahead are those before the change.
    read_ahead = range(2, 5) if in_the_middle and change is _in_place else ()
    assert all(same(one, two) for n, (one, two) in enumerate(zip(theirs, ours, strict=True)) if n not in read_ahead)
    assert not same(theirs[:5], theirs[5:])


def test_whole_batches_of_the_object_are_asked_for() -> None:
    dataset = Own()
    dataset.__getitems__ = lambda indices: [(torch.zeros(1), 0) for _ in indices]  # type: ignore[attr-defined]
    assert rows_of(dataset) is None


def test_no_transforms_in_a_pipeline() -> None:
    dataset = Tensors(TENSORS, tvt.Compose([]))
    with DataLoader(dataset, 8, device="cpu") as loader:
        assert same(list(data.DataLoader(dataset, 8)), list(loader))


COUNT = N


class Counted(Own):
    def __len__(self) -> int:
        return COUNT


def test_another_length_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader(Counted(), 10, device="cpu") as loader:
        assert len(list(loader)) == len(loader) == 5
        monkeypatch.setitem(globals(), "COUNT", 30)
        assert len(loader) == len(list(loader)) == 3


def test_a_loader_of_rows_says_so() -> None:
    made = interop.translate_dataset(Own())
    assert isinstance(made, Dataset) and repr(made) == "Arrays(uint8[50, 12, 10, 3])"
