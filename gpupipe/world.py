"""Place of this process among those that train together, whoever started them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = ["Shard", "World"]


@dataclass(frozen=True)
class Shard:
    """Part of every global batch that this process takes: rank ``rank`` of ``world_size``.

    >>> Shard(rank=1, world_size=4)
    Shard(rank=1, world_size=4)
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not (isinstance(self.rank, int) and isinstance(self.world_size, int)):
            raise ConfigError(f"Shard takes two integers, not {self.rank!r} and {self.world_size!r}")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"Shard(rank={self.rank}, world_size={self.world_size}): world_size must be at least 1 "
                "and rank between 0 and world_size - 1"
            )

    @classmethod
    def from_env(cls) -> Shard:
        """Return the shard of this process; see :meth:`World.here`."""
        return World.here().shard


@dataclass(frozen=True)
class World:
    """Place of this process among those that train together.

    >>> World(rank=1, world_size=4, local_rank=1, source="torchrun").shard
    Shard(rank=1, world_size=4)
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Number of this process among those on its machine."""
    source: str = "one process"
    """What was asked."""

    @classmethod
    def here(cls) -> World:
        """Return the place of this process. Asks, in this order:

        - ``torch.distributed``, if its default process group is initialized, which launchers and frameworks such as
          Accelerate, Fabric, Lightning and Ray's ``TorchTrainer`` do;
        - the context of Ray Train, in a training function without a process group;
        - ``RANK`` and ``WORLD_SIZE``, which ``torchrun`` sets;
        - ``SLURM_PROCID`` and ``SLURM_STEP_NUM_TASKS``, which ``srun`` sets.

        Otherwise there is one process. Call it after the process group was initialized, if the script does so.

        Raises :class:`ConfigError` if only one of two variables is set, or one is not an integer.
        """
        for found in (_process_group, _ray_train, _torchrun, _slurm):
            if (world := found()) is not None:
                return world
        return cls()

    @property
    def shard(self) -> Shard:
        """Part of every global batch that this process takes."""
        return Shard(self.rank, self.world_size)

    @property
    def device(self) -> torch.device:
        """Device of this process: the CPU if torch sees no GPU; what Ray Train or Accelerate chose, if they run;
        otherwise the GPU with the number ``local_rank``, or the only one that this process sees."""
        import torch

        if not torch.cuda.is_available():
            return torch.device("cpu")
        if _in_ray_train() and (theirs := sys.modules.get("ray.train.torch")) is not None:
            return torch.device(theirs.get_device())
        state = sys.modules.get("accelerate.state")
        if state is not None and state.PartialState._shared_state:
            return torch.device(state.PartialState().device)
        gpus = torch.cuda.device_count()
        if gpus > 1 and self.local_rank >= gpus:
            raise ConfigError(
                f"process {self.local_rank} of this machine has no GPU of its own: it sees {gpus}; start one process "
                "per GPU"
            )
        return torch.device("cuda", self.local_rank if gpus > 1 else 0)


def _process_group() -> World | None:
    dist = sys.modules.get("torch.distributed")  # only a program that imported it can have initialized it
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    rank, count = dist.get_rank(), dist.get_world_size()
    local = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID"))
    return World(rank, count, _local(local, rank), "torch.distributed")


def _ray_train() -> World | None:
    if not _in_ray_train():
        return None
    context = sys.modules["ray.train"].get_context()
    return World(context.get_world_rank(), context.get_world_size(), context.get_local_rank(), "Ray Train")


def _in_ray_train() -> bool:
    """Return whether this is a worker of Ray Train. Its driver may have imported it as well."""
    train: Any = sys.modules.get("ray.train")
    if train is None:
        return False
    try:
        return train.get_context().get_world_size() is not None
    except (RuntimeError, AttributeError):  # outside of a training function
        return False


def _torchrun() -> World | None:
    return _from_variables("RANK", "WORLD_SIZE", "LOCAL_RANK", "torchrun")


def _slurm() -> World | None:
    # A batch script has SLURM_PROCID as well, but only srun starts the tasks of a step.
    if "SLURM_STEP_NUM_TASKS" not in os.environ:
        return None
    return _from_variables("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM")


def _from_variables(rank: str, count: str, local: str, source: str) -> World | None:
    numbers = os.environ.get(rank), os.environ.get(count)
    if numbers == (None, None):
        return None
    try:
        found = World(int(numbers[0]), int(numbers[1]), source=source)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ConfigError(
            f"{rank}={numbers[0]!r} and {count}={numbers[1]!r} must both be set to integers, or neither ({source} sets "
            "both)"
        ) from None
    Shard(found.rank, found.world_size)  # checks them
    return World(found.rank, found.world_size, _local(os.environ.get(local), found.rank), source)


def _local(number: str | None, rank: int) -> int:
    """Return the number of this process on its machine. Without one there is a single machine."""
    return int(number) if number is not None and number.isdigit() else rank
