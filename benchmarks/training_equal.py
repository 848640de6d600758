"""Does a network learn the same from DALI's batches as from the reference's?

Prediction: yes. The plans are the same and the pixels differ by about a gray level, so the accuracies of one seed
differ no more than those of two seeds, and their mean difference is within its own standard error of 0.

Measured: a small network on CIFAR-10's pictures (or generated ones), with a random resized crop, RandAugment and
normalization, so that every kind of operation is in it; every seed once with each engine, from the same weights, on
the same plans; accuracy on the held-out pictures, which both read through the reference.

    python benchmarks/training_equal.py [TRAIN TEST]    # two folders of classes; writes results/training_equal.json
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _common import ROOT, Table, heading, save
from torch import Tensor, nn

from gpupipe import DataLoader, datasets, transforms as T
from gpupipe.testing.photos import make_photos

MEASURES = ("gpupipe/engines/dali", "gpupipe/kernels")
DATA = ROOT.parent / "shared" / "data" / "cifar10"
FINISH = [T.ToTensor(), T.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))]
TRAIN = T.Compose(
    [
        T.RandomResizedCrop(32, scale=(0.4, 1.0)),
        T.RandomHorizontalFlip(),
        T.RandAugment(interpolation="bilinear"),
        *FINISH,
    ]
)
TEST = T.Compose([T.Resize((32, 32)), *FINISH])


def network(classes: int) -> nn.Module:
    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(3, 32, 1), *block(32, 64, 2), *block(64, 128, 2), *block(128, 128, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes),
    )  # fmt: skip


def train(folder: Path, held_out: tuple[Tensor, Tensor], engine: Any, seed: int, args: argparse.Namespace) -> float:
    """Accuracy on the held-out pictures after the last epoch."""
    torch.manual_seed(seed)
    dataset = datasets.ImageFolder(folder, TRAIN)
    model = network(len(dataset.classes)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    with DataLoader(
        dataset, args.batch_size, shuffle=True, drop_last=True, num_workers=2, device="cpu", engine=engine, seed=seed
    ) as loader:
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader))
        for _ in range(args.epochs):
            for images, target in loader:
                loss = nn.functional.cross_entropy(model(images), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    model.eval()
    with torch.inference_mode():
        images, target = held_out
        parts = zip(images.split(500), target.split(500), strict=True)
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in parts)
    return right / len(target)


def everything(folder: Path) -> tuple[Tensor, Tensor]:
    with DataLoader(datasets.ImageFolder(folder, TEST), batch_size=500, device="cpu", engine="torch") as loader:
        batches = list(loader)
    return torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])


def spread(values: list[float]) -> dict[str, Any]:
    return {"mean": statistics.mean(values), "standard_deviation": statistics.stdev(values), "each": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="of training and of held-out pictures")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    if len(args.folders) not in (0, 2) or args.seeds < 2:
        parser.error("give two folders or none, and at least two seeds")
    with tempfile.TemporaryDirectory() as temporary:
        folders = args.folders or ([DATA / "train", DATA / "test"] if DATA.is_dir() else [])
        for seed, name in enumerate(("train", "test") if not folders else ()):
            folders.append(make_photos(Path(temporary) / name, classes=10, per_class=100, seed=seed, sizes=((40, 48),)))
        compare(folders[0], folders[1], args)


def compare(folder: Path, held_out: Path, args: argparse.Namespace) -> None:
    pictures = everything(held_out)
    found: dict[str, list[float]] = {"dali": [], "torch": []}
    table = Table("seed", "DALI", "reference", "difference", "seconds")
    for seed in range(args.seeds):
        began = time.monotonic()
        for engine, accuracies in found.items():
            accuracies.append(train(folder, pictures, engine, seed, args))
        a, b = found["dali"][-1], found["torch"][-1]
        table.row(str(seed), f"{a:.4f}", f"{b:.4f}", f"{a - b:+.4f}", f"{time.monotonic() - began:.0f}")
    differences = spread([a - b for a, b in zip(found["dali"], found["torch"], strict=True)])
    differences["standard_error"] = differences["standard_deviation"] / args.seeds**0.5
    result = {
        **heading(__doc__, {"seeds": args.seeds, "epochs": args.epochs, "batch_size": args.batch_size, "lr": args.lr}),
        "pictures": {"train": len(datasets.ImageFolder(folder, TRAIN)), "held_out": len(pictures[1])},
        "accuracy": {engine: spread(accuracies) for engine, accuracies in found.items()},
        "difference": differences,
    }
    print(save("training_equal", result))


if __name__ == "__main__":
    main()
