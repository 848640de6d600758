"""Learn to match images and captions: CLIP (Radford et al., 2021).

    python examples/clip.py                                                 # no data needed: makes photographs
    torchrun --nproc-per-node 8 examples/clip.py /data/captions --size 224 --batch-size 4096 --lr 0.0005
    python examples/clip.py --resume                                        # goes on where it stopped

The folder holds images and ``metadata.csv`` with the columns ``file_name`` and ``text``, as Hugging Face's
``imagefolder`` reads it. Every tenth image is held out: the recipe reports how often the best of all different captions
is the right one.
"""

from __future__ import annotations

import math

import torch
import torch.distributed.nn as dist_nn
from captions import VOCABULARY, captioned, make, tokens
from run import Run, arguments, parameters, prepared, start, wrapped
from small_resnet import SmallResNet
from torch import Tensor, distributed as dist, nn

from gpupipe import DataLoader, datasets
from gpupipe.pipelines import imagenet


class Matched(nn.Module):
    """Encoders of images and of texts into one space, and the temperature of their comparison."""

    def __init__(self, width: int = 128):
        super().__init__()
        self.image = SmallResNet(width)
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.text = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def of_texts(self, texts: Tensor) -> Tensor:
        count = (texts > 0).sum(1, keepdim=True).clamp(min=1)
        found: Tensor = self.text(self.words(texts).sum(1) / count)
        return nn.functional.normalize(found)

    def forward(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return nn.functional.normalize(self.image(images)), self.of_texts(texts), self.scale.clamp(max=math.log(100))


def contrast(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """Cross-entropy of finding each image's caption in the global batch, and each caption's image."""
    images, texts = images.float(), texts.float()
    all_images, all_texts, first = images, texts, 0
    if dist.is_initialized():  # differentiable, unlike torch.distributed.all_gather
        all_images, all_texts = (torch.cat(dist_nn.all_gather(own)) for own in (images, texts))
        first = dist.get_rank() * len(images)
    own = first + torch.arange(len(images), device=images.device)
    a, b = (scale.exp() * one @ other.T for one, other in ((images, all_texts), (texts, all_images)))
    return (nn.functional.cross_entropy(a, own) + nn.functional.cross_entropy(b, own)) / 2


@torch.inference_mode()
def accuracy(model: Matched, loader: DataLoader, device: torch.device) -> float:
    """Return how often the right caption is the best one of all different captions."""
    model.eval()
    found, texts = [], []
    for images, captions in loader:
        found.append(nn.functional.normalize(model.image(images)))
        texts += captions
    different = sorted(set(texts))
    best: list[int] = (torch.cat(found) @ model.of_texts(tokens(different, device)).T).argmax(1).tolist()
    model.train()
    right = [different[k] == text for k, text in zip(best, texts, strict=True)]
    return float(sum(right) / len(right))


def main() -> None:
    p = arguments(__doc__, "clip", epochs=12, batch_size=32, size=96, lr=2e-3)
    args = p.parse_args()
    shard, device = start(args)
    torch.manual_seed(args.seed)  # the same weights on every rank
    data = args.data or prepared(args.out / "photos", shard, make)
    common = {"num_workers": args.workers, "device": device, "engine": args.engine}
    images, plain = captioned(data, imagenet.train(args.size)), captioned(data, imagenet.val(args.size))
    train = [k for k in range(len(images)) if k % 10]
    loader = DataLoader(
        datasets.Subset(images, train), global_batch_size=args.batch_size, shuffle=True, drop_last=True,
        seed=args.seed, shard=shard, on_error="replace", **common,
    )  # fmt: skip
    evaluation = DataLoader(datasets.Subset(plain, range(0, len(plain), 10)), 64, **common)

    model = Matched().to(device)
    optimizer = torch.optim.AdamW(parameters(model, args.weight_decay), args.lr)
    run = Run(args, device, loader, {"model": model}, optimizer)
    network = wrapped(model, args, device)
    for _ in run.epochs():
        for batch, captions in run.steps():
            with run.autocast():
                found = network(batch, tokens(captions, device))
            run.step(contrast(*found))
        run.end_epoch(accuracy=accuracy(run.averaged(model), evaluation, device), best="accuracy")


if __name__ == "__main__":
    main()
