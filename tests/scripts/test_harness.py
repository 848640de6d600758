"""The harness itself: with torch's loader it finds nothing, and with loaders that are broken in one way it says so."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader, Dataset, RandomSampler

pytest.importorskip("torchvision")
pytest.importorskip("timm")

from PIL import Image
from torchvision import transforms

from gpupipe.parity.tolerances import Bound, Tolerance

from . import corpus  # noqa: F401 - fills SCRIPTS
from .corpus.common import normalize
from .harness.compare import is_image
from .harness.distributions import Sample, apart
from .harness.judge import Judge, Torchs, Verdict, _engine_problems, _warning_problems
from .harness.ours import Promise
from .harness.record import snapshot
from .harness.script import SCRIPTS
from .harness.tree import N_TRAIN, make_tree, picture

COMPARED = ("runs", "structure", "order", "pixels", "draws", "distribution")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda copies: make_tree(tmp_path_factory.mktemp(f"copies{copies}"), copies))


@pytest.fixture(scope="module")
def torchs() -> Torchs:
    return {}


def problems(judge: Judge, name: str, check: str) -> list[str]:
    """What one check says of one script."""
    script = SCRIPTS[name]
    return judge.distribution(script) if check == "distribution" else judge.verdict(script).problems.get(check, [])


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_imagenet", "torchvision_mixup_collate", "weighted_classes", "detection", "webdataset_shards",
    ],
)  # fmt: skip
def test_torch_differs_from_itself_in_nothing(name: str, tree: Any, torchs: Torchs) -> None:
    judge = Judge(tree, TorchLoader, torchs)
    assert not any(problems(judge, name, check) for check in COMPARED)


class Raises(TorchLoader[Any]):
    def __init__(self, *arguments: Any, **named: Any):
        raise TypeError("not this one")


class Changed(TorchLoader[Any]):
    """Batches, each changed by ``change``."""

    def __iter__(self) -> Any:
        return iter([self.change(batch) for batch in super().__iter__()])

    def change(self, batch: Any) -> Any:
        raise NotImplementedError


class OneShort(TorchLoader[Any]):
    def __iter__(self) -> Any:
        return iter(list(super().__iter__())[:-1])


class WrongLength(TorchLoader[Any]):
    def __len__(self) -> int:
        return super().__len__() + 1


class Tuples(Changed):
    def change(self, batch: Any) -> Any:
        return tuple(batch)


class Halves(Changed):
    def change(self, batch: Any) -> Any:
        return [batch[0].half(), batch[1]]


class LabelsMoved(Changed):
    def change(self, batch: Any) -> Any:
        return [batch[0], batch[1].roll(1)]


class Brighter(Changed):
    def change(self, batch: Any) -> Any:
        return [batch[0] + 0.1, batch[1]]


class GrayTooOften(Changed):
    def change(self, batch: Any) -> Any:
        gray = batch[0].mean(1, keepdim=True).expand_as(batch[0])
        return [torch.where(torch.rand(len(gray), 1, 1, 1) < 0.2, gray, batch[0]), batch[1]]


class SameOrder(TorchLoader[Any]):
    def __init__(self, dataset: Any, **named: Any):
        super().__init__(dataset, **{**named, "shuffle": False})


class WithReplacement(TorchLoader[Any]):
    def __init__(self, dataset: Any, **named: Any):
        sampler = RandomSampler(dataset, replacement=True)
        super().__init__(dataset, **{**named, "shuffle": False, "sampler": sampler})


class SameSeed(TorchLoader[Any]):
    """Every loader draws as every other one, as if none of them advanced torch's generator."""

    def __iter__(self) -> Any:
        torch.manual_seed(torch.initial_seed())
        return super().__iter__()


class SameCrops(TorchLoader[Any]):
    """Another order in every epoch, and for each sample the same crop as in every other one."""

    def __init__(self, dataset: Any, **named: Any):
        super().__init__(CropsBySample(dataset), **named)


class CropsBySample(Dataset[Any]):
    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(index)
            return self.dataset[index]


class Unseeded(TorchLoader[Any]):
    def __iter__(self) -> Any:
        torch.seed()
        return super().__iter__()


class Frozen(TorchLoader[Any]):
    """Looks at its dataset once."""

    def __iter__(self) -> Any:
        if "kept" not in self.__dict__:
            self.kept = copy.deepcopy(self.dataset)
        return iter(TorchLoader(self.kept, self.batch_size, num_workers=0))


class OneIterator(TorchLoader[Any]):
    """A newer iterator ends the older one."""

    newest = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        OneIterator.newest += 1
        return self.batches(OneIterator.newest)

    def batches(self, number: int) -> Iterator[Any]:
        for batch in super().__iter__():
            if number != OneIterator.newest:
                return
            yield batch


