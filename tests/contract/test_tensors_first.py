"""Datasets that open images as tensors, with ``decode_image`` and its like, and give them to transforms.

torchvision's functions run with its own operators where these load, and otherwise with Pillow's decoders beneath them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_datasets import RARE, Photos
from PIL import Image
from support import BATCH, N
from torch.utils import data
from torchvision import io, tv_tensors
from torchvision.io import ImageReadMode, decode_image, decode_jpeg, read_file, read_image
from torchvision.transforms import v2
from torchvision.transforms.functional import pil_to_tensor
from torchvision_ops import define_image_operators

from gpupipe import DataLoader, FallbackWarning
from gpupipe.interop.datasets import translate_dataset
from gpupipe.loader.native import NativeSession

define_image_operators(io.image)

SIZED = [v2.Resize(32), v2.CenterCrop(32)]
END = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,), (0.5,))]
EVAL = v2.Compose([*SIZED, *END])
TRAIN = v2.Compose([v2.RandomResizedCrop(24, antialias=True), v2.RandomHorizontalFlip(), *END])


class Tensors(data.Dataset[Any]):
    """A list of files, a function that opens them, a transform."""

    def __init__(self, root: Path, opened: Callable[[Any], Any], transform: Any = EVAL):
        self.paths = sorted(path for path in root.rglob("*.*") if path.suffix in (".jpg", ".png"))
        self.opened, self.transform = opened, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.opened(self.paths[i])), i


def from_buffer(path: Path) -> Any:
    return decode_image(torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8))


UNDECODED: dict[str, Callable[[Any], Any]] = {
    "decode_image": decode_image,
    "by its module": lambda path: io.decode_image(str(path), mode="RGB"),
    "read_image": lambda path: read_image(str(path), ImageReadMode.RGB),
    "read_file": lambda path: decode_jpeg(read_file(str(path))),
    "a buffer": from_buffer,
    "upright": lambda path: decode_image(path, apply_exif_orientation=True),
    "tv_tensors.Image": lambda path: tv_tensors.Image(decode_image(path)),
    "pil_to_tensor": lambda path: pil_to_tensor(Image.open(path).convert("RGB")),
    "to_image": lambda path: v2.functional.to_image(Image.open(path).convert("RGB")),
    "to_image of an array": lambda path: v2.functional.to_image(np.array(Image.open(path).convert("RGB"))),
    "from_numpy": lambda path: torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1),
    "flipped": lambda path: decode_image(path).flip(2),
}
"""What DALI decodes."""
DECODED: dict[str, Callable[[Any], Any]] = {
    "gray of color": lambda path: decode_image(path, mode="GRAY"),
    "looked at": lambda path: decode_image(path) if decode_image(path).sum() else None,
    "another image": lambda path: (decode_image(path), pil_to_tensor(Image.new("RGB", (50, 40), "red")))[1],
}
"""What the script decodes; an engine does the transforms."""


def batches(dataset: Any, engine: str, by_hand: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of gpupipe's batch and torch's. The loader may not fall back."""
    with DataLoader(dataset, BATCH, engine=engine, device="cpu") as loader:  # type: ignore[arg-type]
        assert isinstance(loader._session, NativeSession)
        for (ours, i), (theirs, j) in zip(loader, data.DataLoader(dataset, BATCH), strict=True):
            assert torch.equal(i, j) and type(ours) is type(theirs)
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            yield ours, theirs
        assert loader.stats()["by_hand"] == by_hand


@pytest.mark.parametrize("how", UNDECODED | DECODED)
@pytest.mark.filterwarnings("error::gpupipe.GpupipeWarning")
def test_batches_are_torchs(how: str, numbered: Path) -> None:
    dataset = Tensors(numbered, (UNDECODED | DECODED)[how])
    for ours, theirs in batches(dataset, "dali"):
        assert torch.equal(ours, theirs)
    media, *_ = translate_dataset(dataset).fetch(2)
    assert isinstance(media, bytes) == (how in UNDECODED)


@pytest.mark.filterwarnings("error::gpupipe.GpupipeWarning")
def test_processes_and_draws(numbered: Path) -> None:
    dataset = Tensors(numbered, decode_image, TRAIN)
    epochs = []
    for engine, workers in (("dali", 0), ("dali", 2), ("torch", 0)):
        with DataLoader(dataset, BATCH, engine=engine, num_workers=workers, seed=3, device="cpu") as loader:  # type: ignore[arg-type]
            assert isinstance(loader._session, NativeSession)
            epochs.append(torch.cat([images for images, _ in loader]))
    assert torch.equal(*epochs[:2]) and (epochs[0] - epochs[2]).abs().max() * 127.5 <= 3


TURNED = Image.Exif()
TURNED[0x0112] = 6
MODES: dict[str, tuple[Callable[[Image.Image], Image.Image], str, dict[str, Any]]] = {
    "gray JPEG": (lambda image: image.convert("L"), "jpg", {}),
    "CMYK": (lambda image: image.convert("CMYK"), "jpg", {}),
    "PNG": (lambda image: image, "png", {}),
    "palette": (lambda image: image.convert("P"), "png", {}),
    "turned": (lambda image: image, "jpg", {"exif": TURNED}),
    "turned upright": (lambda image: image, "jpg", {"exif": TURNED}),
}


