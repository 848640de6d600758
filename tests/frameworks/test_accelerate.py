"""Accelerate iterates over the loader itself: the same samples, resumed by ``load_state``, in ranks by the shard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from interpreter import Interpreter
from launch import launch
from records import EPOCHS, STEPS, features, make, plain, record
from support import SEED, N
from torch import nn
from torch.utils.data import DataLoader as TorchLoader, TensorDataset

from gpupipe import DataLoader, GpupipeWarning, Shard
from gpupipe.errors import ConfigError
from gpupipe.planning.order import Shuffle

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def _no_state() -> Iterator[None]:
    """Accelerate keeps its state for the whole process."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def prepared(loader: Any, same: bool = True, **arguments: Any) -> tuple[Any, nn.Module, Any, Any]:
    accelerator = accelerate.Accelerator(cpu=True, **arguments)
    net = nn.Linear(3, 1)
    model, optimizer, ours = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), loader)
    assert ours is loader or not same
    return accelerator, model, optimizer, ours


def step(accelerator: Any, model: nn.Module, optimizer: Any, batch: Any) -> None:
    accelerator.backward(model(features(batch[0])).mean())
    optimizer.step()
    optimizer.zero_grad()


def test_a_prepared_loader_sees_what_a_plain_loop_sees() -> None:
    accelerator, model, optimizer, loader = prepared(make())
    seen = []
    for _ in range(EPOCHS):
        seen.append([])
        for batch in loader:
            step(accelerator, model, optimizer, batch)
            seen[-1].append(record(batch))
    assert seen == plain()


@pytest.mark.parametrize("done", [1, 3, STEPS])
def test_save_state_and_load_state_go_on_with_the_very_next_batch(tmp_path: Path, done: int) -> None:
    accelerator, model, optimizer, loader = prepared(make())
    accelerator.register_for_checkpointing(loader)
    list(loader)
    for i, batch in enumerate(loader, start=1):
        step(accelerator, model, optimizer, batch)
        if i == done:
            accelerator.save_state(str(tmp_path))
            break
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)

    accelerator, model, optimizer, loader = prepared(make(seed=99))
    accelerator.register_for_checkpointing(loader)
    accelerator.load_state(str(tmp_path))
    assert loader.state_dict()["epoch"] == 1
    assert [record(b) for b in loader] == plain()[1][done:]
    assert [record(b) for b in loader] == plain()[2]


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_accumulation_ends_with_the_epoch_as_with_a_loader_of_torchs(drop_last: bool) -> None:
    def updates(loader: Any) -> list[bool]:
        accelerator, model, optimizer, loader = prepared(loader, same=False, gradient_accumulation_steps=2)
        found = []
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate(model):
                    step(accelerator, model, optimizer, batch)
                    found.append(accelerator.sync_gradients)
        return found

    theirs = TorchLoader(TensorDataset(torch.rand(N, 3, 2, 2)), batch_size=5, drop_last=drop_last)
    ours = updates(make(drop_last=drop_last))
    assert ours == updates(theirs)
    assert ours == 2 * ([False, True] * 2 + [True] * (not drop_last))


