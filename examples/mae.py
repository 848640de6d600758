"""Learn features without labels: a masked autoencoder (He et al., 2022) that completes images from a quarter of them.

    python examples/mae.py                                                  # no data needed: makes photographs
    torchrun --nproc-per-node 8 examples/mae.py /data/imagenet/train --size 224 --patch 16 --width 768 --depth 12 \
        --batch-size 4096
    python examples/mae.py --resume                                         # goes on where it stopped

Images are cropped and flipped, nothing else. The encoder sees the patches that are not masked; a small decoder predicts
the pixels of the others, normalized by patch.
"""

from __future__ import annotations

import torch
from run import Run, arguments, knn_accuracy, parameters, photographs, start, wrapped
from torch import Tensor, nn

from gpupipe import DataLoader, datasets, transforms as T
from gpupipe.pipelines import imagenet


def blocks(width: int, depth: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width, max(width // 64, 1), 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)


class MaskedAutoencoder(nn.Module):
    """Encoder of visible patches and decoder of all, with learned positions."""

    def __init__(self, size: int, patch: int, width: int, depth: int):
        super().__init__()
        self.patch, self.count = patch, (size // patch) ** 2
        pixels = 3 * patch**2
        self.embed, self.positions = nn.Linear(pixels, width), nn.Parameter(0.02 * torch.randn(self.count, width))
        self.encoder, self.decoder = blocks(width, depth), blocks(width // 2, 1)
        self.narrow, self.predict = nn.Linear(width, width // 2), nn.Linear(width // 2, pixels)
        self.masked = nn.Parameter(torch.zeros(width // 2))
        self.decoder_positions = nn.Parameter(0.02 * torch.randn(self.count, width // 2))

    def patches(self, images: Tensor) -> Tensor:
        """Return [B, L, 3 * patch**2]."""
        return nn.functional.unfold(images, self.patch, stride=self.patch).transpose(1, 2)

    def features(self, images: Tensor) -> Tensor:
        """Return [B, width]: the mean over all patches."""
        found: Tensor = self.encoder(self.embed(self.patches(images)) + self.positions)
        return found.mean(1)

    def forward(self, images: Tensor, share: float) -> Tensor:
        """Return the loss with this share of the patches masked."""
        patches = self.patches(images)
        n, count = len(images), self.count
        order = torch.rand(n, count, device=images.device).argsort(1)
        seen, hidden = order[:, : int(count * (1 - share))], order[:, int(count * (1 - share)) :]
        rows = torch.arange(n, device=images.device)[:, None]
        found = self.encoder(self.embed(patches[rows, seen]) + self.positions[seen])
        complete = self.masked.to(found.dtype).expand(n, count, -1).clone()
        complete[rows, seen] = self.narrow(found)
        predicted = self.predict(self.decoder(complete + self.decoder_positions))[rows, hidden]
        target = patches[rows, hidden]
        target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
        return nn.functional.mse_loss(predicted.float(), target.float())


class _Features(nn.Module):
    def __init__(self, model: MaskedAutoencoder):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.features(images)


def main() -> None:
    p = arguments(__doc__, "mae", epochs=20, batch_size=64, size=64, lr=2e-3)
    p.add_argument("--patch", type=int, default=8, help="edge of a patch in pixels")
    p.add_argument("--width", type=int, default=128, help="of the encoder")
    p.add_argument("--depth", type=int, default=3, help="layers of the encoder")
    p.add_argument("--masked", type=float, default=0.75, help="share of the patches that the encoder does not see")
    args = p.parse_args()
    shard, device = start(args)
    torch.manual_seed(args.seed)  # the same weights on every rank
    data = photographs(args, shard)
    common = {"num_workers": args.workers, "device": device, "engine": args.engine}
    normalize = [T.ToTensor(), T.Normalize(imagenet.MEAN, imagenet.STD)]
    crop = T.RandomResizedCrop(args.size, scale=(0.2, 1.0), interpolation="bicubic")
    loader = DataLoader(
        datasets.ImageFolder(data, [crop, T.RandomHorizontalFlip(), *normalize]), shuffle=True, drop_last=True,
        global_batch_size=args.batch_size, seed=args.seed, shard=shard, on_error="replace", **common,
    )  # fmt: skip
    plain = datasets.ImageFolder(data, imagenet.val(args.size))
    known, asked = (DataLoader(datasets.Subset(plain, range(k, len(plain), 2)), 64, **common) for k in (1, 0))

    model = MaskedAutoencoder(args.size, args.patch, args.width, args.depth).to(device)
    optimizer = torch.optim.AdamW(parameters(model, args.weight_decay), args.lr, betas=(0.9, 0.95))
    run = Run(args, device, loader, {"model": model}, optimizer)
    network = wrapped(model, args, device)
    for _ in run.epochs():
        for images, _labels in run.steps():
            with run.autocast():
                loss = network(images, args.masked)
            run.step(loss)
        run.end_epoch(knn=knn_accuracy(_Features(run.averaged(model)), known, asked), best="knn")


if __name__ == "__main__":
    main()
