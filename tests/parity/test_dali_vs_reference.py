"""DALI on the CPU against the reference, on the same plans, judged by the one table of tolerances: as it is, and with
the whole graph of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parity_cases import CASES
from parity_measure import hostile
from support import N, from_reference, pictures, plans_of

from gpupipe import transforms as T
from gpupipe.datasets import Arrays, Dataset, ImageFolder
from gpupipe.engines import Dali
from gpupipe.engines.torch.reference import reference
from gpupipe.parity import tolerances
from gpupipe.parity.difference import Difference, difference
from gpupipe.parity.tolerances import check
from gpupipe.pipelines import imagenet

HOSTILE = hostile()
NORMALIZE = T.Normalize(imagenet.MEAN, imagenet.STD)
TENSOR = [T.ToTensor(), NORMALIZE]


def compose(*transforms: Any) -> T.Compose:
    return T.Compose(list(transforms))


PIPELINES: dict[str, T.Compose] = {
    "imagenet train": imagenet.train(56),
    "imagenet val": imagenet.val(48, 56),
    "train bicubic": imagenet.train(56, interpolation="bicubic"),
    "train uint8": imagenet.train(56, dtype="uint8"),
    "train float16": imagenet.train(56, dtype="float16"),
    "train bfloat16": imagenet.train(56, dtype="bfloat16"),
    "train channels_last": imagenet.train(56, memory_format="channels_last"),
    "val uint8 channels_last": imagenet.val(48, 56, dtype="uint8", memory_format="channels_last"),
    "random crop with padding": compose(
        T.RandomCrop(60, padding=20, pad_if_needed=True, fill=(124, 116, 104)), *TENSOR
    ),
    "center of smaller images": compose(T.CenterCrop(100), *TENSOR),
    "pad": compose(T.CenterCrop(40), T.Pad((3, 5), fill=9), *TENSOR),
    "gray 1": compose(T.CenterCrop(48), T.Grayscale(1), T.PILToTensor()),
    "gray 3": compose(T.CenterCrop(48), T.Grayscale(3), *TENSOR),
    "random gray": compose(T.CenterCrop(48), T.RandomGrayscale(0.5), *TENSOR),
    "gray of tensors": compose(T.ToImage(), T.CenterCrop(48), T.Grayscale(3)),
    "flips": compose(T.CenterCrop(48), T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.PILToTensor()),
    "bilinear, fixed size": compose(T.Resize((40, 52)), T.PILToTensor()),
    "bilinear, larger": compose(T.Resize((130, 140)), T.PILToTensor()),
    "bilinear of tensors": compose(T.ToImage(), T.Resize((40, 52)), T.ToDtype("float32", scale=True)),
    "bilinear of floats": compose(T.ToTensor(), T.Resize((40, 52)), NORMALIZE),
    "bicubic": compose(T.Resize((40, 52), interpolation="bicubic"), T.PILToTensor()),
    "lanczos": compose(T.Resize((40, 52), interpolation="lanczos"), T.PILToTensor()),
    "nearest": compose(T.Resize((40, 52), interpolation="nearest"), T.PILToTensor()),
    "without antialias": compose(T.ToImage(), T.Resize((40, 52), antialias=False), T.ToDtype("float32", scale=True)),
    "one pixel after a step of the host": compose(T.ColorJitter(hue=0.1), T.Resize((1, 1)), *TENSOR),
    "one pixel of a tensor": compose(T.ToImage(), T.ColorJitter(hue=0.1), T.Resize((1, 1)), T.ToDtype("float32", True)),
    "resize twice": compose(T.Resize(60), T.RandomCrop(40), T.Resize((24, 24)), *TENSOR),
}


GRAPHS: dict[str, Any] = {"cpu": "dali", "graph": Dali(graph="whole")}
"""As tolerances name them."""


@pytest.fixture(params=GRAPHS)
def graph(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def compare(dataset: Dataset, epochs: int = 1, batch_size: int = 8, graph: str = "cpu") -> Difference:
    return from_reference(dataset, GRAPHS[graph], batch_size, epochs)


def judge(dataset: Dataset, found: Difference, graph: Any = "cpu") -> None:
    promised = tolerances.tolerance("dali/torch", dataset.transform, graph)
    assert promised is not None, "nothing is promised, so nothing was tested"
    broken = check("dali/torch", dataset.transform, found, graph)
    assert not broken, "\n".join([*broken, f"promised: {promised}", f"found: {found.to_dict()}"])


@pytest.mark.part("name", "graph")
@pytest.mark.parametrize("name", PIPELINES)
def test_generated_photographs(name: str, graph: str, numbered: Path) -> None:
    dataset = ImageFolder(numbered, PIPELINES[name])
    found = compare(dataset, epochs=2, graph=graph)
    assert found.images == 2 * N
    judge(dataset, found, graph)


@pytest.mark.parametrize("name", PIPELINES)
def test_arrays(name: str, graph: str) -> None:
    dataset = Arrays(pictures(12, 70, 90), transform=PIPELINES[name])
    judge(dataset, compare(dataset, graph=graph), graph)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("resize") or "tensor" in name])
def test_every_single_hostile_picture_keeps_the_promises(name: str, kind: str, graph: str) -> None:
    for picture in HOSTILE[kind]:
        dataset = Arrays(picture[None], transform=CASES[name]())
        judge(dataset, compare(dataset, batch_size=1, graph=graph), graph)


@pytest.mark.parametrize(
    ("name", "graph"),
    [
        ("imagenet train", "graph"),
        ("imagenet val", "graph"),
        ("flips", "graph"),
        ("bicubic", "graph"),
        ("random crop with padding", "graph"),
        ("imagenet train", "cpu"),
        ("random crop with padding", "cpu"),
    ],
)
def test_real_photographs(name: str, graph: str, shared_data: Path) -> None:
    """Full sizes: several megapixels, gray ones, one with an orientation that is not applied.

    A graph that ends early only decodes, windows or whole images: what comes after it is the reference's own.
    """
    dataset = ImageFolder(shared_data / "images", PIPELINES[name])
    found = compare(dataset, batch_size=16, graph=graph)
    assert found.images == len(dataset) > 100
    judge(dataset, found, graph)


# ---- the tests can fail


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("one level everywhere", lambda x: x + 1 / 255 / 0.229),
        ("one pixel to the side", lambda x: x.roll(1, dims=-1)),
        ("mirrored", lambda x: x.flip(-1)),
        ("two colors exchanged", lambda x: x[:, [2, 1, 0]]),
        ("the batch in another order", lambda x: x.roll(1, dims=0)),
        ("another constant", lambda x: x * (0.229 / 0.225)),
    ],
)
def test_a_wrong_image_is_told(what: str, spoil: Callable[[torch.Tensor], torch.Tensor], numbered: Path) -> None:
    dataset = ImageFolder(numbered, PIPELINES["imagenet train"])
    plan = plans_of(dataset, batch_size=8)[0]
    assert plan.ops is not None and dataset.sizes is not None
    want = reference(dataset, plan, dataset.transform)
    sizes = dataset.sizes[plan.indices]
    judge(dataset, difference(want, want.clone(), plan.ops, sizes))
    with pytest.raises(AssertionError, match="promised at most"):
        judge(dataset, difference(spoil(want), want, plan.ops, sizes))
