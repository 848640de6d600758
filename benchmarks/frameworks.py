"""Which frameworks train, share, resume and warn with a loader of gpupipe.

Every framework runs in two processes on this machine, as its users write it, and the samples and pixels of every batch
are compared with those of one process without a framework:

- trains and shares: two epochs, every sample once, all batches equal bit for bit;
- resumes: the run saves its state in the middle of the first epoch, in the framework's own checkpoint where it has one,
  and ends; new processes continue from it. No sample is lost or delivered twice, all batches are equal;
- otherwise: what a user sees without ``shard=``, or if the framework skips batches or builds a loader: the code of a
  warning, or an error.

    python benchmarks/frameworks.py [--only NAME ...]

Frameworks that are not installed are left out and named.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common
import torch
from continued import EPOCHS, N, Notes, judge, loader_of, photos
from torch import nn

import gpupipe
from gpupipe import DataLoader, World
from gpupipe.errors import GpupipeError

STOP = 5
"""Steps until a run saves its state and ends."""


class Stopped(Exception):
    """The run has saved its state."""


class Job:
    """What a framework is asked to do in this process."""

    def __init__(self, folder: Path, mode: str):
        self.root, self.mode = folder / "photos", mode
        self.checkpoint = folder / "checkpoint"
        self.notes_folder = folder / ("whole" if mode == "whole" else "parts")
        self.steps = 0
        self._notes: Notes | None = None

    @property
    def resumes(self) -> bool:
        return self.mode == "resume"

    def loader(self, **arguments: Any) -> DataLoader:
        return loader_of(self.root, **arguments)

    def careless(self) -> DataLoader:
        """A loader as for torch: without a shard."""
        return loader_of(self.root, shard=None, global_batch_size=4, num_workers=0)  # warnings appear in this process

    def begin(self, loader: DataLoader) -> None:
        self._notes = Notes(self.notes_folder, World.here())
        self._notes.begin(loader)

    def step(self, loader: DataLoader, batch: Any) -> bool:
        """Note a batch. Returns whether the run shall save its state and end."""
        if self._notes is None:
            self.begin(loader)
        assert self._notes is not None
        self._notes.batch(loader, *batch)
        self.steps += 1
        return self.mode == "stop" and self.steps == STOP


def loss_of(model: nn.Module, batch: Any) -> Any:
    return model(batch[0].mean((2, 3))).square().mean()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


# ---- the frameworks


def plain(job: Job) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    loader, model = job.loader(), DistributedDataParallel(net())
    if job.resumes:
        loader.load_state_dict(torch.load(job.checkpoint, weights_only=True)["loader"])
    job.begin(loader)
    for _ in range(loader.state_dict()["epoch"], EPOCHS):
        for batch in loader:
            loss_of(model, batch).backward()
            if job.step(loader, batch):
                if dist.get_rank() == 0:
                    torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, job.checkpoint)
                dist.barrier()
                return


def lightning(job: Job) -> None:
    import lightning as L

    class Model(L.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def train_dataloader(self) -> Any:
            return job.careless() if job.mode == "careless" else job.loader()

        def on_train_start(self) -> None:
            job.begin(self.trainer.train_dataloader)

        def training_step(self, batch: Any, index: int) -> Any:
            self.stops = job.step(self.trainer.train_dataloader, batch)
            return loss_of(self.net, batch)

        def on_train_batch_end(self, *_: Any) -> None:
            if self.stops:
                self.trainer.save_checkpoint(job.checkpoint)
                self.trainer.limit_train_batches = 0
                raise Stopped

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=EPOCHS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), ckpt_path=str(job.checkpoint) if job.resumes else None)


def fabric(job: Job) -> None:
    from lightning.fabric import Fabric

    framework = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    framework.launch()
    model, optimizer = framework.setup(net := torch.nn.Linear(3, 1), torch.optim.SGD(net.parameters(), 0.1))
    ours = job.careless() if job.mode == "careless" else job.loader()
    loader = framework.setup_dataloaders(ours)
    if job.resumes:
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


def accelerate(job: Job) -> None:
    from accelerate import Accelerator

    framework = Accelerator(cpu=True)
    ours = job.careless() if job.mode == "careless" else job.loader()
    model, loader = framework.prepare(net(), ours)
    framework.register_for_checkpointing(loader)
    if job.resumes:
        framework.load_state(str(job.checkpoint))
    job.begin(loader)
    for _ in range(loader.state_dict()["epoch"], EPOCHS):
        for batch in loader:
            framework.backward(loss_of(model, batch))
            if job.step(loader, batch):
                framework.save_state(str(job.checkpoint))
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
    if job.resumes:
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
    if job.resumes:
        file = next(job.checkpoint.glob("*.pt"))
        Checkpoint.load_objects(parts, torch.load(file, weights_only=False))
    job.begin(loader)
    trainer.run(loader, max_epochs=EPOCHS, epoch_length=len(loader))


def transformers(job: Job) -> None:
    import transformers as hf

    from gpupipe.integrations.transformers import LoaderState

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, batch: Any) -> Any:
            return {"loss": loss_of(self.net, batch)}

    class Trainer(hf.Trainer):  # type: ignore[misc,name-defined]
        def get_train_dataloader(self) -> Any:
            return loader

        def _prepare_inputs(self, inputs: Any) -> Any:
            return inputs

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            if job.mode != "careless":
                job.step(loader, inputs)
            return model(inputs)["loss"]

    class Begin(hf.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            job.begin(loader)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = control.should_training_stop = job.mode == "stop" and job.steps == STOP

    args = hf.TrainingArguments(
        str(job.checkpoint), num_train_epochs=EPOCHS, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
        ddp_backend="gloo",
    )  # fmt: skip
    loader = job.loader(num_workers=0 if job.mode == "careless" else 1)
    ours = [] if job.mode == "careless" else [LoaderState(), Begin()]
    again = job.resumes or job.mode == "careless"
    Trainer(Model(), args, callbacks=ours).train(resume_from_checkpoint=again or None)


def ray(job: Job) -> None:
    """Two workers, which the driver starts."""
    import ray as core
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    core.init("local", num_cpus=2, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    config = {"folder": str(job.root.parent), "mode": job.mode}
    where = RunConfig(name="run", storage_path=str(job.checkpoint if job.mode != "whole" else job.root.parent / "ray"))
    TorchTrainer(in_ray, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2), run_config=where).fit()
    core.shutdown()


def in_ray(config: dict[str, Any]) -> None:
    from frameworks import STOP, Job, caught, loss_of, net
    from ray.train.torch import prepare_data_loader, prepare_model

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


SHARD = "`shard=world.shard`"
FRAMEWORKS: dict[str, tuple[Callable[[Job], None], str, str, str]] = {
    "torch, plain DDP": (plain, "torch", SHARD, '`{"loader": loader.state_dict()}` in the checkpoint'),
    "Lightning": (lightning, "lightning", f"{SHARD}, or nothing", "nothing: its checkpoints hold the loader's state"),
    "Fabric": (fabric, "lightning", f"{SHARD}, or nothing", '`fabric.save(path, {"loader": loader.state_dict()})`'),
    "Accelerate": (accelerate, "accelerate", SHARD, "`accelerator.register_for_checkpointing(loader)`"),
    "timm": (timm, "timm", SHARD, "`args.loader = loader.state_dict()`, which its `CheckpointSaver` saves"),
    "ignite": (ignite, "pytorch-ignite", SHARD, '`Checkpoint({"trainer": trainer, "loader": loader}, ...)`'),
    "Hugging Face Trainer": (transformers, "transformers", SHARD, "`callbacks=[LoaderState()]`"),
    "Ray Train": (ray, "ray", SHARD, "`report(metrics, loader=loader)` and `restore(loader=loader)`"),
}
"""How it runs, its package, what to write for the shard, and what for the state."""


# ---- running them


def caught(job: Job, run: Callable[[Job], Any]) -> None:
    """Run carelessly, and write down what one sees."""
    seen = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            run(job)
        except (GpupipeError, Stopped) as e:
            seen.append(f"error: {str(e).splitlines()[0]}")
        seen += [f"warning `{w.message.code}`" for w in found if isinstance(w.message, gpupipe.GpupipeWarning)]
    (job.root.parent / f"seen-{World.here().rank}.json").write_text(json.dumps(sorted(set(seen))))


def in_process(name: str, mode: str, folder: Path) -> None:
    job, run = Job(folder, mode), FRAMEWORKS[name][0]
    _common.import_torchvision()  # which some of them import
    if mode == "careless" and run is not ray:
        caught(job, run)
        return
    try:
        run(job)
    except Stopped:
        os._exit(0)


def start(name: str, mode: str, folder: Path) -> str | None:
    """Run a framework in two processes. Returns the end of what it said, if it failed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    command = [sys.executable, *([] if FRAMEWORKS[name][0] is ray else launcher), __file__]
    settings = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            [*command, "--inside", name, "--mode", mode, "--folder", str(folder)],
            capture_output=True, text=True, timeout=240, env={**os.environ, **settings},
        )  # fmt: skip
    except subprocess.TimeoutExpired as e:
        return f"timeout: {str(e.stderr)[-1000:]}"
    return None if done.returncode == 0 else (done.stdout + done.stderr)[-3000:]


