"""torchdata: the loader is ``Stateful``, is saved as its StatefulDataLoader is, and can be a node's source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from records import STEPS, make, plain, record
from support import BATCH, N
from torch.distributed.checkpoint.stateful import Stateful as CheckpointStateful

pytest.importorskip("torchdata")

nodes = pytest.importorskip("torchdata.nodes")
stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls torch's


def theirs() -> Any:
    return stateful_dataloader.StatefulDataLoader(range(N), batch_size=BATCH)


def test_the_loader_is_stateful_in_everybodys_sense() -> None:
    assert isinstance(make(), stateful_dataloader.Stateful)
    assert isinstance(make(), CheckpointStateful)


@pytest.mark.parametrize("done", range(STEPS + 1))
@pytest.mark.parametrize(("loader", "labels"), [(theirs, list), (lambda: make(shuffle=False), lambda b: b[1])])
def test_a_script_for_the_stateful_dataloader_runs_with_ours(
    loader: Callable[[], Any], labels: Callable[[Any], Any], done: int
) -> None:
    """The same rest, and the same next epoch; also after the last batch, whose rest is empty."""
    one, two = loader(), loader()
    iterator = iter(one)
    for _ in range(done):
        next(iterator)
    two.load_state_dict(one.state_dict())
    assert [int(i) for b in two for i in labels(b)] == list(range(min(N, done * BATCH), N))
    assert [int(i) for b in two for i in labels(b)] == list(range(N))


@pytest.mark.parametrize("done", [0, 2, 4])
def test_a_node_saves_and_loads_the_loader_inside(done: int) -> None:
    one, two = nodes.Loader(nodes.IterableWrapper(make())), nodes.Loader(nodes.IterableWrapper(make(seed=99)))
    iterator = iter(one)
    assert [record(next(iterator)) for _ in range(done)] == plain()[0][:done]
    two.load_state_dict(one.state_dict())
    assert [record(b) for b in two] == plain()[0][done:]
