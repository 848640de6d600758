"""A training script as users write it. ``tests/unit/test_typed_scripts.py`` gives it to type checkers."""

from __future__ import annotations

from typing import assert_type

import torch
from torch import Tensor, nn

from gpupipe import DataLoader, Shard, datasets, transforms as T
from gpupipe.pipelines import imagenet

Batches = DataLoader[tuple[Tensor, Tensor]]


def loaders(root: str, batch_size: int) -> tuple[Batches, Batches]:
    steps = [
        T.RandomResizedCrop(176, scale=(0.25, 1.0), interpolation="bicubic"),
        T.RandAugment(),
        T.ToTensor(),
        T.Normalize(0.5, 0.25),
        T.RandomErasing(0.1, value="random"),
    ]
    train = datasets.ImageFolder(f"{root}/train", T.Compose([*steps, T.MixUp(num_classes=10)]))
    val = datasets.ImageFolder(f"{root}/val", imagenet.val(176))
    shard = Shard.from_env()
    return (
        DataLoader(train, batch_size, shuffle=True, num_workers=8, drop_last=True, seed=1, shard=shard),
        DataLoader(val, batch_size, num_workers=8, on_error="skip"),
    )


def named(samples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    return {"image": torch.stack([x for x, _ in samples]), "label": torch.tensor([y for _, y in samples])}


def train(model: nn.Module, loader: Batches, optimizer: torch.optim.Optimizer) -> float:
    total = 0.0
    for images, labels in loader:
        assert_type((images, labels), tuple[Tensor, Tensor])
        loss = nn.functional.cross_entropy(model(images.to(memory_format=torch.channels_last)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    stats = loader.stats()
    assert_type((stats.stall, stats.samples, stats.stages), tuple[float, int, dict[str, float]])
    print(f"{stats.samples_per_second:.0f} samples/s, waits for {100 * stats.stall:.0f} %")
    if stats.bottleneck is not None and stats.bottleneck.share > 0.1:
        print(stats.bottleneck.stage.upper(), stats.bottleneck.next_step)
    return total / len(loader)


def look(loader: Batches, folder: datasets.ImageFolder[Tensor]) -> None:
    images, labels = loader.at(epoch=3, step=7)
    print(images.shape, labels.tolist(), loader.plan_at(3, 7).indices.tolist())
    assert_type((images, labels), tuple[Tensor, Tensor])
    image, label = folder[0]
    assert_type((image, label), tuple[Tensor, int])
    print(image.mean(), folder.classes[label], loader.show("step.html", epoch=3, step=7).name)
    for batch in DataLoader(folder, 32, collate_fn=named):
        assert_type(batch, dict[str, Tensor])
    masks = datasets.SegmentationFolder("images", "masks", T.Compose([T.RandomCrop(64), T.ToTensor()]))
    for picture, mask in DataLoader(masks, 4):
        print(picture.shape, mask.shape)