@pytest.mark.parametrize("kind", MODES)
@pytest.mark.filterwarnings("error::gpupipe.GpupipeWarning")
def test_files_of_every_mode(kind: str, numbered: Path, tmp_path: Path) -> None:
    convert, suffix, options = MODES[kind]
    upright = kind == "turned upright"
    for i, path in enumerate(sorted(numbered.rglob("*.jpg"))[:BATCH]):
        convert(Image.open(path)).save(tmp_path / f"{i}.{suffix}", **options)
    for mode in ("RGB",) if kind in ("CMYK", "palette") else ("UNCHANGED", "RGB"):
        dataset = Tensors(tmp_path, lambda path, mode=mode: decode_image(path, mode, apply_exif_orientation=upright))
        for ours, theirs in batches(dataset, "torch"):
            assert torch.equal(ours, theirs)
            assert ours.shape[1] == (1 if (kind, mode) == ("gray JPEG", "UNCHANGED") else 3)
        media, *_ = translate_dataset(dataset).fetch(1)
        assert isinstance(media, bytes) == (kind in ("gray JPEG", "turned"))


@pytest.mark.filterwarnings("error::gpupipe.GpupipeWarning")
def test_a_file_that_trials_did_not_see(numbered: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(numbered, tmp_path / "photos"))
    turned = Tensors(root, decode_image).paths[RARE]
    Image.open(turned).save(turned, exif=TURNED)
    dataset = Tensors(root, lambda path: decode_image(path, apply_exif_orientation=True))
    for ours, theirs in batches(dataset, "torch"):
        assert torch.equal(ours, theirs)
    assert [isinstance(translate_dataset(dataset).fetch(i)[0], bytes) for i in (RARE - 1, RARE)] == [True, False]


class WithMask(Tensors):
    """A JPEG file and a mask in a PNG file, as in torchvision's tutorial on segmentation."""

    def __getitem__(self, i: int) -> Any:
        path = self.paths[i]
        image, mask = tv_tensors.Image(decode_image(path)), tv_tensors.Mask(decode_image(path.with_suffix(".png")))
        return self.transform(image, mask)


def test_masks_are_decoded_at_once(numbered: Path, tmp_path: Path) -> None:
    for i, path in enumerate(sorted(numbered.rglob("*.jpg"))):
        image = Image.open(path)
        image.save(tmp_path / f"{i:02}.jpg", quality=95)
        image.convert("L").save(tmp_path / f"{i:02}.png")
    dataset = WithMask(tmp_path, decode_image)
    dataset.paths = sorted(tmp_path.glob("*.jpg"))
    with DataLoader(dataset, BATCH, engine="dali", device="cpu") as loader:
        for (images, masks), (their_images, their_masks) in zip(loader, data.DataLoader(dataset, BATCH), strict=True):
            assert torch.equal(images, their_images) and torch.equal(masks, their_masks)
    assert isinstance(translate_dataset(dataset).fetch(2)[0], bytes)


class Both(Tensors):
    def __getitem__(self, i: int) -> Any:
        image = self.opened(self.paths[i])
        return self.transform(tv_tensors.Image(image)), self.transform(image)


def test_two_results_of_an_image_draw_for_themselves(numbered: Path) -> None:
    with DataLoader(Both(numbered, decode_image, TRAIN), N, engine="dali", device="cpu") as loader:
        one, other = next(iter(loader))
    assert all(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.filterwarnings("error::gpupipe.GpupipeWarning")
def test_a_decoder_with_other_pixels_decodes(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with another libjpeg: trials notice it."""
    decode = torch.ops.image.decode_image
    monkeypatch.setattr(torch.ops.image, "decode_image", lambda *args: 255 - decode(*args))
    dataset = Tensors(numbered, decode_image)
    for ours, theirs in batches(dataset, "dali"):
        assert torch.equal(ours, theirs)
    assert not isinstance(translate_dataset(dataset).fetch(2)[0], bytes)


class InMemory(data.Dataset[Any]):
    def __init__(self, transform: Any = EVAL):
        self.images = torch.randint(256, (N, 3, 40, 36), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        self.transform = transform

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.images[i]), i


class Overwritten(InMemory):
    """Its transform has returned before the image of one sample becomes another one."""

    def __getitem__(self, i: int) -> Any:
        image = self.images[i].clone()
        made = self.transform(image)
        if i == RARE:
            image.zero_()
        return made, i


def test_tensors_in_memory() -> None:
    for dataset, by_hand in ((InMemory(), 0), (Overwritten(), 1)):
        for ours, theirs in batches(dataset, "dali", by_hand):
            assert torch.equal(ours, theirs)


class OfDoubles(Photos):
    def __getitem__(self, i: int) -> Any:
        return EVAL(decode_image(self.paths[i]).double()), i


def test_what_is_no_image_is_left_to_torch(numbered: Path) -> None:
    dataset, why = OfDoubles(numbered), "no image in its samples comes from transforms"
    with pytest.warns(FallbackWarning, match=re.escape(why)):
        loader = DataLoader(dataset, BATCH, device="cpu")
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(loader, data.DataLoader(dataset, BATCH), strict=True))
