"""The reference engine: torch's DataLoader workers decode with Pillow, and the device finishes the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from rich.filesize import decimal
from torch import Tensor

from ...copy_stream import CopyStream
from ...errors import ConfigError, SampleError
from ...kernels.batches import finish_plan
from ...kernels.check import check_ops
from ...planning.epoch import resolve_missing
from ...reading.plan_workers import WorkerRun, Workers
from ...reading.setup import Setup
from ...reading.take import Take, decoder_name
from ...reading.targets import targets_of, with_numbers
from ...types import Batch, Plan
from ..base import Engine, EngineConfig, Run
from ..staging import Ring, Uploader, map_tensors
from .worker_tasks import Decode, Decoded

Staging = Literal["ring", "pin_memory", "pageable"]


@dataclass(frozen=True)
class Torch(EngineConfig):
    """torch's DataLoader with Pillow and torch: what a careful user would write, and the reference for other engines.

    Args:
        staging: how batches reach a GPU. ``"ring"`` copies through our own pinned slots, ``"pin_memory"`` lets the
            DataLoader's thread pin, ``"pageable"`` copies without pinning, and waits. Ignored on the CPU.
        slots: number of the ring's slots, each as large as a batch. With two, one is filled while the GPU reads the
            other; a single one halves the pinned memory, and waits for every copy.

    >>> Torch(staging="pin_memory")
    Torch(staging='pin_memory', slots=2)
    """

    name: ClassVar[str] = "torch"

    staging: Staging = "ring"
    slots: int = 2

    def __post_init__(self) -> None:
        if self.staging not in get_args(Staging):
            raise ConfigError(f"Torch: staging must be one of {', '.join(get_args(Staging))}, not {self.staging!r}")
        if type(self.slots) is not int or self.slots < 1:
            raise ConfigError(f"Torch: slots must be an integer of at least 1, not {self.slots!r}")
        if self.slots != 2 and self.staging != "ring":
            raise ConfigError(f"Torch: slots={self.slots} is for staging='ring', not {self.staging!r}; leave it out")

    def check(self, setup: Setup) -> None:
        if setup.cuda and not torch.cuda.is_available():
            raise ConfigError(
                f"device={setup.device!r}: torch {torch.__version__} sees no CUDA device; use device='cpu', or see "
                "`gpupipe doctor`"
            )
        check_ops(setup.pipeline.skeleton)

    def build(self, setup: Setup) -> TorchEngine:
        return TorchEngine(self, setup)


class TorchEngine(Engine):
    """Engine of :class:`Torch`."""

    def __init__(self, config: Torch, setup: Setup):
        self._config = config
        self._setup = setup
        task = Decode(Take.of_setup(setup), setup.pipeline)
        self._workers: Workers[Decoded] = Workers(task, setup, pin_memory=setup.cuda and config.staging == "pin_memory")
        self._uploader: Uploader | None = None

    def run(self, plans: Iterator[Plan]) -> TorchRun:
        if self._setup.cuda and self._config.staging != "pageable" and self._uploader is None:
            device = torch.device(self._setup.device)
            ring = Ring(self._config.slots, pinned=True) if self._config.staging == "ring" else None
            self._uploader = Uploader(CopyStream(device), device, ring)
        return TorchRun(self._workers.run(plans), self._setup, self._to_device())

    def _to_device(self) -> Callable[[Any, Any, Callable[[Any], Any]], tuple[Any, Any]]:
        """Return the function from (images, target, finish) to (finished images, target) on the device."""
        if self._uploader is not None:
            return self._uploader
        setup = self._setup
        if setup.cuda:
            device = torch.device(setup.device)
            return lambda images, target, finish: (
                finish(map_tensors(lambda x: x.to(device), images)),
                map_tensors(lambda x: x.to(device), target),
            )
        if setup.pin_memory and torch.cuda.is_available():
            return lambda images, target, finish: (
                map_tensors(Tensor.pin_memory, finish(images)),
                map_tensors(Tensor.pin_memory, target),
            )
        return lambda images, target, finish: (finish(images), target)

    def close(self) -> None:
        self._workers.close()
        uploader, self._uploader = self._uploader, None
        if uploader is not None:
            uploader.close()

    def facts(self) -> dict[str, Any]:
        return {
            "torch": torch.__version__,
            "decoder": decoder_name(self._setup.dataset),
            "workers": self._setup.num_workers,
            **({"staging": self._staging()} if self._setup.cuda else {}),
        }

    def _staging(self) -> str:
        """Describe the memory that batches pass through on the way to a GPU."""
        held = 0 if self._uploader is None else self._uploader.nbytes
        slots = f" of {self._config.slots} slots" if self._config.staging == "ring" else ""
        return f"{self._config.staging}{slots}" + (f", {decimal(held)}" if held else "")


class TorchRun(Run):
    """See :class:`gpupipe.engines.base.Run`."""

    def __init__(self, results: WorkerRun[Decoded], setup: Setup, to_device: Callable[..., tuple[Any, Any]]):
        self._results = results
        self._setup = setup
        self._to_device = to_device

    def __next__(self) -> Batch:
        plan, result = next(self._results)
        if result.bad:
            raise SampleError(result.bad)
        plan = resolve_missing(plan, self._setup.pipeline)
        dataset = self._setup.dataset
        target = targets_of(dataset, plan)
        if self._setup.collates:
            target = with_numbers(target)
        memory_format, medium = self._setup.pipeline.memory_format, dataset.medium
        images, target = self._to_device(
            result.images, target, lambda images: finish_plan(plan, images, memory_format, medium)
        )
        return Batch(images, target, plan)

    def close(self) -> None:
        self._results.close()
