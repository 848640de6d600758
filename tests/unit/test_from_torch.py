"""``datasets.from_torch``: images of your own Dataset with gpupipe's transforms, in a live loader."""

from __future__ import annotations

import io
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset

from gpupipe import DataLoader, transforms as T
from gpupipe.codecs.decode import decode
from gpupipe.codecs.limits import Limits
from gpupipe.datasets import from_torch
from gpupipe.errors import ConfigError, DatasetError, PipelineError, SampleError
from gpupipe.testing.photos import photograph

PIPELINE = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()])
MEDIA = ("path", "bytes", "array", "pil")


def jpeg(i: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(photograph(40 + i, 60 - i, i)).save(file, "JPEG")
    return file.getvalue()


class Items(TorchDataset[Any]):
    """Every form of media, with any targets."""

    def __init__(self, media: str, folder: Path | None = None, targets: Any = lambda i: (i,), n: int = 8):
        self.media, self.folder, self.targets, self.n = media, folder, targets, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        data = jpeg(i)
        media: Any = data
        if self.media == "path":
            assert self.folder is not None
            media = self.folder / f"{i}.jpg"
            media.write_bytes(data)
        elif self.media in ("array", "pil"):
            media = Image.open(io.BytesIO(data))
            media = np.asarray(media) if self.media == "array" else media
        return (media, *self.targets(i)) if self.targets else media


def epochs(dataset: Any, count: int = 1, **arguments: Any) -> list[list[Any]]:
    given = {"batch_size": 3, "shuffle": True, "seed": 5, "device": "cpu", **arguments}
    with DataLoader(dataset, **given) as loader:
        return [list(loader) for _ in range(count)]


def equal(one: list[list[Any]], two: list[list[Any]]) -> bool:
    pairs = [pair for a, b in zip(one, two, strict=True) for pair in zip(a, b, strict=True)]
    return all(torch.equal(x, y) for a, b in pairs for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("media", MEDIA)
def test_all_media_give_the_reference_in_any_engine_and_number_of_workers(
    media: Any, tmp_path: Path, rng_untouched: None
) -> None:
    """DALI's pixels of encoded images are the reference's here: both decode, crop, resize and flip in the same way."""
    want = epochs(from_torch(Items("bytes"), "bytes", PIPELINE), 2, engine="torch")
    assert want[0][0][0].shape == (3, 3, 24, 24) and not equal(want[:1], want[1:])
    dataset = from_torch(Items(media, tmp_path), media, PIPELINE)
    for engine in ("torch", "dali"):
        for workers in (0, 2):
            got = epochs(dataset, 2, engine=engine, num_workers=workers)
            for batch, other in zip(chain(*got), chain(*want), strict=True):
                assert torch.equal(batch[1], other[1])
                assert torch.allclose(batch[0], other[0], atol=0 if engine == "torch" else 1.01 / 255)


def test_images_wait_for_an_engine() -> None:
    with DataLoader(from_torch(Items("bytes"), "bytes", PIPELINE), 4, device="cpu") as loader:
        list(loader)
        assert loader.stats()["images"] == {"opened": 8, "waited": 8, "looks": {}}


def test_targets_of_every_shape() -> None:
    def target(of: Any) -> Any:
        return epochs(from_torch(Items("bytes", targets=of), "bytes", PIPELINE), shuffle=False)[0][0][1]

    (alone, *_), *_ = epochs(from_torch(Items("bytes", targets=None), "bytes", PIPELINE))
    assert alone.shape == (3, 3, 24, 24)
    assert target(lambda i: (i,)).tolist() == [0, 1, 2]
    first, second = target(lambda i: (i, f"name {i}"))
    assert first.tolist() == [0, 1, 2] and list(second) == ["name 0", "name 1", "name 2"]
    assert target(lambda i: ({"box": torch.full((4,), i)},))["box"].shape == (3, 4)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("media", "item", "got"),
    [
        ("path", b"abc", "returned bytes"),
        ("path", torch.zeros(3, 4, 4), r"Tensor float32\[3, 4, 4\]; permute\(1, 2, 0\)"),
        ("bytes", "a.jpg", "returned str"),
        ("bytes", np.zeros((4, 4), np.uint8), r"ndarray uint8\[4, 4\]"),
        ("array", np.zeros((4, 4, 2), np.uint8), r"ndarray uint8\[4, 4, 2\]"),
        ("array", np.zeros((4, 4, 3), np.float32), r"ndarray float32\[4, 4, 3\]"),
        ("pil", (), "returned an empty sequence"),
    ],
)
def test_items_of_the_wrong_type(media: Any, item: Any, got: str, workers: int) -> None:
    dataset = from_torch([item] * 2, media, PIPELINE)
    with pytest.raises(DatasetError, match=rf"list\[0\] {'' if 'returned' in got else 'returned '}{got}.*expects"):
        epochs(dataset, shuffle=False, num_workers=workers)


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_sample_that_cannot_be_read(on_error: Any) -> None:
    dataset = from_torch([(jpeg(i) if i != 4 else b"no image", i) for i in range(8)], "bytes", PIPELINE)
    if on_error == "raise":
        with pytest.raises(Exception, match="cannot identify image file"):
            epochs(dataset)
        return
    with DataLoader(dataset, 4, seed=5, device="cpu", on_error=on_error) as loader:
        labels = [batch[1].tolist() for batch in loader]
        assert labels == [[0, 1, 2, 3], [5, 6, 7] if on_error == "skip" else [5, 5, 6, 7]]
        ((index, path, _, reason),) = [sample[:4] for sample in loader.report().samples]
    assert (index, path) == (4, "sample 4 of FromTorch") and "cannot identify image file" in reason
    with pytest.raises(SampleError, match="max_bad=0"):
        epochs(dataset, on_error=on_error, max_bad=0)


def test_what_it_says_of_itself_and_what_it_refuses() -> None:
    assert repr(from_torch([(b"", 1)] * 1200, "bytes")) == "FromTorch(list, 1,200 samples)"
    with pytest.raises(DatasetError, match="media must be one of path, bytes, array, pil, not 'tensor'"):
        from_torch([], "tensor")  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match=r"generator needs __getitem__\(\) and __len__\(\)"):
        from_torch(i for i in range(3))
    mixing = T.Compose([T.ToTensor(), T.MixUp(num_classes=3)])
    with pytest.raises(ConfigError, match=r"MixUp.* mixes batches.*torchvision\.transforms\.v2.*collate_fn"):
        from_torch([(b"", 1)], "bytes", mixing)
    dataset = from_torch(Items("bytes"), "bytes", PIPELINE)
    for arguments in ({"exclude": [1]}, {"epoch_length": 3}, {"infinite": True}, {"engine": "null"}):
        with pytest.raises(ConfigError, match=r"pass one of gpupipe\.datasets"):
            DataLoader(dataset, device="cpu", **arguments)  # type: ignore[arg-type]
    with DataLoader(dataset, device="cpu", seed=1) as loader, pytest.raises(ConfigError, match="only knows the next"):
        loader.plan_at(0, 0)


@pytest.mark.parametrize("media", ["path", "bytes", "pil"])
def test_exif(media: Any, mixed_images: Path) -> None:
    whole = T.Compose([T.PILToTensor()])
    for path in sorted(mixed_images.rglob("*.jpg")):
        item: Any = path.read_bytes() if media == "bytes" else path if media == "path" else Image.open(path)
        for exif in (False, True):
            want = decode(str(path), Limits(exif=exif))
            ((batch,),) = epochs(from_torch([item], media, whole, exif=exif))
            assert torch.equal(batch[0].permute(1, 2, 0), torch.from_numpy(want.copy()))


def test_masks_boxes_and_keypoints_do_not_stay_where_the_image_moves() -> None:
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    boxes = tv_tensors.BoundingBoxes(torch.ones(1, 4), format="XYXY", canvas_size=(8, 8))
    dataset = from_torch([(np.zeros((8, 8, 3), np.uint8), {"boxes": [boxes]})], "array", T.Compose([T.Resize((4, 4))]))
    with pytest.raises(PipelineError, match=r"list\[0\] returned BoundingBoxes, which would not move with its image"):
        dataset[0]
