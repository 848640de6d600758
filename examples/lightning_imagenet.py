"""Train an image classifier with Lightning.

    python examples/lightning_imagenet.py                                  # no data needed: makes photographs
    python examples/lightning_imagenet.py /data/imagenet --devices 8 --batch-size 2048 --epochs 90
    python examples/lightning_imagenet.py --resume                         # goes on where it stopped

The data folder holds ``train/<class>/*`` and ``val/<class>/*``. Lightning stores the loader's state in its checkpoints
without being asked, so a run that was killed in the middle of an epoch goes on with the very next batch.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from common import Help
from small_resnet import SmallResNet
from torch import Tensor, nn

from gpupipe import DataLoader, Shard, datasets
from gpupipe.pipelines import imagenet
from gpupipe.testing.photos import make_photos

try:
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint
except RuntimeError as e:  # Lightning imports torchmetrics, and that torchvision
    raise SystemExit(
        f"lightning cannot be imported: {e}\nIf that names torchvision, install the one that belongs to this torch: "
        "https://pytorch.org/get-started/locally"
    ) from None


class Photos(L.LightningDataModule):
    def __init__(self, root: Path, made: bool, batch_size: int, size: int):
        super().__init__()
        self.root, self.made, self.batch_size, self.size = root, made, batch_size, size

    def prepare_data(self) -> None:
        if self.made and not (self.root / "val").is_dir():
            sizes = ((180, 240), (240, 180))
            make_photos(self.root / "train", classes=4, per_class=32, seed=0, sizes=sizes)
            make_photos(self.root / "val", classes=4, per_class=8, seed=1, sizes=sizes)

    def loader(self, part: str, pipeline: Any, **more: Any) -> DataLoader:
        # Made here and not in __init__: now Lightning has started the ranks, and from_env() sees them. Lightning puts
        # a DistributedSampler only into torch's own loader, so the shard has to be named.
        assert self.trainer is not None
        return DataLoader(
            datasets.ImageFolder(self.root / part, pipeline), global_batch_size=self.batch_size, seed=0,
            num_workers=min(8, os.cpu_count() or 1), device=self.trainer.strategy.root_device,
            shard=Shard.from_env(), **more,
        )  # fmt: skip

    def train_dataloader(self) -> DataLoader:
        return self.loader("train", imagenet.train(self.size), shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        return self.loader("val", imagenet.val(self.size, resize=round(self.size * 256 / 224)))


class Classifier(L.LightningModule):
    def __init__(self, classes: int):
        super().__init__()
        self.model = SmallResNet(classes)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, target = batch
        return nn.functional.cross_entropy(self.model(images), target, label_smoothing=0.1)

    def on_validation_epoch_start(self) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=self.device)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        loader: Any = self.trainer.val_dataloaders
        real = loader.valid  # what comes after pads the batch to the size of the other ranks'
        logits, target = self.model(batch[0])[:real].float(), batch[1][:real]
        loss = nn.functional.cross_entropy(logits, target, reduction="sum")
        self.sums += torch.stack([loss, (logits.argmax(1) == target).sum(), loss.new_tensor(real)])

    def on_validation_epoch_end(self) -> None:
        loss, right, count = self.trainer.strategy.reduce(self.sums, reduce_op="sum").tolist()
        self.log_dict({"val_loss": loss / count, "top1": right / count, "val_images": count}, sync_dist=True)
        if self.trainer.is_global_zero:
            print(
                f"epoch {self.current_epoch}  val_loss {loss / count:.4f}  top1 {right / count:.3f}  images {count:g}"
            )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9, weight_decay=5e-5)


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    p.add_argument("data", nargs="?", type=Path, help="folder with train/ and val/; made if it is not given")
    p.add_argument("--out", type=Path, default=Path("runs/lightning"), help="run folder")
    p.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the run folder")
    p.add_argument("--devices", type=int, default=1, help="how many")
    p.add_argument("--accelerator", default="auto", help='"auto", "gpu" or "cpu"')
    p.add_argument("--epochs", type=int, default=2, help="how many in all, counted from 0")
    p.add_argument("--batch-size", type=int, default=16, help="of all devices together")
    p.add_argument("--size", type=int, default=128, help="edge of the training images in pixels")
    p.add_argument("--save-every", type=int, default=500, help="steps between checkpoints within an epoch")
    p.add_argument("--max-steps", type=int, default=-1, help="stop after this many steps; -1: never")
    return p.parse_args()


def main() -> None:
    args = parse()
    L.seed_everything(0)
    data = Photos(args.data or args.out / "photos", args.data is None, args.batch_size, args.size)
    # An interruption is an exception, too: Ctrl-C loses nothing.
    checkpoints = ModelCheckpoint(args.out, every_n_train_steps=args.save_every, save_last=True, save_on_exception=True)
    classes = 4 if args.data is None else len(datasets.ImageFolder(args.data / "train").classes)
    trainer = L.Trainer(
        accelerator=args.accelerator, devices=args.devices, max_epochs=args.epochs, max_steps=args.max_steps,
        precision="bf16-mixed" if torch.cuda.is_available() and args.accelerator != "cpu" else "32-true",
        default_root_dir=args.out, logger=False, callbacks=[checkpoints], num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(Classifier(classes), data, ckpt_path=args.out / "last.ckpt" if args.resume else None)


if __name__ == "__main__":
    main()
