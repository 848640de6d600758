"""Accelerate lets the loader pass as it is: the same samples, resumed by ``load_state``, in ranks by the shard."""

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

from gpupipe.errors import ConfigError
from gpupipe.planning.order import Shuffle

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def _no_state() -> Iterator[None]:
    """Accelerate keeps its state for the whole process."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def prepared(loader: Any, **arguments: Any) -> tuple[Any, nn.Module, Any, Any]:
    accelerator = accelerate.Accelerator(cpu=True, **arguments)
    net = nn.Linear(3, 1)
    model, optimizer, same = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), loader)
    assert same is loader
    return accelerator, model, optimizer, loader


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


def test_accumulation_counts_on_over_the_end_of_an_epoch() -> None:
    """Of a loader of torch's Accelerate sees the last batch, and updates then too; of others it does not."""
    accelerator, model, optimizer, loader = prepared(make(), gradient_accumulation_steps=2)
    updates = []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                step(accelerator, model, optimizer, batch)
                updates.append(accelerator.sync_gradients)
    assert updates == [False, True] * STEPS


# torch's half-made iterator complains of itself when it goes.
@pytest.mark.filterwarnings("ignore:.*_MultiProcessingDataLoaderIter.__del__:pytest.PytestUnraisableExceptionWarning")
def test_what_would_build_a_loader_of_torchs_is_refused() -> None:
    accelerator, _, _, loader = prepared(make(num_workers=1))
    with pytest.raises(ConfigError, match="load_state_dict"):
        next(iter(accelerate.skip_first_batches(loader, 2)))
    with pytest.raises(ConfigError, match="shard="):
        next(iter(accelerator.prepare_data_loader(loader)))


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
def test_two_ranks(frameworks: Interpreter, tmp_path: Path) -> None:
    ranks = launch(frameworks, Path(__file__).with_name("accelerate_ranks.py"), 2, tmp_path)
    order = Shuffle(N, SEED, 0).at(np.arange(N))[0].tolist()
    steps = list(zip(*(r["trained"] for r in ranks), strict=True))
    assert [i for parts in steps for labels, valid in parts for i in labels[:valid]] == order
    for r in ranks:
        assert r["exact"] == [sum(range(N)), N]
        assert r["gathered"] == N + 1  # with the padding: gather_for_metrics knows nothing of it
        assert r["resumed"] == order[8:]
