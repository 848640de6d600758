"""Learn features without labels: DINO (Caron et al., 2021), two large and several small views from one decode.

    python examples/dino.py                                                 # no data needed: makes photographs
    torchrun --nproc-per-node 8 examples/dino.py /data/imagenet/train --size 224 --small-size 96 --small-views 8 \
        --batch-size 1024 --lr 0.002 --momentum 0.996
    python examples/dino.py --resume                                        # goes on where it stopped

A student sees all views, a teacher only the large ones. The teacher is the moving average of the student, and its
outputs are centered and sharpened so that they do not collapse. The folder holds one subfolder for each class; labels
serve only to measure the features, by the labels of nearest neighbors.
"""

from __future__ import annotations

import copy
import math

import torch
from run import Run, arguments, knn_accuracy, parameters, photographs, start, wrapped
from small_resnet import SmallResNet
from torch import Tensor, distributed as dist, nn

from gpupipe import DataLoader, datasets
from gpupipe.pipelines import dino, imagenet


class Projected(nn.Module):
    """Features, and a head whose outputs are compared: normalized features times normalized prototypes."""

    def __init__(self, features: int = 128, hidden: int = 64, out: int = 64):
        super().__init__()
        network = SmallResNet(features)
        self.encoder = nn.Sequential(network.features, nn.Flatten())
        layers = [nn.Linear(features, features), nn.BatchNorm1d(features), nn.GELU()]
        self.head = nn.Sequential(*layers, nn.Linear(features, hidden))
        self.prototypes = nn.Parameter(nn.functional.normalize(torch.randn(out, hidden)))

    def forward(self, x: Tensor) -> Tensor:
        found = nn.functional.normalize(self.head(self.encoder(x)))
        return found @ nn.functional.normalize(self.prototypes).T


class Centered(nn.Module):
    """The teacher's outputs as probabilities: less their moving mean, and sharpened."""

    center: Tensor

    def __init__(self, out: int = 64, temperature: float = 0.04, momentum: float = 0.9):
        super().__init__()
        self.temperature, self.momentum = temperature, momentum
        self.register_buffer("center", torch.zeros(out))

    def forward(self, x: Tensor) -> Tensor:
        found = ((x.float() - self.center) / self.temperature).softmax(1)
        mean = x.float().mean(0)
        if dist.is_initialized():
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        self.center.lerp_(mean, 1 - self.momentum)
        return found


def main() -> None:
    p = arguments(__doc__, "dino", epochs=10, batch_size=64, size=96, lr=3e-3, ema=False)
    p.add_argument("--small-size", type=int, default=48, help="edge of the small views in pixels")
    p.add_argument("--small-views", type=int, default=4, help="number of small views")
    p.add_argument("--momentum", type=float, default=0.9, help="of the teacher at first; 0.996 for long runs")
    args = p.parse_args()
    shard, device = start(args)
    torch.manual_seed(args.seed)  # the same weights on every rank
    data = photographs(args, shard)
    common = {"num_workers": args.workers, "device": device, "engine": args.engine}
    views = dino.train(args.size, small_size=args.small_size, small=args.small_views)
    loader = DataLoader(
        datasets.ImageFolder(data, views), global_batch_size=args.batch_size, shuffle=True, drop_last=True,
        seed=args.seed, shard=shard, on_error="replace", **common,
    )  # fmt: skip
    plain = datasets.ImageFolder(data, imagenet.val(args.size))
    known, asked = (DataLoader(datasets.Subset(plain, range(k, len(plain), 2)), 64, **common) for k in (1, 0))

    student = Projected().to(device)
    teacher, centered = copy.deepcopy(student).requires_grad_(False), Centered().to(device)
    optimizer = torch.optim.AdamW(parameters(student, args.weight_decay), args.lr)
    run = Run(args, device, loader, {"student": student, "teacher": teacher, "centered": centered}, optimizer)
    network = wrapped(student, args, device)
    for _ in run.epochs():
        for images, _labels in run.steps():
            with run.autocast():
                # One pass for each size.
                large, small = torch.cat(images[:2]), torch.cat(images[2:])
                found = [*network(large).chunk(2), *network(small).chunk(args.small_views)]
                with torch.no_grad():
                    targets = centered(teacher(large)).chunk(2)
            logs = [(view.float() / 0.1).log_softmax(1) for view in found]
            # Every view of the student against both of the teacher, but no view against itself.
            pairs = [(t, s) for t in range(2) for s in range(len(logs)) if s != t]
            loss = -sum((targets[t] * logs[s]).sum(1).mean() for t, s in pairs) / len(pairs)
            assert isinstance(loss, Tensor)
            if not run.step(loss):
                continue
            done = run.step_number / (args.epochs * len(loader))
            momentum = 1 - (1 - args.momentum) * (math.cos(math.pi * done) + 1) / 2
            with torch.no_grad():
                for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                    mine.lerp_(theirs, 1 - momentum)
                for statistic, other in zip(teacher.buffers(), student.buffers(), strict=True):
                    statistic.copy_(other)
        run.end_epoch(knn=knn_accuracy(teacher.encoder, known, asked), best="knn")


if __name__ == "__main__":
    main()
