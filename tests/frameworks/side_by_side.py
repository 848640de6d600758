"""One process of a training in a framework, as its users write it. Started by ``test_side_by_side.py``.

Modes: ``whole`` trains two epochs; ``stop`` saves the state in the middle of the first one, in the framework's own
checkpoint where it has one, and ends; ``resume`` continues from there; ``careless`` lets the framework build a loader.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import conftest  # noqa: F401
import torch
from continued import EPOCHS, Notes, loader_of
from torch import nn

import gpupipe
from gpupipe import DataLoader, World

STOP = 5
"""Steps until a run saves its state and ends."""


class Job:
    """What a framework is asked to do in this process."""

    def __init__(self, folder: Path, mode: str):
        self.root, self.mode = folder / "photos", mode
        self.checkpoint = folder / "checkpoint"
        self.steps = 0

    def loader(self) -> DataLoader:
        return loader_of(self.root)

    def careless(self) -> DataLoader:
        """A loader as for torch: without a shard."""
        return loader_of(self.root, shard=None, global_batch_size=4, num_workers=0)  # warnings appear in this process

    def begin(self, loader: DataLoader) -> None:
        self.notes = Notes(self.root.parent / "notes", World.here())
        self.notes.begin(loader)

    def step(self, loader: DataLoader, batch: Any) -> bool:
        """Note a batch. Returns whether the run shall save its state and end."""
        self.notes.batch(loader, *batch)
        self.steps += 1
        return self.mode == "stop" and self.steps == STOP


def loss_of(model: nn.Module, batch: Any) -> Any:
    return model(batch[0].mean((2, 3))).square().mean()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


# ---- the frameworks


def fabric(job: Job) -> None:
    from lightning.fabric import Fabric

    framework = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    framework.launch()
    model, optimizer = framework.setup(net := torch.nn.Linear(3, 1), torch.optim.SGD(net.parameters(), 0.1))
    ours = job.loader()
    loader = framework.setup_dataloaders(ours)
    if job.mode == "resume":
        ours.load_state_dict(framework.load(job.checkpoint)["loader"])
    inner = getattr(loader, "_dataloader", loader)
    job.begin(inner)
    for _ in range(inner.state_dict()["epoch"], EPOCHS):
        for batch in loader:
            framework.backward(loss_of(model, batch))
            optimizer.step()
            if job.step(inner, batch):
                framework.save(job.checkpoint, {"model": model, "loader": inner.state_dict()})
                return


def timm(job: Job) -> None:
    import types

    from timm.utils import CheckpointSaver, init_distributed_device, unwrap_model

    args = types.SimpleNamespace(device="cpu", dist_backend="gloo", dist_url="env://")
    init_distributed_device(args)
    loader, model = job.loader(), torch.nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    # timm's checkpoints hold args, where the position of the loader finds a place.
    saver = CheckpointSaver(model, optimizer, args=args, checkpoint_dir=str(job.checkpoint), unwrap_fn=unwrap_model)
    if job.mode == "resume":
        saved = torch.load(job.checkpoint / "last.pth.tar", weights_only=False)
        loader.load_state_dict(saved["args"].loader)
    job.checkpoint.mkdir(exist_ok=True)
    args.model = "linear"
    job.begin(loader)
    for epoch in range(loader.state_dict()["epoch"], EPOCHS):
        for batch in loader:
            loss_of(model, batch).backward()
            if job.step(loader, batch):
                args.loader = loader.state_dict()
                if args.rank == 0:
                    saver.save_checkpoint(epoch)
                torch.distributed.barrier()
                return


def ignite(job: Job) -> None:
    import ignite.distributed as idist
    from ignite.engine import Engine, Events
    from ignite.handlers import Checkpoint, DiskSaver

    idist.initialize("gloo")
    if job.mode == "careless":
        with job.careless() as careless:
            next(iter(idist.auto_dataloader(careless.dataset, batch_size=4, shuffle=True)))
        return
    loader, model = job.loader(), net()

    def step(engine: Engine, batch: Any) -> None:
        loss_of(model, batch).backward()
        engine.state.stops = job.step(loader, batch)

    trainer = Engine(step)
    parts = {"trainer": trainer, "loader": loader, "model": model}
    saver = Checkpoint(parts, DiskSaver(str(job.checkpoint), require_empty=False, create_dir=True), filename_prefix="x")

    def stop(engine: Engine) -> None:
        if engine.state.stops:
            saver(engine)
            engine.terminate()

    trainer.add_event_handler(Events.ITERATION_COMPLETED, stop)
    if job.mode == "resume":
        file = next(job.checkpoint.glob("*.pt"))
        Checkpoint.load_objects(parts, torch.load(file, weights_only=False))
    job.begin(loader)
    trainer.run(loader, max_epochs=EPOCHS, epoch_length=len(loader))


def ray(job: Job) -> None:
    """Two workers, which the driver starts."""
    import ray as core
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    core.init("local", num_cpus=2, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    config = {"folder": str(job.root.parent), "mode": job.mode}
    where = RunConfig(name="run", storage_path=str(job.checkpoint))
    TorchTrainer(in_ray, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2), run_config=where).fit()
    core.shutdown()


def in_ray(config: dict[str, Any]) -> None:
    from ray.train.torch import prepare_data_loader, prepare_model
    from side_by_side import STOP, Job, caught, loss_of, net  # type: ignore[import-not-found]

    from gpupipe.integrations.ray import report, restore

    job = Job(Path(config["folder"]), config["mode"])
    if job.mode == "careless":
        caught(job, lambda job: [next(iter(prepare_data_loader(job.careless())))])
        return
    loader, model = job.loader(), prepare_model(net())
    restore(loader=loader, model=model)
    job.begin(loader)
    for _ in range(loader.state_dict()["epoch"], EPOCHS):
        for batch in loader:
            loss_of(model, batch).backward()
            if job.step(loader, batch):
                report({"step": STOP}, loader=loader, model=model)
                return


FRAMEWORKS: dict[str, Callable[[Job], None]] = {"lightning": fabric, "timm": timm, "ignite": ignite, "ray": ray}
"""By the package that has to be installed."""


def caught(job: Job, run: Callable[[Job], Any]) -> None:
    """Run, and write down the codes of gpupipe's warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(job)
    codes = sorted({w.message.code for w in found if isinstance(w.message, gpupipe.GpupipeWarning)})
    (job.root.parent / f"seen-{World.here().rank}.json").write_text(json.dumps(codes))


def main(name: str, mode: str, folder: str) -> None:
    job, run = Job(Path(folder), mode), FRAMEWORKS[name]
    if mode == "careless" and run is not ray:
        caught(job, run)
    else:
        run(job)


if __name__ == "__main__":
    main(*sys.argv[1:])
