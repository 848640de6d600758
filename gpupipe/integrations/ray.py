"""Ray: the loader's state in checkpoints of Ray Train, and notices that a machine will be taken away.

The functions work in the training function of a ``TorchTrainer``::

    def train(config):
        world = gpupipe.World.here()
        loader = DataLoader(
            dataset, global_batch_size=256, shuffle=True, drop_last=True, seed=0, shard=world.shard, device=world.device
        )
        model = ray.train.torch.prepare_model(net)
        restore(loader=loader, model=model, optimizer=optimizer)
        for epoch in range(loader.state_dict()["epoch"], epochs):
            for step, (images, labels) in enumerate(loader):
                ...
                if step % 500 == 0 or preemption_notice():
                    report({"loss": loss}, loader=loader, model=model, optimizer=optimizer)

Leave ``prepare_data_loader`` out: the batches are this worker's and on its device already.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import ConfigError, StateError

if TYPE_CHECKING:
    from ray.train import PreemptionInfo

__all__ = ["preemption_notice", "report", "restore"]

_FILE = "gpupipe.pt"
_noticed: set[str] = set()
"""Machines that Ray has announced to take away."""


class Stateful(Protocol):
    """A loader, model, optimizer, scheduler, or anything else with these two methods."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def report(metrics: dict[str, Any], **parts: Stateful) -> None:
    """Report metrics and a checkpoint with the states of all parts. Call it on all workers.

    Worker 0 writes the states, so for a model that is sharded over the workers, save with
    ``torch.distributed.checkpoint`` and put ``loader.state_dict()`` into that checkpoint instead.

    Args:
        metrics: passed to ``ray.train.report``.
        parts: what :func:`restore` will get under the same names. A ``DistributedDataParallel`` is saved without its
            wrapper, so the checkpoint fits any number of workers.
    """
    import ray.train

    states = {name: _unwrapped(name, part) for name, part in parts.items()}
    if ray.train.get_context().get_world_rank():
        ray.train.report(metrics, checkpoint=None)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save({name: part.state_dict() for name, part in states.items()}, Path(folder) / _FILE)
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def restore(**parts: Stateful) -> bool:
    """Load the parts from the latest checkpoint of this run. Call it on all workers, before the first batch.

    The workers may be more or fewer than those that saved it.

    Returns:
        ``False`` if there is no checkpoint yet.

    Raises:
        StateError: :func:`report` did not write the checkpoint, or got other parts.
    """
    import ray.train

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return False
    with checkpoint.as_directory() as folder:
        file = Path(folder) / _FILE
        if not file.exists():
            raise StateError(f"{checkpoint}: no {_FILE}; save it with gpupipe.integrations.ray.report()")
        states = torch.load(file, map_location="cpu", weights_only=True)
    if states.keys() != parts.keys():
        raise StateError(
            f"{checkpoint} holds {', '.join(sorted(states))}, and restore() got {', '.join(sorted(parts))}; pass the "
            "same names to report() and restore()"
        )
    for name, part in parts.items():
        _unwrapped(name, part).load_state_dict(states[name])
    return True


def preemption_notice() -> PreemptionInfo | None:
    """Return what Ray says about machines of this run that will be taken away, once for each of them.

    Call :func:`report` then: the run continues from that checkpoint. All workers must call this equally often and get
    the same answer, which takes a message to an actor, so ask in every step only if steps are long.
    """
    import ray.train

    info = ray.train.get_preemption_info()
    if info is None or _noticed.issuperset(info.preempted_node_ids):
        return None
    _noticed.update(info.preempted_node_ids)
    return info


def _unwrapped(name: str, part: Any) -> Stateful:
    if isinstance(part, DistributedDataParallel):
        part = part.module
    if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
        raise ConfigError(f"{name} is a {type(part).__name__}, which has no state_dict() and load_state_dict()")
    return part  # type: ignore[no-any-return]
