"""Where DALI's graph ends: on a CPU by cost, on a GPU as late as it can, and before functions everywhere."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("nvidia.dali")

from gpupipe import transforms as T
from gpupipe.engines import Dali
from gpupipe.engines.dali.graph_end import GraphEnd, graph_end
from gpupipe.engines.dali.lowering import LOWERINGS
from gpupipe.engines.dali.lowering.registry import COSTS, Cost
from gpupipe.errors import ConfigError
from gpupipe.pipelines import cifar, dino, imagenet, simclr
from gpupipe.transforms.ops import OPS

TENSOR = [T.ToTensor(), T.Normalize((0.5,), (0.5,))]


def keep(image: Any) -> Any:
    return image


def end(*transforms: Any, whole: bool = False) -> GraphEnd:
    return graph_end(T.Compose(list(transforms)).skeleton, whole=whole)


@pytest.mark.parametrize(
    ("pipeline", "shared"),
    [
        (imagenet.train(), 1),
        (imagenet.train_light(), 1),
        (imagenet.train_strong(), 1),
        (imagenet.val(), 0),
        (simclr.train(), 0),  # several windows of one image
        (dino.train(), 0),
    ],
)
def test_on_a_cpu_it_ends_after_decoding(pipeline: T.Compose, shared: int) -> None:
    found = graph_end(pipeline.skeleton, whole=False)
    assert found == GraphEnd(shared, then_threads=True)


def test_on_a_gpu_it_is_whole() -> None:
    pipeline = imagenet.train()
    assert graph_end(pipeline.skeleton, whole=True) == GraphEnd(len(pipeline.skeleton))
    assert not graph_end(dino.train().skeleton, whole=True).then_threads


def test_small_images_are_cheaper_in_the_graph() -> None:
    assert not graph_end(cifar.train().skeleton, whole=False).then_threads
    steps = [T.RandomHorizontalFlip(), *TENSOR]
    assert end(T.RandomCrop(32), *steps) == GraphEnd(4) and end(T.RandomCrop(512), *steps).then_threads


def test_costs_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from gpupipe.transforms.ops import Invert

    steps = [T.RandomCrop(224), T.RandomInvert(1.0), T.PILToTensor()]
    for dali, shared in ((0.0, 2), (5.0, 1)):
        monkeypatch.setitem(LOWERINGS, Invert, replace(LOWERINGS[Invert], cost=Cost(dali, 1.0, 1.0)))
        assert end(*steps).shared == shared


@pytest.mark.parametrize("whole", [False, True])
def test_a_function_ends_it_on_every_device(whole: bool) -> None:
    found = end(T.RandomResizedCrop(224), keep, *TENSOR, whole=whole)
    assert (found.shared, found.then_threads) == (1, True) and f"{__name__}.keep is a function" in found.why
    assert end(T.Resize(256), T.CenterCrop(224), keep, whole=whole).shared == 0
    views = end(T.MultiView([T.RandomResizedCrop(24), keep], 2), *TENSOR, whole=whole)
    assert views.then_threads and views.shared == 0


def test_what_a_gpu_cannot_do_is_done_on_the_host_and_said() -> None:
    found = end(T.RandomCrop(32, padding=4, padding_mode="reflect"), *TENSOR, whole=True)
    assert found.then_threads and "Crop" in found.why


def test_every_lowering_has_costs() -> None:
    assert all(min(lowering.cost) > 0 for lowering in LOWERINGS.values())
    assert {op.__name__ for op in LOWERINGS} == {*COSTS}
    assert {*LOWERINGS} <= {*OPS}


def test_whole_is_an_option() -> None:
    assert Dali(graph="whole").graph == "whole"
    with pytest.raises(ConfigError, match='must be "auto" or "whole"'):
        Dali(graph="some")
