"""Views, containers, functions and mixing through the loader, in both engines."""

from __future__ import annotations

import multiprocessing
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    BATCH,
    SEED,
    Case,
    N,
    all_seen,
    cut_pixels,
    make_dataset,
    outcomes,
    plans_of,
    resolved,
    write_photos,
)
from torch import Tensor

from gpupipe import DataLoader, SampleError, transforms as T
from gpupipe.datasets import Arrays, ImageFolder
from gpupipe.engines.mixing import mix
from gpupipe.engines.torch.reference import reference
from gpupipe.errors import ConfigError, PipelineError

VIEWS = T.Compose(
    [
        T.RandomHorizontalFlip(),
        T.MultiView([[T.RandomResizedCrop(32)], [T.RandomResizedCrop(16), T.RandomVerticalFlip()]]),
        T.ToTensor(),
        T.Normalize((0.5,), (0.25,)),
    ]
)
SOME = T.Compose(
    [
        T.RandomApply([T.Resize((48, 48)), T.RandomVerticalFlip()], p=0.5),
        T.RandomChoice([T.CenterCrop(40), [T.Resize((40, 40)), T.RandomGrayscale(0.5)]]),
        T.RandomHorizontalFlip(),
        T.RandomResizedCrop(40, scale=(0.5, 1.0)),
        T.PILToTensor(),
    ]
)
MIXED = T.Compose(
    [
        T.RandomResizedCrop(24),
        T.ToTensor(),
        T.RandomChoice([T.MixUp(num_classes=N), T.CutMix(alpha=0.5, num_classes=N)]),
    ]
)


def sizes_at(case: Case, plan: Any) -> Any:
    """Height and width of a plan's samples, also where only reading tells."""
    kind = "arrays" if case.kind == "arrays" else "folder"
    sizes = Case("torch", kind, "cpu", case.root).dataset().sizes
    assert sizes is not None
    return sizes[plan.indices]


def levels(images: Any, dataset: Any, plan: Any, scale: float) -> float:
    """The largest mean difference of an image from the reference, in gray levels."""
    want = reference(dataset, plan, dataset.transform)
    pairs = zip(images, want, strict=True) if isinstance(images, tuple) else [(images, want)]
    worst = 0.0
    for got, reference_ in pairs:
        assert got.shape == reference_.shape and got.dtype == reference_.dtype
        apart = (got.cpu().double() - reference_.double()).abs() * scale
        worst = max(worst, float(apart.mean(dim=(1, 2, 3)).max()))
    return worst


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest) -> None:
    case = request.getfixturevalue("decoding") if "decoding" in request.fixturenames else None
    if case is not None and case.device == "cuda":
        pytest.skip("tests/gpu compares with bounds")


# ---- views


def test_a_batch_of_views(decoding: Case) -> None:
    dataset = decoding.dataset(VIEWS)
    for batch, plan in zip(decoding.loader(dataset), plans_of(dataset), strict=True):
        assert type(batch) is list and type(batch[0]) is tuple and len(batch) == 2
        images, target = batch
        n = len(plan)
        assert [tuple(view.shape) for view in images] == [(n, 3, 32, 32), (n, 3, 16, 16)]
        assert all(view.is_contiguous() and view.dtype == torch.float32 for view in images)
        assert target.tolist() == plan.indices.tolist()
        plan = resolved(dataset, plan, sizes_at(decoding, plan))
        assert levels(images, dataset, plan, 0.25 * 255) < (0.5 if decoding.engine == "dali" else 1e-9)


def test_views_without_labels(device: str) -> None:
    pixels = np.zeros((3, 40, 40, 3), np.uint8)
    for engine in ("torch", "dali"):
        loader: Any = DataLoader(Arrays(pixels, transform=VIEWS), batch_size=2, engine=engine, device=device)
        batch = next(iter(loader))
        loader.close()
        assert type(batch) is tuple and [view.shape[2] for view in batch] == [32, 16]


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    root = write_photos(tmp_path / "photos")
    ImageFolder(root)  # the index is made of good files
    for i in (3, 11):
        cut_pixels(root / f"class{i:03d}" / "photo.jpg")
    return root


@pytest.mark.parametrize("pipeline", [VIEWS, MIXED, SOME], ids=["views", "mixed", "some"])
@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_bad_samples_follow_the_policy(engine: Any, pipeline: T.Compose, spoiled: Path) -> None:
    dataset = ImageFolder(spoiled, pipeline)
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "engine": engine, "device": "cpu", "seed": SEED}
    with DataLoader(dataset, on_error="skip", **common) as loader:
        for _ in range(2):
            batches = list(loader)
            assert sum(len(batch[1]) for batch in batches) == N - 2
            for images, target in batches:
                for view in images if isinstance(images, tuple) else (images,):
                    assert len(view) == len(target)
        assert {s.index for s in loader.report().samples} == {3, 11}
    with DataLoader(dataset, on_error="replace", **common) as loader:
        assert sum(len(batch[1]) for batch in loader) == N
    with DataLoader(dataset, **common) as loader:
        found = list(outcomes(loader))
        bad = sum(len(one.samples) for one in found if isinstance(one, SampleError))
        assert bad == 2 and 0 < sum(len(one[1]) for one in found if not isinstance(one, SampleError)) < N


