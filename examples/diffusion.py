"""Train a text-to-image model on images of any aspect ratio: rectified flow (Liu et al., 2023) on pixels, in buckets.

    python examples/diffusion.py                                            # no data needed: makes photographs
    torchrun --nproc-per-node 8 examples/diffusion.py /data/captions --size 512 --divisor 64 --batch-size 256
    python examples/diffusion.py --resume                                   # goes on where it stopped

The folder holds images and ``metadata.csv`` with the columns ``file_name`` and ``text``, as Hugging Face's
``imagefolder`` reads it. Images keep their aspect ratio: the sampler groups them by the sizes in the index, so that
each batch has one shape and nothing is decoded to find it. All ranks get the same shape in every step, an epoch drops
no image, and a resumed run goes on with the very next batch. The run folder gets ``samples.png`` after every epoch.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from captions import VOCABULARY, captioned, make, tokens
from PIL import Image
from run import Run, arguments, parameters, prepared, start, wrapped
from torch import Tensor, nn

from gpupipe import DataLoader, samplers, transforms as T


class Block(nn.Module):
    """Two convolutions whose channels the condition scales and shifts."""

    def __init__(self, channels: int, condition: int):
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.modulate = nn.Linear(condition, 2 * channels)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.modulate(condition)[:, :, None, None].chunk(2, 1)
        found: Tensor = self.second(nn.functional.silu(self.first(self.norm(x) * (1 + scale) + shift)))
        return x + found


class Flow(nn.Module):
    """Predicts the velocity from noise to image, f32[B, 3, H, W], at any size whose edges are multiples of 8."""

    def __init__(self, width: int = 32, condition: int = 64):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, condition, padding_idx=0)
        self.condition = nn.Sequential(nn.Linear(2 * condition, condition), nn.SiLU(), nn.Linear(condition, condition))
        widths = [width, 2 * width, 4 * width]
        self.inside = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Block(w, condition) for w in widths])
        self.smaller = nn.ModuleList([nn.Conv2d(a, b, 2, 2) for a, b in pairwise(widths)])
        self.larger = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths)])
        self.up = nn.ModuleList([Block(w, condition) for w in widths[:-1]])
        self.outside = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor, texts: Tensor) -> Tensor:
        half = self.words.embedding_dim // 2
        angles = t[:, None] * torch.exp(torch.linspace(0, math.log(1000), half, device=t.device))
        words = self.words(texts).sum(1) / (texts > 0).sum(1, keepdim=True).clamp(min=1)
        condition = self.condition(torch.cat([angles.sin(), angles.cos(), words], 1))
        x, skipped = self.inside(x), []
        for k, block in enumerate(self.down):
            x = block(x, condition)
            if k < len(self.smaller):
                skipped.append(x)
                x = self.smaller[k](x)
        for larger, block, skip in reversed(list(zip(self.larger, self.up, skipped, strict=True))):
            x = block(larger(x) + skip, condition)
        found: Tensor = self.outside(x)
        return found


@torch.inference_mode()
def sampled(model: Flow, texts: Tensor, shape: tuple[int, int], steps: int = 20) -> Tensor:
    """Return images f32[B, 3, H, W] in [0, 1]: follow the velocity from noise in equal steps."""
    x = torch.randn(len(texts), 3, *shape, device=texts.device)
    for k in range(steps):
        x = x + model(x, torch.full((len(texts),), k / steps, device=texts.device), texts) / steps
    return (x / 2 + 0.5).clamp(0, 1)


def main() -> None:
    p = arguments(__doc__, "diffusion", epochs=10, batch_size=16, size=64, lr=2e-3)
    p.add_argument("--divisor", type=int, default=16, help="edges of all shapes are multiples of this")
    p.add_argument("--no-caption", type=float, default=0.1, help="share of captions left out, for guidance")
    args = p.parse_args()
    shard, device = start(args)
    torch.manual_seed(args.seed)  # the same weights on every rank
    data = args.data or prepared(args.out / "photos", shard, make)
    images = captioned(
        data, [T.ResizeToBucket(), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5] * 3, [0.5] * 3)]
    )
    shapes = samplers.aspect_ratios(args.size**2, divisor=args.divisor)
    loader = DataLoader(
        images, global_batch_size=args.batch_size, sampler=samplers.AspectRatioBuckets(shapes), seed=args.seed,
        shard=shard, on_error="replace", num_workers=args.workers, device=device, engine=args.engine,
    )  # fmt: skip

    model = Flow().to(device)
    optimizer = torch.optim.AdamW(parameters(model, args.weight_decay), args.lr)
    run = Run(args, device, loader, {"model": model}, optimizer)
    network = wrapped(model, args, device)
    for _ in run.epochs():
        for batch, captions in run.steps():
            texts = tokens(captions, device)
            texts[torch.rand(len(texts), device=device) < args.no_caption] = 0
            t, noise = torch.rand(len(batch), device=device), torch.randn_like(batch)
            mixed = torch.lerp(noise, batch, t[:, None, None, None])
            with run.autocast():
                velocity = network(mixed, t, texts)
            run.step(nn.functional.mse_loss(velocity.float(), batch - noise))
        if run.main:
            drawn = sampled(run.averaged(model), tokens(list(captions[:4]), device), shapes[len(shapes) // 2])
            pixels = (torch.cat(list(drawn), dim=2) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
            Image.fromarray(pixels).save(args.out / "samples.png")
        run.end_epoch(best="loss", lowest=True)


if __name__ == "__main__":
    main()
