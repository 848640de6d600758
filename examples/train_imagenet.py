"""Train an image classifier on a folder of classes: a complete recipe to start from.

    python examples/train_imagenet.py                                          # no data needed: makes photographs
    python examples/train_imagenet.py /data/imagenet --model resnet50 --epochs 90 --batch-size 256 --lr 0.5
    torchrun --nproc-per-node 8 examples/train_imagenet.py /data/imagenet --model resnet50 --batch-size 2048 --lr 4
    sbatch examples/train_imagenet.slurm /data/imagenet --model resnet50 --batch-size 2048 --lr 4 --epochs 600 \
        --size 176 --auto-augment ta_wide --erase 0.1 --mixup 0.2 --cutmix 1 --ema 0.9999 --weight-decay 2e-5
    python examples/train_imagenet.py --resume                                 # goes on where it stopped

The data folder holds ``train/<class>/*`` and ``val/<class>/*``. On a GPU it trains in bfloat16. The run folder gets
``best.pt``, ``last.pt`` with everything that a resumed run needs, and ``metrics.csv``.

What is worth copying: the loader's state goes into the checkpoint beside the model's, so a run that was killed in the
middle of an epoch goes on with the very next batch; and ``loader.valid`` makes the evaluation exact on any number of
GPUs, although every rank gets the same number of samples.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from run import Run, arguments, parameters, prepared, start, total, wrapped
from small_resnet import SmallResNet
from torch import nn

from gpupipe import DataLoader, Shard, datasets
from gpupipe.pipelines import imagenet
from gpupipe.testing.photos import make_photos


def parse() -> argparse.Namespace:
    p = arguments(__doc__, "imagenet", epochs=5, batch_size=32, size=224, lr=0.06, weight_decay=5e-5)
    p.add_argument("--model", default="small", help='"small" (built in), or a name of torchvision such as "resnet50"')
    p.add_argument("--auto-augment", choices=["ta_wide", "ra", "augmix", "imagenet"], help="policy of random changes")
    p.add_argument("--erase", type=float, default=0.0, help="probability of erasing a rectangle")
    p.add_argument("--mixup", type=float, default=0.0, help="alpha of MixUp, such as 0.2; 0: off")
    p.add_argument("--cutmix", type=float, default=0.0, help="alpha of CutMix, such as 1; 0: off")
    p.add_argument("--label-smoothing", type=float, default=0.1, help="share of the target that goes to all classes")
    p.add_argument("--on-error", default="replace", choices=["raise", "replace"], help="what a bad image does")
    return p.parse_args()


def make_loaders(args: argparse.Namespace, shard: Shard, device: torch.device) -> tuple[DataLoader, DataLoader]:
    def make(root: Path) -> None:
        make_photos(root / "train", classes=4, per_class=64, seed=args.seed)
        make_photos(root / "val", classes=4, per_class=16, seed=args.seed + 1)

    root = args.data or prepared(args.out / "photos", shard, make)
    val_steps = imagenet.val(args.size, resize=round(args.size * 256 / 224), memory_format="channels_last")
    val = datasets.ImageFolder(root / "val", val_steps)
    strengths = {name: getattr(args, name) for name in ("auto_augment", "erase", "mixup", "cutmix")}
    steps = imagenet.train_strong(args.size, **strengths, num_classes=len(val.classes), memory_format="channels_last")
    train = datasets.ImageFolder(root / "train", steps)
    common: dict[str, Any] = {
        "global_batch_size": args.batch_size,
        "num_workers": args.workers,
        "device": device,
        "engine": args.engine,
        "seed": args.seed,
        "shard": shard,
    }
    return (
        DataLoader(train, shuffle=True, drop_last=True, on_error=args.on_error, **common),
        DataLoader(val, **common),
    )


def make_model(args: argparse.Namespace, classes: int, device: torch.device) -> nn.Module:
    torch.manual_seed(args.seed)  # the same weights on every rank
    if args.model == "small":
        model: nn.Module = SmallResNet(classes)
    else:
        from torchvision.models import get_model

        model = get_model(args.model, num_classes=classes)
    return model.to(device).to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


@torch.inference_mode()
def evaluate(run: Run, model: nn.Module, loader: DataLoader) -> tuple[float, float, float, int]:
    """Return loss, share of right first and first five answers, and number of images: each once on any number of
    ranks."""
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64, device=run.device)
    for images, target in loader:
        real = loader.valid  # what comes after pads the batch to the size of the other ranks'
        with run.autocast():
            logits = model(images)[:real].float()
        target = target[:real]
        top = logits.topk(min(5, logits.shape[1])).indices == target[:, None]
        loss = nn.functional.cross_entropy(logits, target, reduction="sum")
        sums += torch.stack([loss.double(), top[:, 0].sum().double(), top.sum().double(), loss.new_tensor(real)])
    loss_sum, first, fifth, count = total(sums).tolist()
    return loss_sum / count, first / count, fifth / count, int(count)


def main() -> None:
    args = parse()
    shard, device = start(args)
    loader, evaluation = make_loaders(args, shard, device)
    model = make_model(args, len(loader.dataset.classes), device)
    optimizer = torch.optim.SGD(parameters(model, args.weight_decay), args.lr, momentum=0.9, nesterov=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    run = Run(args, device, loader, {"model": model}, optimizer)
    network = wrapped(model, args, device)
    for _ in run.epochs():
        network.train()
        for images, target in run.steps():
            with run.autocast():
                loss = criterion(network(images), target)
            run.step(loss)
        loss, top1, top5, count = evaluate(run, run.averaged(model), evaluation)
        run.end_epoch(val_loss=loss, top1=top1, top5=top5, val_images=count, best="top1")
    if loader.report().samples:
        print(loader.report())


if __name__ == "__main__":
    main()
