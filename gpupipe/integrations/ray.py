"""Ray: the loader's state in checkpoints of Ray Train, notices that a machine will be taken away, and decoding on other
machines.

:class:`Decoders` works in any process that is connected to a Ray cluster. The functions work in the
training function of a ``TorchTrainer``::

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

import platform
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from .. import __version__
from ..errors import ConfigError, StateError
from ..reading import elsewhere
from ..reading.decoder import pillow_version
from ..reading.elsewhere import Answer, Hello, Request
from ..reading.kept import CacheKind, check_cache
from ..reading.worker import Worker
from ..types import check_integer

if TYPE_CHECKING:
    from ray.train import PreemptionInfo

__all__ = ["Decoders", "preemption_notice", "report", "restore"]

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


class Decoders(elsewhere.Decoders):
    """Ray actors that decode images for loaders, on any machine of the cluster::

        ray.init(address="auto")
        decoders = gpupipe.integrations.ray.Decoders(actors=16)
        loader = DataLoader(dataset, batch_size=256, shuffle=True, decoders=decoders)

    An actor gets 16 to 64 images of a batch at a time and sends the pixels under their crops, uint8, through Ray's
    object store. Everything else happens in this process. Actors start at the first batch, spread over the machines,
    and stop with :meth:`close` or with this object. An actor that dies is started again; this process decodes what it
    had been asked for. At most ``prefetch_factor`` + 1 batches are requested at a time, which bounds the memory in the
    object store. ``print(loader)`` shows what the actors have done.

    The files must have the same paths on all machines, or be in a bucket, and all machines need the same versions of
    gpupipe and Pillow. The index travels with the dataset.

    Args:
        actors: number of actors. Loaders that share this object share them.
        num_cpus: processors of each actor, which decodes as many images at the same time.
        resources: custom resources of Ray that each actor needs, such as ``{"cpu_node": 1}``, to place actors on
            machines without GPUs.
        cache: keep decoded images on the actors' machines, as ``DataLoader(cache=)`` does on this one: ``"ram"`` or
            ``"disk"``. All actors of a machine share them, also those of other jobs, so jobs with other seeds and
            transforms decode an image once.
        cache_bytes: size of the cache on each machine.
        patience: seconds without an answer after which this process decodes the images that an actor was asked for,
            and asks others until the actor answers.

    Raises:
        ConfigError: Ray is not connected to a cluster, or an argument is wrong.
    """

    def __init__(
        self,
        actors: int,
        *,
        num_cpus: int = 1,
        resources: dict[str, float] | None = None,
        cache: CacheKind | None = None,
        cache_bytes: int | None = None,
        patience: float = 2.0,
    ):
        import ray

        if not ray.is_initialized():
            raise ConfigError("Decoders: this process is not connected to Ray; call ray.init() first")
        super().__init__(actors, patience, _versions())
        check_cache(cache, cache_bytes)
        threads = check_integer(num_cpus, "num_cpus", 1)
        self._kind = ray.remote(_Actor).options(
            num_cpus=threads, resources=resources, scheduling_strategy="SPREAD", max_restarts=0, max_task_retries=0
        )
        self._given = threads, cache, cache_bytes
        self._actors: dict[int, Any] = {}
        self._works: dict[str, Any] = {}

    def start(self, number: int) -> Future[Hello]:
        self.stop(number)
        self._actors[number] = actor = self._kind.remote(*self._given)
        future: Future[Hello] = actor.hello.remote().future()
        return future

    def submit(self, number: int, request: Request) -> Future[Answer]:
        import ray

        if request.key not in self._works:
            self._works[request.key] = ray.put(request.work)
        work = self._works[request.key]
        # In a list, so that Ray fetches it only if the actor asks for it.
        future: Future[Answer] = self._actors[number].answer.remote(request.key, [work], request.plan).future()
        return future

    def stop(self, number: int) -> None:
        import ray

        actor = self._actors.pop(number, None)
        if actor is not None and ray.is_initialized():
            ray.kill(actor)


def _versions() -> str:
    return f"gpupipe {__version__}, {pillow_version()}"


class _Actor:
    """A process of :class:`Decoders`."""

    def __init__(self, threads: int, cache: CacheKind | None, cache_bytes: int | None):
        torch.set_num_threads(1)
        self._worker = Worker(threads, cache, cache_bytes)

    def hello(self) -> Hello:
        return Hello(_versions(), platform.node())

    def answer(self, key: str, work: list[Any], plan: bytes) -> Answer:
        if not self._worker.knows(key):
            import ray

            self._worker.learn(key, ray.get(work[0]))
        return self._worker.answer(key, plan)
