"""Clips of videos: which frames they take, and everything that is done to images."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from gpupipe import datasets, transforms as T
from gpupipe.pipelines import kinetics

from .case import ALL, Case, loader, plain
from .inputs import Inputs
from .watch import Watch

__all__ = ["clips"]


def clips() -> Iterator[Case]:
    train = kinetics.train(24)
    exact = [T.RandomCrop(24), T.RandomHorizontalFlip(), T.PILToTensor()]
    made: dict[str, tuple[Any, dict[str, Any]]] = {
        "train": (train, {"stride": 3}),
        "val uniform": (kinetics.val(24, 32), {"stride": 2, "clips": 3, "sampling": "uniform"}),
        "fps": (exact, {"fps": 10, "padding": "loop"}),
        "fps uniform": (exact, {"fps": 7.5, "clips": 2, "sampling": "uniform"}),
        "segments": (exact, {"sampling": "segments"}),
        "segment_middles": (exact, {"sampling": "segment_middles", "clips": 2}),
        "skip": (exact, {"stride": 2, "padding": "skip"}),
        "TCHW": (train, {"layout": "TCHW"}),
        "upright": (exact, {"upright": True}),
        "mixing": (T.Compose([*train, T.RandomChoice([T.MixUp(num_classes=9), T.CutMix(num_classes=9)])]), {}),
        "views": ([T.CenterCrop(32), T.MultiView([T.RandomCrop(16), T.ToTensor()], 2)], {}),
        "policy": ([T.RandomCrop(24), T.RandAugment(), T.ToTensor(), T.RandomErasing(0.5)], {}),
    }
    for dtype, memory, layout in itertools.product(
        ("uint8", "float16"), ("contiguous_format", "channels_last"), ("CTHW", "TCHW")
    ):
        made[f"{dtype} {memory} {layout}"] = (kinetics.train(24, dtype=dtype, memory_format=memory), {"layout": layout})
    for name, (transform, options) in made.items():

        def make(x: Inputs, transform: Any = transform, options: dict[str, Any] = options) -> Any:
            given = {"frames": 4, "labels": list(range(6)), "transform": transform, **options}
            return datasets.VideoList(x.good_videos, **given)

        yield plain(f"clips/list {name}", make, facts=name in ("train", "val uniform", "skip"), batch_size=3)
    for on_error in ("raise", "skip", "replace"):

        def folder(x: Inputs, engine: str, on_error: str = on_error) -> Watch:
            dataset = datasets.VideoFolder(x.videos, 4, stride=2, clips=2, transform=train)
            with loader(dataset, engine, on_error=on_error, batch_size=4) as one:
                return Watch().says(one).epochs(one).says(one).facts(one)

        yield Case(f"clips/folder {on_error}", (*ALL, "torch-2"), folder)

    def resumed(x: Inputs, engine: str) -> Watch:
        watch = Watch()
        dataset = datasets.VideoList(x.good_videos, 4, stride=2, transform=train, labels=list("aabbcc"))
        with loader(dataset, engine, batch_size=2) as one:
            watch.steps(iter(one), 2).end_epoch()
            state = one.state_dict()
        with loader(dataset, engine, batch_size=2) as other:
            other.load_state_dict(state)
            return watch.epochs(other, 2).says(other).facts(other)

    yield Case("clips/resume", ALL, resumed)
