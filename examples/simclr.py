"""Learn features without labels: SimCLR (Chen et al., 2020), two views of every image from one decode.

    python examples/simclr.py                                               # no data needed: makes photographs
    torchrun --nproc-per-node 8 examples/simclr.py /data/imagenet/train --batch-size 4096 --lr 0.004
    python examples/simclr.py --resume                                      # goes on where it stopped

The folder holds one subfolder for each class. Labels serve only to measure how well features separate classes that
training never saw: by the labels of nearest neighbors, every epoch.
"""

from __future__ import annotations

import torch
import torch.distributed.nn as dist_nn
from run import Run, arguments, knn_accuracy, parameters, photographs, start, wrapped
from small_resnet import SmallResNet
from torch import Tensor, distributed as dist, nn

from gpupipe import DataLoader, datasets
from gpupipe.pipelines import imagenet, simclr


class Projected(nn.Module):
    """Features, and a head of two layers that training compares and evaluation leaves out."""

    def __init__(self, features: int = 128, out: int = 64):
        super().__init__()
        network = SmallResNet(features)
        self.encoder = nn.Sequential(network.features, nn.Flatten())
        self.head = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, out))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.encoder(x))
        return found


def nt_xent(one: Tensor, two: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of finding an image's other view among all views of the global batch (equation 1)."""
    views = nn.functional.normalize(torch.cat([one, two]).float())
    everything, first = views, 0
    if dist.is_initialized():  # differentiable, unlike torch.distributed.all_gather
        everything = torch.cat(dist_nn.all_gather(views))
        first = dist.get_rank() * len(views)
    n = len(views)
    own = first + torch.arange(n, device=views.device)
    similarity = (views @ everything.T / temperature).scatter(1, own[:, None], -torch.inf)
    other = first + (torch.arange(n, device=views.device) + n // 2) % n
    return nn.functional.cross_entropy(similarity, other)


def main() -> None:
    p = arguments(__doc__, "simclr", epochs=10, batch_size=64, size=96, lr=2e-3)
    p.add_argument("--temperature", type=float, default=0.2, help="of the softmax over all views")
    args = p.parse_args()
    shard, device = start(args)
    torch.manual_seed(args.seed)  # the same weights on every rank
    data = photographs(args, shard)
    common = {"num_workers": args.workers, "device": device, "engine": args.engine}
    loader = DataLoader(
        datasets.ImageFolder(data, simclr.train(args.size)), global_batch_size=args.batch_size, shuffle=True,
        drop_last=True, seed=args.seed, shard=shard, on_error="replace", **common,
    )  # fmt: skip
    plain = datasets.ImageFolder(data, imagenet.val(args.size))
    # Even samples are asked, and odd ones known.
    known, asked = (DataLoader(datasets.Subset(plain, range(k, len(plain), 2)), 64, **common) for k in (1, 0))

    model = Projected().to(device)
    optimizer = torch.optim.AdamW(parameters(model, args.weight_decay), args.lr)
    run = Run(args, device, loader, {"model": model}, optimizer)
    network = wrapped(model, args, device)
    for _ in run.epochs():
        for (one, two), _labels in run.steps():
            with run.autocast():
                # One pass for both views, so that batch norm sees them together.
                found = network(torch.cat([one, two]))
            one, two = found.chunk(2)
            run.step(nt_xent(one, two, args.temperature))
        run.end_epoch(knn=knn_accuracy(run.averaged(model).encoder, known, asked), best="knn")


if __name__ == "__main__":
    main()