# ---- containers


def test_containers(decoding: Case) -> None:
    dataset = decoding.dataset(SOME)
    for (images, target), plan in zip(decoding.loader(dataset), plans_of(dataset), strict=True):
        assert images.shape == (len(plan), 3, 40, 40) and target.tolist() == plan.indices.tolist()
        plan = resolved(dataset, plan, sizes_at(decoding, plan))
        assert levels(images, dataset, plan, 1.0) < (1.0 if decoding.engine == "dali" else 1e-9)


# ---- functions


class Draws:
    """Paints each image in a color that it draws."""

    def __call__(self, image: Any) -> Any:
        color = [random.randrange(256), int(np.random.randint(256)), int(torch.randint(256, ()))]  # noqa: NPY002
        image.paste(tuple(color), (0, 0, image.width, image.height))
        return image


PAINT = T.Compose([T.CenterCrop(24), Draws(), T.RandomHorizontalFlip(), T.PILToTensor()])


@pytest.mark.parametrize("kind", ["folder", "arrays"])
def test_functions_draw_the_same_in_any_process_and_engine(kind: str, numbered: Path, rng_untouched: None) -> None:
    dataset = make_dataset(kind, numbered, PAINT)
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "device": "cpu", "seed": SEED}
    epochs = []
    for engine, workers in (("torch", 0), ("torch", 2), ("dali", 0), ("dali", 2)):
        with DataLoader(dataset, num_workers=workers, engine=engine, **common) as loader:
            epochs.append([list(loader), list(loader)])
    for other in epochs[1:]:
        for one, two in zip(epochs[0], other, strict=True):
            assert all(torch.equal(a[0], b[0]) for a, b in zip(one, two, strict=True))
    colors = {tuple(image[:, 0, 0].tolist()) for batch in epochs[0][0] for image in batch[0]}
    again = {tuple(image[:, 0, 0].tolist()) for batch in epochs[0][1] for image in batch[0]}
    assert len(colors) == N and not colors & again
    other_batches: list[Any] = []
    with DataLoader(dataset, engine="torch", **{**common, "batch_size": 3}) as loader:
        other_batches = list(loader)
    assert {tuple(image[:, 0, 0].tolist()) for batch in other_batches for image in batch[0]} == colors


def _shaken(image: Any) -> Any:
    return image.transpose(0) if random.random() < 0.5 else image


def _grain(x: Tensor) -> Tensor:
    return x + torch.rand(x.shape)


IN_THE_MIDDLE: dict[str, list[Any]] = {
    "first": [_shaken, T.RandomResizedCrop(24), T.ToTensor()],
    "after a window": [T.RandomCrop(24), _shaken, T.RandomHorizontalFlip(), T.ToTensor(), T.RandomErasing(0.5)],
    "after a resize": [T.RandomResizedCrop(24), _shaken, T.ColorJitter(0.4, 0.4), T.PILToTensor()],
    "two of them": [T.Resize(30), _shaken, T.RandomCrop(24), Draws(), T.ToTensor(), T.Normalize((0.5,), (0.5,))],
    "of tensors": [T.RandomCrop(24), T.ToTensor(), _grain, T.RandomVerticalFlip(), T.ToDtype("float16")],
    "at times": [T.RandomCrop(24), T.RandomApply([T.Lambda(_shaken), T.RandomInvert()], 0.6), T.PILToTensor()],
    "in views": [T.MultiView([T.RandomResizedCrop(24), _shaken], 2), T.PILToTensor()],
}


@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("name", IN_THE_MIDDLE)
def test_functions_in_the_middle(name: str, memory_format: str, numbered: Path, rng_untouched: None) -> None:
    pytest.importorskip("nvidia.dali")
    dataset = make_dataset("folder", numbered, T.Compose(IN_THE_MIDDLE[name], memory_format=memory_format))
    made = []
    for engine in ("dali", "torch"):
        with DataLoader(
            dataset, BATCH, shuffle=True, seed=SEED, engine=engine, device="cpu", num_workers=2 * (engine == "dali")
        ) as loader:
            made.append([images if isinstance(images, tuple) else (images,) for images, _ in loader])
    for got, want in zip(*made, strict=True):
        for x, y in zip(got, want, strict=True):
            assert torch.equal(x, y) and x.dtype == y.dtype and x.stride() == y.stride()


