"""Train an image classifier with Ray Train, on workers that may come and go.

    python examples/ray_imagenet.py                                        # no data needed: makes photographs
    python examples/ray_imagenet.py /data/imagenet --workers 4 16 --batch-size 1024 --epochs 90
    python examples/ray_imagenet.py --resume                               # goes on where it stopped

The data folder holds ``train/<class>/*`` and ``val/<class>/*``, at the same path on every machine, and the run folder
is on storage that all machines share. With ``--workers LEAST MOST``, training begins with as many workers as the
cluster has room for, and continues with fewer or more from the last checkpoint. The next batch is the same one on every
number of workers, because ``global_batch_size`` stays. When Ray announces that a machine will be taken away, the
workers save at once.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import Help
from small_resnet import SmallResNet
from torch import nn

from gpupipe import DataLoader, World, datasets
from gpupipe.integrations.ray import preemption_notice, report, restore
from gpupipe.pipelines import imagenet
from gpupipe.testing.photos import make_photos


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    p.add_argument("data", nargs="?", type=Path, help="folder with train/ and val/; made if it is not given")
    p.add_argument("--out", type=Path, default=Path("runs/ray"), help="run folder")
    p.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the run folder")
    p.add_argument("--workers", type=int, nargs=2, default=(1, 1), metavar=("LEAST", "MOST"), help="how many")
    p.add_argument("--cpu", action="store_true", help="use no GPU")
    p.add_argument("--epochs", type=int, default=2, help="how many in all, counted from 0")
    p.add_argument("--batch-size", type=int, default=16, help="of all workers together")
    p.add_argument("--size", type=int, default=128, help="edge of the training images in pixels")
    p.add_argument("--save-every", type=int, default=500, help="steps between checkpoints within an epoch")
    p.add_argument("--max-steps", type=int, help="stop after this many steps, as if the machines had been switched off")
    return p.parse_args()


def loader_of(args: argparse.Namespace, part: str, world: World) -> DataLoader:
    training = part == "train"
    pipeline = imagenet.train(args.size) if training else imagenet.val(args.size, resize=round(args.size * 256 / 224))
    return DataLoader(
        datasets.ImageFolder(args.data / part, pipeline), global_batch_size=args.batch_size, shuffle=training,
        drop_last=training, seed=0, num_workers=min(8, os.cpu_count() or 1), shard=world.shard, device=world.device,
    )  # fmt: skip


def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> dict[str, float]:
    """Every image exactly once: ``loader.valid`` of a batch are real, the others pad it to the size of other ranks'."""
    model.eval()
    sums = torch.zeros(3, device=device)
    with torch.inference_mode():  # as a decorator it could not be sent to the workers
        for images, target in loader:
            logits, target = model(images)[: loader.valid].float(), target[: loader.valid]
            loss = nn.functional.cross_entropy(logits, target, reduction="sum")
            sums += torch.stack([loss, (logits.argmax(1) == target).sum(), loss.new_tensor(loader.valid)])
    dist.all_reduce(sums)
    loss_sum, right, count = sums.tolist()
    return {"val_loss": loss_sum / count, "top1": right / count, "val_images": count}


def train(config: dict[str, Any]) -> None:
    """Run in every worker, and again, from the last checkpoint, when their number changes."""
    from ray.train.torch import prepare_model

    args = config["args"]
    world = World.here()
    loader, val = loader_of(args, "train", world), loader_of(args, "val", world)
    torch.manual_seed(0)
    # Not .classes: Ray would try to send the module torch.classes to the workers.
    model = prepare_model(SmallResNet(len(loader.dataset.class_to_idx)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=5e-5)
    parts: dict[str, Any] = {"loader": loader, "model": model, "optimizer": optimizer}
    restore(**parts)
    steps = 0
    for epoch in range(loader.state_dict()["epoch"], args.epochs):
        model.train()
        for images, target in loader:
            loss = nn.functional.cross_entropy(model(images), target, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            # All workers ask equally often. It takes milliseconds; for short steps, ask in some of them.
            if steps % args.save_every == 0 or preemption_notice() is not None:
                report({"epoch": epoch, "loss": loss.item()}, **parts)
            if steps == args.max_steps:
                return
        scores = evaluate(model, val, world.device)
        report({"epoch": epoch, **scores}, **parts)
        if world.rank == 0:
            (args.out / f"epoch{epoch}.txt").write_text(
                f"epoch {epoch}  val_loss {scores['val_loss']:.4f}  top1 {scores['top1']:.3f}  "
                f"images {scores['val_images']:g}\n"
            )


def main() -> None:
    args = parse()
    args.out = args.out.resolve()
    if (args.out / "train").exists() != args.resume:
        raise SystemExit(
            f"--resume: there is no run in {args.out}" if args.resume else f"{args.out} has a run: --resume, or --out"
        )
    if args.data is None:
        args.data = args.out / "photos"
        if not (args.data / "val").is_dir():
            sizes = ((180, 240), (240, 180))
            make_photos(args.data / "train", classes=4, per_class=32, seed=0, sizes=sizes)
            make_photos(args.data / "val", classes=4, per_class=8, seed=1, sizes=sizes)
    args.data = args.data.resolve()

    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    here = str(Path(__file__).parent)  # workers import small_resnet from it
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}})
    least, most = args.workers
    trainer = TorchTrainer(
        train,
        train_loop_config={"args": args},
        scaling_config=ScalingConfig(
            num_workers=most if least == most else (least, most), use_gpu=torch.cuda.is_available() and not args.cpu
        ),
        run_config=RunConfig(
            name="train",  # Ray goes on from the last checkpoint of a run with the same name
            storage_path=str(args.out),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            # Crashes end the run at the fourth; machines that are taken away do not count.
            failure_config=FailureConfig(max_failures=3, max_preemption_failures=-1),
        ),
    )
    trainer.fit()
    for file in sorted(args.out.glob("epoch*.txt")):
        print(file.read_text(), end="")


if __name__ == "__main__":
    main()
