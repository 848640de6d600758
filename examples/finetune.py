"""Fine-tune a classifier on a folder of your own: one subfolder of images for each class.

    python examples/finetune.py                                             # no data needed: makes photographs
    python examples/finetune.py ~/flowers --model resnet50 --weights resnet50.pth
    python examples/finetune.py ~/flowers --model resnet50 --weights resnet50.pth --freeze --lr 1e-3
    python examples/finetune.py ~/flowers --resume                          # goes on where it stopped

``--model`` is "small" (built in) or a name of torchvision. ``--weights`` is a file of weights; those that fit are
taken, and the last layer is new. A fifth of the images is held out and measures the accuracy. The run folder gets
``best.pt``, ``last.pt`` with everything that a resumed run needs, and ``metrics.csv``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from run import Run, arguments, parameters, photographs, start, total, wrapped
from small_resnet import SmallResNet
from torch import nn

from gpupipe import DataLoader, datasets
from gpupipe.pipelines import imagenet


def parse() -> argparse.Namespace:
    p = arguments(__doc__, "finetune", epochs=8, batch_size=32, size=224, lr=1e-3)
    p.add_argument("--model", default="small", help='"small" (built in), or a name of torchvision such as "resnet50"')
    p.add_argument("--weights", type=Path, help="file of weights to start from, such as torchvision's downloads")
    p.add_argument("--freeze", action="store_true", help="train the last layer only")
    p.add_argument("--held-out", type=float, default=0.2, help="share of the images that measures the accuracy")
    return p.parse_args()


def split(folder: datasets.ImageFolder, share: float) -> tuple[list[int], list[int]]:
    """Return the indices of training and of held-out images. They depend on the files' names alone, so that new images
    change nothing about old ones."""
    chosen = [crc32(folder.sample_name(i).encode()) / 2**32 < share for i in range(len(folder))]
    train, held = ([i for i, is_held in enumerate(chosen) if is_held == which] for which in (False, True))
    if not train or not held:
        raise SystemExit(f"--held-out {share} of {len(folder)} images leaves one part empty")
    return train, held


def make_model(args: argparse.Namespace, classes: int) -> nn.Module:
    if args.model == "small":
        model: nn.Module = SmallResNet(classes)
    else:
        from torchvision.models import get_model

        model = get_model(args.model, num_classes=classes)
    if args.weights is not None:
        state = torch.load(args.weights, map_location="cpu", weights_only=True)
        state = state.get("model", state)
        own = model.state_dict()
        fits = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
        model.load_state_dict(fits, strict=False)
        print(f"{len(fits)} of {len(own)} weights from {args.weights}; new: {', '.join(own.keys() - fits) or 'none'}")
    if args.freeze:
        *_, last = (module for module in model.modules() if isinstance(module, nn.Linear))
        model.requires_grad_(False)
        last.requires_grad_(True)
    return model


@torch.inference_mode()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    """Return the share of right answers over all held-out images, each counted once on any number of ranks."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.float64, device=loader.device)
    for images, labels in loader:
        real = loader.valid  # what comes after pads the batch to the size of the other ranks'
        right = (model(images)[:real].argmax(1) == labels[:real]).sum().double()
        counts += torch.stack([right, torch.full_like(right, real)])
    right_of_all, count = total(counts).tolist()
    model.train()
    return float(right_of_all / count)


def main() -> None:
    args = parse()
    shard, device = start(args)
    torch.manual_seed(args.seed)  # the same weights on every rank
    data = photographs(args, shard)
    options: dict[str, Any] = {
        "global_batch_size": args.batch_size,
        "num_workers": args.workers,
        "device": device,
        "engine": args.engine,
        "seed": args.seed,
        "shard": shard,
    }
    images = datasets.ImageFolder(data, imagenet.train(args.size, memory_format="channels_last"))
    evaluated = datasets.ImageFolder(data, imagenet.val(args.size, memory_format="channels_last"))
    train, held = split(images, args.held_out)
    loader = DataLoader(datasets.Subset(images, train), shuffle=True, drop_last=True, on_error="replace", **options)
    evaluation = DataLoader(datasets.Subset(evaluated, held), on_error="skip", **options)

    model = make_model(args, len(images.classes)).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(parameters(model, args.weight_decay), args.lr)
    run = Run(args, device, loader, {"model": model}, optimizer)
    network = wrapped(model, args, device)
    for _ in run.epochs():
        network.train()
        for batch, labels in run.steps():
            with run.autocast():
                loss = nn.functional.cross_entropy(network(batch), labels)
            run.step(loss)
        run.end_epoch(accuracy=accuracy(run.averaged(model), evaluation), best="accuracy")
    if loader.report().samples:
        print(loader.report())


if __name__ == "__main__":
    main()