def test_functions_run_in_the_thread_that_asks_and_in_order(numbered: Path) -> None:
    pytest.importorskip("nvidia.dali")
    seen: list[tuple[str, int]] = []

    def look(image: Any) -> Any:
        seen.append((threading.current_thread().name, torch.initial_seed()))
        return image

    pipeline = T.Compose([T.RandomCrop(24), T.Lambda(look), T.RandomHorizontalFlip(), T.Lambda(look), T.ToTensor()])
    orders = []
    for engine in ("dali", "torch"):
        seen.clear()
        dataset = make_dataset("folder", numbered, pipeline)
        with DataLoader(dataset, BATCH, engine=engine, device="cpu", seed=SEED) as loader:
            for count, _ in enumerate(loader, 1):
                assert len(seen) == min(2 * BATCH * count, 2 * N)  # none for a batch that was not asked for
        assert {name for name, _ in seen} == {threading.current_thread().name}
        orders.append([seed for _, seed in seen])
    assert orders[0] == orders[1] and len(set(orders[0])) == 2 * N


@pytest.mark.filterwarnings("error::gpupipe.GpupipeWarning")
def test_auto_takes_dali_for_a_function_and_says_what_the_host_does(numbered: Path) -> None:
    pytest.importorskip("nvidia.dali")
    dataset = make_dataset("folder", numbered, PAINT)
    with DataLoader(dataset, batch_size=BATCH, device="cpu") as loader:
        iterator = iter(loader)
        next(iterator)
        assert "engine: dali (auto: " in repr(loader)
        assert f"on the host Crop + {__name__}.Draws + Flip, " in repr(loader)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_functions_that_cannot_be_sent_are_refused(method: str, numbered: Path) -> None:
    dataset = make_dataset("folder", numbered, T.Compose([T.CenterCrop(24), lambda image: image, T.PILToTensor()]))
    common: dict[str, Any] = {"engine": "torch", "device": "cpu", "multiprocessing_context": method}
    with pytest.raises(ConfigError, match=rf"<lambda>:\d+ cannot be sent to worker processes.*{method}.*num_workers=0"):
        DataLoader(dataset, num_workers=1, **common)
    context = multiprocessing.get_context(method)
    with pytest.raises(ConfigError, match="cannot be sent"):
        DataLoader(dataset, num_workers=1, **{**common, "multiprocessing_context": context})
    DataLoader(dataset, num_workers=1, **{**common, "multiprocessing_context": "fork"})
    DataLoader(make_dataset("folder", numbered, PAINT), num_workers=1, **common)


def test_a_function_that_fails_in_a_worker_is_named(numbered: Path) -> None:
    dataset = make_dataset("folder", numbered, T.Compose([T.CenterCrop(24), lambda x: x.resize((3, 3))]))
    with (
        DataLoader(dataset, batch_size=BATCH, num_workers=1, engine="torch", device="cpu") as loader,
        pytest.raises(PipelineError, match=r"<lambda>:\d+ must keep kind, size and data type"),
    ):
        list(loader)


# ---- mixing


@pytest.fixture
def wanted() -> Any:
    def make(images: Tensor, plan: Any) -> tuple[Tensor, Tensor]:
        assert plan.ops is not None
        return mix(images, torch.from_numpy(plan.indices), plan.mixing)

    return make


def test_mixed_batches(decoding: Case, wanted: Any) -> None:
    dataset = decoding.dataset(MIXED)
    kinds = set()
    for (images, target), plan in zip(decoding.loader(dataset), plans_of(dataset), strict=True):
        plan = resolved(dataset, plan, sizes_at(decoding, plan))
        clean = reference(dataset, plan, dataset.transform)
        want, shares = wanted(clean, plan)
        assert torch.equal(target, shares) and target.shape == (len(plan), N)
        assert ((images - want).abs().mean() * 255) < (0.5 if decoding.engine == "dali" else 1e-9)
        kinds.add(torch.equal(want, clean))
    assert kinds == {False}


def test_mixing_leaves_the_null_engine_its_plans(numbered: Path) -> None:
    with DataLoader(make_dataset("folder", numbered, MIXED), batch_size=BATCH, engine="null", device="cpu") as loader:
        assert all_seen(loader) == list(range(N))


def test_ranks_mix_their_own_batches(numbered: Path, wanted: Any) -> None:
    from gpupipe import Shard

    dataset = make_dataset("folder", numbered, MIXED)
    factors = []
    for rank in range(2):
        shard = Shard(rank, 2)
        common: dict[str, Any] = {"batch_size": BATCH, "engine": "torch", "device": "cpu", "seed": SEED}
        with DataLoader(dataset, shuffle=True, shard=shard, **common) as loader:
            for (images, target), plan in zip(loader, plans_of(dataset, shard=shard), strict=True):
                want, shares = wanted(reference(dataset, plan, dataset.transform), plan)
                assert torch.equal(images, want) and torch.equal(target, shares)
                factors.append(float(target[0].max()))
    assert len(set(factors)) == len(factors)
