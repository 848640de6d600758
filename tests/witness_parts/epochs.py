"""Orders, ranks, resumed epochs and bad samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from gpupipe import Shard, datasets, transforms as T
from gpupipe.pipelines import imagenet

from .case import ALL, EVAL, TRAIN, Case, loader, photos, plain
from .inputs import COUNT, Inputs
from .media import made_of
from .watch import Watch

__all__ = ["bad_samples", "orders", "ranks", "resuming"]


def orders() -> Iterator[Case]:
    def arrays(x: Inputs) -> Any:
        return datasets.Arrays(x.pixels, np.arange(COUNT), transform=TRAIN)

    data = torch.utils.data
    samplers: dict[str, Callable[[], Any]] = {
        "SequentialSampler": lambda: data.SequentialSampler(range(COUNT)),
        "RandomSampler": lambda: data.RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(3)),
        "RandomSampler replacement": lambda: data.RandomSampler(range(COUNT), replacement=True, num_samples=20),
        "SubsetRandomSampler": lambda: data.SubsetRandomSampler([9, 4, 1, 1, 12, 0, 7]),
        "WeightedRandomSampler": lambda: data.WeightedRandomSampler([1.0 + i for i in range(COUNT)], 17),
        "DistributedSampler": lambda: data.DistributedSampler(range(COUNT), 2, 1, seed=4),  # type: ignore[arg-type]
        "list with repeats": lambda: [3, 3, 12, 0, 3, 5, 12],
    }
    for name, make in samplers.items():

        def look(x: Inputs, engine: str, make: Callable[[], Any] = make) -> Watch:
            with loader(arrays(x), engine, sampler=make()) as one:
                return Watch().epochs(one).says(one).facts(one)

        yield Case(f"order/{name}", ("null",), look)

    def batches(x: Inputs, engine: str) -> Watch:
        sampler = data.BatchSampler(data.RandomSampler(range(COUNT)), 4, True)
        with loader(arrays(x), engine, batch_sampler=sampler) as one:
            return Watch().epochs(one).says(one).facts(one)

    def set_epoch(x: Inputs, engine: str) -> Watch:
        with loader(arrays(x), engine) as one:
            watch = Watch()
            for epoch in (7, 0, 7):
                one.set_epoch(epoch)
                watch.epochs(one, 1).says(one)
            one.sampler.set_epoch(3)
            watch.found["sampler"] = [f"{len(one.sampler)}: {' '.join(map(str, one.sampler))}"]
            return watch.epochs(one, 1)

    yield Case("order/BatchSampler", ("null",), batches)
    yield Case("order/set_epoch", ("null", "torch"), set_epoch)
    yield plain("order/drop_last", arrays, ("null", "dali"), facts=True, drop_last=True)
    yield plain("order/in order", arrays, ("null", "torch"), facts=True, shuffle=False, batch_size=4)
    yield plain("order/another seed", arrays, ("null",), facts=True, seed=2**40 + 3)
    yield plain("order/one at a time", arrays, ("null",), facts=True, batch_size=1)
    yield plain("order/larger than the dataset", arrays, ("null",), facts=True, batch_size=100)


def ranks() -> Iterator[Case]:
    for rank, world, drop in ((0, 2, False), (1, 2, False), (0, 2, True), (1, 2, True), (2, 3, False)):
        dropped = " drop_last" if drop else ""
        given: dict[str, Any] = {"shard": Shard(rank, world), "drop_last": drop, "batch_size": 3}
        engines = ALL if world == 2 and not drop else ("null",)
        yield plain(f"ranks/{rank} of {world}{dropped}", photos(TRAIN), engines, facts=True, **given)
    mixed = imagenet.train_strong(32, num_classes=3)
    yield plain("ranks/1 of 2 mixing", photos(mixed), facts=True, shard=Shard(1, 2), batch_size=3)


def resuming() -> Iterator[Case]:
    """After five batches of the second epoch, one at the end, and with another number of ranks."""
    made = {
        f"{k} {name}": m
        for name, t in {"train": TRAIN, "strong": imagenet.train_strong(32, num_classes=13)}.items()
        for k, m in made_of(t).items()
        if k in ("folder", "arrays")
    }
    for name, make in made.items():

        def look(x: Inputs, engine: str, make: Callable[[Inputs], Any] = make) -> Watch:
            watch = Watch()
            with loader(make(x), engine, batch_size=2) as one:
                watch.says(one).epochs(one, 1).says(one)
                iterator = iter(one)
                watch.says(one).steps(iterator, 3).end_epoch()
                watch.says(one)
                middle = one.state_dict()
                watch.steps(iterator, 4).says(one).end_epoch()
                whole = one.state_dict()
            for state in (middle, whole):
                with loader(make(x), engine, batch_size=2) as other:
                    other.load_state_dict(state)
                    watch.says(other).epochs(other, 2).says(other).facts(other)
            return watch

        yield Case(f"resume/{name}", ALL, look)

    def other_world(x: Inputs, engine: str) -> Watch:
        watch = Watch()
        with loader(photos(TRAIN)(x), engine, shard=Shard(1, 2), batch_size=2) as one:
            watch.steps(iter(one), 2).end_epoch()
            state = one.state_dict()
        with loader(photos(TRAIN)(x), engine, batch_size=4) as other:
            other.load_state_dict(state)
            return watch.says(other).epochs(other, 2).says(other)

    yield Case("resume/another number of ranks", ALL, other_world)


def bad_samples() -> Iterator[Case]:
    for on_error in ("raise", "skip", "replace"):
        for name, transform in {"train": TRAIN, "eval": EVAL}.items():

            def folder(x: Inputs, engine: str, on_error: str = on_error, transform: T.Compose = transform) -> Watch:
                root = x.spoiled()
                dataset = datasets.ImageFolder(root, transform)
                x.spoil_more(root)
                return _bad(dataset, engine, on_error)

            yield Case(f"bad/{on_error} folder {name}", ALL, folder)

        def of_ranks(x: Inputs, engine: str, on_error: str = on_error) -> Watch:
            return _bad(datasets.ImageFolder(x.spoiled(), TRAIN), engine, on_error, shard=Shard(0, 2), batch_size=3)

        yield Case(f"bad/{on_error} rank 0 of 2", ("null", "torch"), of_ranks)

    def too_many(x: Inputs, engine: str) -> Watch:
        return _bad(datasets.ImageFolder(x.spoiled(), TRAIN), engine, "skip", max_bad=1)

    def none_left(x: Inputs, engine: str) -> Watch:
        return _bad(datasets.ImageFolder(x.spoiled(), TRAIN), engine, "replace", batch_size=1, shuffle=False)

    yield Case("bad/max_bad", ("null", "torch"), too_many)
    yield Case("bad/replace with nothing left", ("null", "torch"), none_left)


def _bad(dataset: Any, engine: str, on_error: str, **arguments: Any) -> Watch:
    with loader(dataset, engine, on_error=on_error, **arguments) as one:
        return Watch().epochs(one).says(one).facts(one)