class Blocks(TorchLoader[Any]):
    """A rank takes a block when it should take every n-th sample."""

    def __init__(self, dataset: Any, **named: Any):
        n, rank = len(named["sampler"]), named["sampler"].rank
        super().__init__(dataset, **{**named, "sampler": range(rank * n, min(rank * n + n, len(dataset)))})


@pytest.mark.part("check")
@pytest.mark.parametrize(
    ("loader_class", "name", "check"),
    [
        (Raises, "mnist_example", "runs"),
        (OneShort, "mnist_example", "structure"),
        (WrongLength, "mnist_example", "structure"),
        (Tuples, "mnist_example", "structure"),
        (Halves, "mnist_example", "structure"),
        (LabelsMoved, "validation_ranks", "order"),
        (LabelsMoved, "mnist_example", "pixels"),
        (Brighter, "mnist_example", "pixels"),
        (Brighter, "loader_per_epoch", "distribution"),
        (GrayTooOften, "loader_per_epoch", "distribution"),
        (SameOrder, "loader_per_epoch", "draws"),
        (WithReplacement, "loader_per_epoch", "order"),
        (SameSeed, "loader_per_epoch", "draws"),
        (SameSeed, "zip_two_loaders", "draws"),
        (SameCrops, "loader_per_epoch", "draws"),
        (Unseeded, "loader_per_epoch", "draws"),
        (Frozen, "augmentation_off", "pixels"),
        (Frozen, "fewer_samples", "structure"),
        (Frozen, "stronger_jitter", "distribution"),
        (OneIterator, "nested_loops", "structure"),
        (Blocks, "validation_ranks", "order"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else value,
)
def test_what_is_broken_is_found(loader_class: Any, name: str, check: str, tree: Any, torchs: Torchs) -> None:
    assert problems(Judge(tree, loader_class, torchs), name, check)


def test_a_script_that_torch_cannot_run_is_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mnist_example does not run with torch"):
        Judge(lambda copies: tmp_path, TorchLoader).verdict(SCRIPTS["mnist_example"])


@pytest.mark.parametrize(
    ("engines", "problem"),
    [
        (("dali",), ""),
        (("dali", "torch"), "it ran on dali + torch"),
        (("torch",), "it ran on torch"),
        (("unknown",), "it ran on unknown"),
        ((), "it ran on none"),
    ],
)
def test_engine(engines: tuple[str, ...], problem: str) -> None:
    assert ("; ".join(_engine_problems(SCRIPTS["mae"], Verdict(engines=engines)))).startswith(problem)
    assert bool(_engine_problems(SCRIPTS["mae"], Verdict(engines=engines))) == bool(problem)


FALLS_BACK = replace(SCRIPTS["unet"], engine="torch", because=("Carvana",))


def test_engine_torch_is_allowed_to_be_dali() -> None:
    assert _engine_problems(FALLS_BACK, Verdict(engines=("dali",))) == []
    assert _engine_problems(FALLS_BACK, Verdict(engines=("torch",))) == []
    assert _engine_problems(FALLS_BACK, Verdict()) == ["repr says engine nothing"]


@pytest.mark.parametrize(
    ("engine", "messages", "problem"),
    [
        ("dali", (), None),
        ("dali", ("by the way",), "without a reason"),
        ("torch", ("batch_sampler=Carvana(...) is user code",), None),
        ("torch", (), "0 warnings"),
        ("torch", ("batch_sampler=Carvana(...)", "and another"), "2 warnings"),
        ("torch", ("batch_sampler=Carvana(...)\nsecond line",), "has 2 lines"),
        ("torch", ("batch_sampler is user code",), "does not name Carvana"),
        ("torch", ("batch_sampler=<Carvana object at 0x7f3d25a2ab80>",), "names 0x7f3d25a2ab80"),
        ("torch", ("batch_sampler=Carvana: must be Tensor, not StandIn",), "names StandIn"),
    ],
)
def test_warning(engine: str, messages: tuple[str, ...], problem: str | None) -> None:
    script = FALLS_BACK if engine == "torch" else SCRIPTS["mnist_example"]
    found = _warning_problems(script, Verdict(engines=(engine,), messages=messages))
    assert found == [] if problem is None else any(problem in text for text in found)


def test_promise() -> None:
    wanted = np.full((2, 3, 16, 16), 0.5, np.float32)
    inside, border = wanted.copy(), wanted.copy()
    inside[0, 0, 8, 8] += 2 / 255
    border[0, 0, 0, 8] += 2 / 255
    exact = Promise()
    loose = Promise(Tolerance(Bound(1, 0.5), Bound(3, 0.5)), (255.0,))
    assert exact.broken(wanted, wanted) == loose.broken(wanted, wanted) == []
    assert exact.broken(border, wanted) and exact.broken(inside, wanted)
    assert loose.broken(border, wanted) == []
    assert loose.broken(inside, wanted) == ["inside they differ by up to 2 levels, promised are 1"]
    assert "on average" in loose.broken(wanted + np.float32(0.9 / 255), wanted)[0]


def test_snapshot() -> None:
    batch: list[Any] = [torch.zeros(2, 3, 4, 4), {"names": ["a", "b"], "n": 3}, (None, np.zeros(2, np.int64))]
    taken = snapshot(batch)
    assert taken.form == "[f32[2, 3, 4, 4], {'names': [str × 2], 'n': int}, (None, np.i64[2])]"
    assert list(taken.leaves) == ["[0]", "[1]['names']", "[1]['n']", "[2][0]", "[2][1]"]
    batch[0].fill_(1)
    assert not taken.leaves["[0]"].any(), "a batch may be written over after it was handed out"


def test_what_counts_as_pixels() -> None:
    assert is_image(np.zeros((2, 3, 8, 8), np.float32)) and is_image(np.zeros((3, 8, 8), np.uint8))
    assert not is_image(np.zeros((2, 8, 8), np.int64)) and not is_image(np.zeros((2, 3, 4, 4), np.float32))


def sample(seed: int, *, named: bool, gain: float = 1.0) -> Sample:
    """24 copies of 12 pictures of noise around a level of their own, in batches of 8."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(np.repeat(np.arange(12), 24))
    values = names[:, None, None, None] / 12 + gain * 0.2 * rng.standard_normal((len(names), 3, 1, 1))
    pixels = values + 0.05 * rng.standard_normal((len(names), 3, 8, 8))
    return Sample(pixels.astype(np.float32), np.arange(len(names)) // 8, names if named else None)


@pytest.mark.parametrize("named", [True, False])
def test_distributions(named: bool) -> None:
    for seed in range(20):
        assert apart(sample(seed, named=named), sample(100 + seed, named=named)) == []
    wider = apart(sample(0, named=True), sample(1, named=True, gain=1.5))
    assert any("spread" in text for text in wider)
    shifted = sample(1, named=named)
    assert apart(sample(0, named=named), Sample(shifted.values + 0.3, shifted.batches, shifted.names))


@lru_cache(2)
def augmented(steps: tuple[Any, ...], seed: int) -> Sample:
    """36 pictures, twelve times each."""
    transform = transforms.Compose([*steps, transforms.ToTensor(), normalize])
    torch.manual_seed(seed)
    pictures = [Image.fromarray(picture(i)) for i in range(N_TRAIN)] * 12
    pixels = np.stack([transform(image).numpy() for image in pictures])
    return Sample(pixels, np.arange(len(pixels)) // 8, np.tile(np.arange(N_TRAIN), 12))


CROP = transforms.RandomResizedCrop(32)
CENTER = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32)])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("steps", "others"),
    [
        ([CROP], [transforms.RandomResizedCrop(32, scale=(0.2, 1.0))]),
        ([CROP], [transforms.RandomResizedCrop(32, ratio=(0.5, 2.0))]),
        ([CROP], [transforms.RandomResizedCrop(32, interpolation=transforms.InterpolationMode.NEAREST)]),
        ([CROP, transforms.RandomHorizontalFlip(0.5)], [CROP, transforms.RandomHorizontalFlip(0.25)]),
        ([CROP, transforms.RandomGrayscale(0.2)], [CROP, transforms.RandomGrayscale(0.4)]),
        ([CROP, transforms.RandomSolarize(128, 0.1)], [CROP, transforms.RandomSolarize(128, 0.25)]),
        ([CENTER, transforms.ColorJitter(0.4)], [CENTER, transforms.ColorJitter(0.6)]),
        ([CENTER, transforms.ColorJitter(0, 0.4)], [CENTER, transforms.ColorJitter(0, 0.6)]),
        ([CENTER, transforms.ColorJitter(0, 0, 0.4)], [CENTER, transforms.ColorJitter(0, 0, 0.8)]),
        ([CENTER, transforms.ColorJitter(0, 0, 0, 0.1)], [CENTER, transforms.ColorJitter(0, 0, 0, 0.2)]),
        ([CENTER, transforms.GaussianBlur(5, (0.1, 2.0))], [CENTER, transforms.GaussianBlur(5, (0.1, 1.0))]),
        ([CENTER, transforms.RandomRotation(10)], [CENTER, transforms.RandomRotation(20)]),
    ],
    ids=["scale", "ratio", "filter", "flip", "gray", "solarize", "brightness", "contrast", "saturation", "hue", "blur",
         "rotation"],
)  # fmt: skip
def test_distributions_see(steps: list[Any], others: list[Any]) -> None:
    """What 432 images of each side are enough for."""
    reference = augmented(tuple(steps), 0)
    assert apart(reference, augmented(tuple(steps), 1)) == []
    assert apart(reference, augmented.__wrapped__(tuple(others), 2))
