"""Augment batches on the device with Lightning: every image of a batch gets random numbers of its own.

    python examples/lightning_augment.py    # no data needed: makes photographs

The dataset hands out uint8 images. Lightning moves a batch to the device and calls ``on_after_batch_transfer``, where
``gpupipe.augment`` crops, flips and colors them.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from small_resnet import SmallResNet
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gpupipe import augment, transforms as T
from gpupipe.testing.photos import photograph

try:
    import lightning as L
except RuntimeError as e:  # Lightning imports torchmetrics, and that torchvision
    raise SystemExit(
        f"lightning cannot be imported: {e}\nIf that names torchvision, install the one that belongs to this torch: "
        "https://pytorch.org/get-started/locally"
    ) from None

CLASSES, SEED = 4, 0
END = [T.ToDtype("float32", scale=True), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
TRAIN = [T.RandomResizedCrop(48, scale=(0.5, 1.0)), T.RandomHorizontalFlip(), T.ColorJitter(0.2, 0.2, 0.2), *END]
VAL = [T.CenterCrop(48), *END]


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = SmallResNet(CLASSES)
        self.losses: list[float] = []

    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> tuple[Tensor, Tensor]:
        images, target, index = batch
        transforms = TRAIN if self.trainer.training else VAL
        # Numbers depend on the epoch and the image, so another batch size or number of ranks does not change them.
        return augment(images, transforms, seed=SEED, step=self.current_epoch, index=index), target

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def on_validation_epoch_start(self) -> None:
        self.right = self.seen = 0

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        self.right += int((self.model(batch[0]).argmax(1) == batch[1]).sum())
        self.seen += len(batch[1])

    def on_validation_epoch_end(self) -> None:
        if self.losses:
            self.print(f"epoch {self.current_epoch}  loss {self.losses[-1]:.3f}  top1 {self.right / self.seen:.3f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def photographs(per_class: int, seed: int) -> TensorDataset:
    """uint8[N, 3, 64, 64], their classes, and their numbers."""
    classes = [label for label in range(CLASSES) for _ in range(per_class)]
    made = [photograph(64, 64, seed * 1000 + n, kind=label) for n, label in enumerate(classes)]
    images = torch.stack([torch.from_numpy(pixels).permute(2, 0, 1) for pixels in made]).contiguous()
    return TensorDataset(images, torch.tensor(classes), torch.arange(len(classes)))


def main(arguments: Any = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--accelerator", default="auto")
    args = parser.parse_args(arguments)
    L.seed_everything(SEED)
    trainer = L.Trainer(
        accelerator=args.accelerator, devices=1, max_epochs=args.epochs, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    train = DataLoader(photographs(16, 0), batch_size=args.batch_size, shuffle=True, drop_last=True)
    trainer.fit(Classifier(), train, DataLoader(photographs(4, 1), batch_size=args.batch_size))


if __name__ == "__main__":
    main()