def examine(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"version": importlib.metadata.version(FRAMEWORKS[name][1])}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        photos(folder / "photos")
        for part in ("whole", "parts"):
            (folder / part).mkdir()
        for part, modes in (("whole", ["whole"]), ("parts", ["stop", "resume"])):
            failed = next((why for mode in modes if (why := start(name, mode, folder)) is not None), None)
            if failed is not None:
                found[part] = {"error": failed}
                continue
            judged = judge(folder / part, folder / "photos")
            del judged["seconds_to_next_batch"]
            found[part] = judged
        failed = start(name, "careless", folder)
        seen = [json.loads(file.read_text()) for file in sorted(folder.glob("seen-*.json"))]
        found["careless"] = {"error": failed} if failed or not seen else sorted({one for said in seen for one in said})
    return found


def exact(found: dict[str, Any]) -> bool:
    return (
        "error" not in found
        and (found["lost"], found["twice"]) == (0, 0)
        and found["equal_batches"] == found["batches"] == EPOCHS * -(-N // 8)
    )


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", nargs="+", choices=FRAMEWORKS, help="examine these, and keep the other results")
    p.add_argument("--inside", choices=FRAMEWORKS, help=argparse.SUPPRESS)
    p.add_argument("--mode", help=argparse.SUPPRESS)
    p.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.inside:
        in_process(args.inside, args.mode, args.folder)
        return
    results, missing = {}, []
    for name, (_, package, shard, state) in FRAMEWORKS.items():
        if args.only and name not in args.only:
            continue
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        found = results[name] = {**examine(name), "shard": shard, "state": state}
        whole, parts = (exact(found[part]) for part in ("whole", "parts"))
        print(f"{name}: trains and shares {whole}, resumes {parts}, otherwise {found['careless']}", flush=True)
        for part in ("whole", "parts"):
            if not exact(found[part]):
                print(json.dumps(found[part])[:3000].replace("\\n", "\n"))
    if missing:
        print(f"not installed: {', '.join(missing)}")
    earlier = _common.RESULTS / "frameworks.json"
    if args.only and earlier.exists():
        results = {**_common.load("frameworks")["frameworks"], **results}
    results = {name: results[name] for name in FRAMEWORKS if name in results}
    if results:
        print(_common.save("frameworks", {"frameworks": results, "missing": missing, "machine": _common.machine()}))


if __name__ == "__main__":
    main()
