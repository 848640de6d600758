"""Images of a script's own Dataset are made on the GPU, and what reads them late reads the right pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms as T
from gpu_tools import DEVICE, delay, finish
from PIL import Image
from support import pictures

from gpupipe import DataLoader

EXACT = T.Compose([T.RandomCrop(48), T.RandomHorizontalFlip(), T.PILToTensor()])
TRANSFORMS = {
    "on the GPU": T.Compose([T.RandomResizedCrop(64), T.ColorJitter(0.4, 0.4, 0.4), T.ToTensor()]),
    "on the host": T.Compose([T.ColorJitter(0.4, 0.4, 0.4), T.Resize((64, 64)), T.ToTensor()]),
}


class Photographs(torch.utils.data.Dataset[tuple[Any, int]]):
    def __init__(self, folder: Path, transform: Any):
        self.files, self.transform = sorted(folder.glob("*.jpg")), transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(Image.open(self.files[index]).convert("RGB")), index


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("photographs")
    for number, picture in enumerate(pictures(24, 8, 8)):
        Image.fromarray(picture).resize((96 + number, 80 + number), Image.Resampling.BICUBIC).save(
            made / f"{number:02}.jpg"
        )
    return made


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=list(TRANSFORMS))
def test_batches_are_torchs_within_the_promises(folder: Path, transform: Any, workers: int) -> None:
    dataset = Photographs(folder, transform)
    torch.manual_seed(3)
    expected = list(torch.utils.data.DataLoader(dataset, 8, shuffle=True, num_workers=workers))
    torch.manual_seed(3)
    with DataLoader(dataset, 8, shuffle=True, num_workers=workers, device=DEVICE) as loader:
        for (images, numbers), (images2, numbers2) in zip(loader, expected, strict=True):
            finish()
            assert images.is_cuda and numbers.is_cuda
            assert numbers.tolist() == numbers2.tolist()
            assert float((images.cpu() - images2).abs().mean()) < 1.5 / 255


def test_memory_of_a_batch_is_kept_while_the_stream_may_read_it(folder: Path) -> None:
    dataset = Photographs(folder, EXACT)

    def epoch(*, late: bool) -> list[Any]:
        torch.manual_seed(5)
        copies = []
        with DataLoader(dataset, 4, shuffle=True, num_workers=2, device=DEVICE) as loader:
            for images, _ in loader:
                if late:
                    delay(50)
                copies.append(images.clone())
                if not late:
                    finish()
                del images
            finish()
        return copies

    for one, other in zip(epoch(late=False), epoch(late=True), strict=True):
        assert torch.equal(one, other)