def test_sizes_that_scripts_print_are_those_of_a_loader_of_torchs() -> None:
    _, _, _, theirs = prepared(TorchLoader(TensorDataset(torch.rand(N, 3, 2, 2)), batch_size=5), same=False)
    _, _, _, ours = prepared(make(batch_size=5))
    for name in ("total_batch_size", "total_dataset_length"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert make(batch_size=5, shard=Shard(0, 2)).total_batch_size == 10
    assert make(batch_size=1, global_batch_size=10).total_batch_size == 10


def test_a_loop_within_a_loop_and_one_that_was_left_are_counted_apart() -> None:
    accelerator, _, _, loader = prepared(make())
    val = accelerator.prepare(make(shuffle=False))
    ends = []
    for i, _ in enumerate(loader):
        for j, _ in enumerate(val):
            ends.append((i, j, accelerator.gradient_state.end_of_dataloader))
            if i == 1:
                break
        ends.append((i, -1, accelerator.gradient_state.end_of_dataloader))
    assert [(i, j) for i, j, end in ends if end] == [(0, STEPS - 1), (2, STEPS - 1), (3, STEPS - 1), (4, 4), (4, -1)]
    assert not accelerator.gradient_state.in_dataloader


def test_metrics_have_every_sample_once() -> None:
    accelerator, _, _, loader = prepared(make(shuffle=False))
    gathered = [accelerator.gather_for_metrics(target).tolist() for _, target in loader]
    assert [i for batch in gathered for i in batch] == list(range(N))


def test_a_live_loader_gives_what_torchs_gives() -> None:
    data = TensorDataset(torch.arange(float(N)).reshape(N, 1))
    found = []
    for cls in (TorchLoader, DataLoader):
        torch.manual_seed(3)
        accelerator = accelerate.Accelerator(cpu=True)
        found.append([batch[0].tolist() for batch in accelerator.prepare(cls(data, batch_size=5, shuffle=True))])
    assert found[0] == found[1]
    assert sorted(i for batch in found[0] for (i,) in batch) == list(range(N))


@pytest.mark.parametrize("shard", [None, Shard(0, 2)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_accelerate_is_told_which_batch_of_a_live_loader_is_the_last(shard: Shard | None, drop_last: bool) -> None:
    data = TensorDataset(torch.arange(float(N)).reshape(N, 1))
    accelerator = accelerate.Accelerator(cpu=True)
    loader = accelerator.prepare(
        DataLoader(data, batch_size=4, drop_last=drop_last, shard=shard, device="cpu", seed=1 if shard else None)
    )
    size = 4 * (shard or Shard()).world_size
    for _ in range(2):
        state = accelerator.gradient_state
        told = [(state.end_of_dataloader, state.remainder) for _ in loader]
        assert told == [(False, -1)] * (len(loader) - 1) + [(True, 0 if drop_last else N % size)]


def test_processes_that_would_all_see_everything_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    everywhere, cut = make(shard=Shard()), make(shard=Shard(0, 2))
    with monkeypatch.context() as patch:
        patch.setitem(accelerate.state.PartialState._shared_state, "num_processes", 2)
        with pytest.raises(ConfigError, match="process_index"):
            accelerator.prepare(make(shard=None))
        assert accelerator.prepare(everywhere) is everywhere and accelerator.prepare(cut) is cut


def test_what_builds_a_loader_of_torchs_from_the_batches_is_told() -> None:
    _, _, _, loader = prepared(make())
    # torch's own loader, one sample after another: transformed, and by other random numbers.
    with pytest.warns(GpupipeWarning, match="read-by-torch"):
        images, target = next(iter(accelerate.skip_first_batches(loader, 2)))
    assert images.shape == next(iter(loader))[0].shape and len(target) == len(images)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["planned", "planned with a seed", "live"])
def test_skipping_batches_after_a_restart_gives_the_rest_with_a_seed(kind: str, workers: int) -> None:
    """``torch.manual_seed`` before each, as scripts do."""

    def loader() -> Any:
        torch.manual_seed(5)
        data = TensorDataset(torch.zeros(N, 3, 2, 2), torch.arange(N)) if kind == "live" else None
        seed = SEED if kind == "planned with a seed" else None
        options = {"seed": seed, "num_workers": workers, "shuffle": True, "device": "cpu"}
        made = make(engine="auto", **options) if data is None else DataLoader(data, 4, **options)
        return prepared(made)[3]

    whole = [batch[1].tolist() for batch in loader()]
    rest = [batch[1].tolist() for batch in accelerate.skip_first_batches(loader(), 3)]
    assert (rest == whole[3:]) is (kind != "planned")


@pytest.mark.thorough
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
def test_two_ranks(frameworks: Interpreter, tmp_path: Path) -> None:
    ranks = launch(frameworks, Path(__file__).with_name("accelerate_ranks.py"), 2, tmp_path)
    order = Shuffle(N, SEED, 0).at(np.arange(N))[0].tolist()
    steps = list(zip(*(r["trained"] for r in ranks), strict=True))
    assert [i for parts in steps for labels, valid in parts for i in labels[:valid]] == order
    for r in ranks:
        assert r["exact"] == [sum(range(N)), N]
        assert r["gathered"] == list(range(N))  # without the padding of the last batch
        assert r["resumed"] == order[8:]
