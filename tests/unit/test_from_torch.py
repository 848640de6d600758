"""torch datasets: items taken over as media, and datasets run as they are."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset, IterableDataset

from gpupipe import transforms as T
from gpupipe.codecs.decode import decode
from gpupipe.datasets.dataset import Dataset
from gpupipe.datasets.user_code import FromTorch, from_torch
from gpupipe.engines.torch import Torch
from gpupipe.errors import DatasetError, PipelineError, SampleError
from gpupipe.reading.buffers import views_of
from gpupipe.reading.plan_workers import Workers
from gpupipe.reading.setup import Setup
from gpupipe.reading.user_code import Pack
from gpupipe.testing.photos import photograph
from gpupipe.types import Plan

PIPELINE = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()])


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


def no_targets_at_all(ds: Items) -> Items:
    ds.targets = None
    return ds


def make_plan(indices: Any, epoch: int = 0) -> Plan:
    indices = np.asarray(indices, np.int64)
    return Plan(5, epoch, 0, indices, indices.astype(np.uint64), len(indices), 0)


def engine_of(dataset: Dataset, workers: int = 0) -> Any:
    return Torch().build(Setup(dataset, dataset.transform, "cpu", 4, workers))


def run(dataset: Dataset, *plans: Plan, workers: int = 0) -> Any:
    engine = engine_of(dataset, workers)
    try:
        return list(engine.run(iter(plans)))
    finally:
        engine.close()


# Items as media


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("media", ["path", "bytes", "array", "pil"])
def test_all_media_give_the_same_batches(media: Any, workers: int, tmp_path: Path, rng_untouched: None) -> None:
    dataset = from_torch(Items(media, tmp_path), media, PIPELINE)
    plans = [make_plan([0, 1, 2, 3]), make_plan([7, 5])]
    batches = run(dataset, *plans, workers=workers)
    want = run(from_torch(Items("bytes"), "bytes", PIPELINE), *plans)
    for batch, other, p in zip(batches, want, plans, strict=True):
        assert torch.equal(batch.images, other.images) and batch.images.shape == (len(p), 3, 24, 24)
        assert batch.target.tolist() == p.indices.tolist()
        assert batch.plan.ops is not None and batch.plan.sizes.tolist() == [[40 + i, 60 - i] for i in p.indices]


def test_targets_of_every_shape() -> None:
    def target(of: Any) -> Any:
        dataset = from_torch(Items("bytes", targets=of), "bytes", PIPELINE)
        return run(dataset, make_plan([1, 2]))[0].target

    assert run(from_torch(no_targets_at_all(Items("bytes")), "bytes", PIPELINE), make_plan([1, 2]))[0].target is None
    assert target(lambda i: (i,)).tolist() == [1, 2]
    first, second = target(lambda i: (i, f"name {i}"))
    assert first.tolist() == [1, 2] and list(second) == ["name 1", "name 2"]
    assert target(lambda i: (np.str_(i),)) == ("1", "2") and target(lambda i: (b"a",)) == (b"a", b"a")
    assert target(lambda i: ({"box": torch.full((4,), i)},))["box"].shape == (2, 4)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as error:
        target(lambda i: (torch.zeros(i),))
    assert "tensors of equal shape" in error.value.__notes__[0]


@pytest.mark.parametrize(
    ("media", "item", "got"),
    [
        ("path", b"abc", "returned bytes"),
        ("path", torch.zeros(3, 4, 4), r"Tensor float32\[3, 4, 4\]; permute\(1, 2, 0\)"),
        ("bytes", "a.jpg", "returned str"),
        ("array", np.zeros((4, 4, 3), np.float32), r"ndarray float32\[4, 4, 3\]"),
        ("array", np.zeros((3, 9, 9), np.uint8), r"ndarray uint8\[3, 9, 9\]"),
        ("pil", np.zeros((4, 4, 3), np.uint8), r"ndarray uint8\[4, 4, 3\]"),
        ("bytes", {"image": b""}, "returned dict"),
        ("bytes", (), "an empty sequence"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_items_of_the_wrong_type(media: Any, item: Any, got: str, workers: int) -> None:
    class Wrong(list[Any]):
        pass

    dataset = from_torch(Wrong([item] * 3), media, PIPELINE)
    with pytest.raises(DatasetError, match=rf"Wrong\[2\] .*{got}.*media='{media}' expects"):
        run(dataset, make_plan([2]), workers=workers)


def test_datasets_that_cannot_be_ordered() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    class Endless:
        def __getitem__(self, i: int) -> int:
            return i

    with pytest.raises(DatasetError, match=r"Stream is an IterableDataset.*map-style"):
        from_torch(Stream())
    with pytest.raises(DatasetError, match=r"Endless has no __len__\(\)"):
        from_torch(Endless())
    with pytest.raises(DatasetError, match="list is empty"):
        from_torch([])
    with pytest.raises(DatasetError, match="media must be one of path, bytes, array, pil, not 'jpeg'"):
        from_torch(["a"], "jpeg")  # type: ignore[arg-type]


def test_what_a_wrapped_dataset_says_of_itself() -> None:
    dataset = from_torch(Items("bytes"), "bytes")
    assert (
        isinstance(dataset, FromTorch) and dataset.runs_user_code and dataset.sizes is None and dataset.labels is None
    )
    assert dataset.fingerprint != from_torch(Items("bytes", n=9), "bytes").fingerprint
    assert dataset.describe(3) == "sample 3 of Items" and "Items" in repr(dataset)


def test_exif_of_pil_images(mixed_images: Path) -> None:
    with Image.open(mixed_images / "jpeg" / "exif6.jpg") as image:
        image.load()
    assert from_torch([image], "pil").fetch(0)[0].shape == (100, 150, 3)
    assert from_torch([image], "pil", exif=True).fetch(0)[0].shape == (150, 100, 3)


def test_exceptions_of_the_dataset_are_bad_samples() -> None:
    class Faulty(Items):
        def __getitem__(self, i: int) -> Any:
            if i == 2:
                raise KeyError("no row 2")
            return super().__getitem__(i)

    engine = engine_of(from_torch(Faulty("bytes"), "bytes", PIPELINE))
    batches = engine.run(iter([make_plan([1, 2]), make_plan([3, 4])]))
    with pytest.raises(SampleError, match=r"sample 2 of Faulty\): error: KeyError: 'no row 2'"):
        next(batches)
    assert next(batches).plan.indices.tolist() == [3, 4]


def test_images_of_different_size_without_a_resize() -> None:
    dataset = from_torch(Items("bytes"), "bytes", T.Compose([T.ToTensor()]))
    with pytest.raises(PipelineError, match="different sizes"):
        run(dataset, make_plan([0, 1]), workers=1)
    assert run(dataset, make_plan([3]))[0].images.shape == (1, 3, 43, 57)


# Media packed for another engine


def all_codings(coding: str) -> bool:
    return True


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("media", ["path", "bytes", "array", "pil"])
def test_pack(media: Any, workers: int, tmp_path: Path) -> None:
    dataset = from_torch(Items(media, tmp_path), media, PIPELINE)
    jobs = Workers(Pack(dataset, PIPELINE, all_codings), Setup(dataset, PIPELINE, "cpu", 4, workers))
    packed: Any
    ((plan, packed),) = list(jobs.run(iter([make_plan([4, 1, 6])])))
    assert plan.indices.tolist() == [4, 1, 6] and packed.bad == [] and packed.target.tolist() == [4, 1, 6]
    assert packed.plan.sizes.tolist() == [[44, 56], [41, 59], [46, 54]]
    for i, part in zip([4, 1, 6], views_of(packed.blob, packed.shapes), strict=True):
        if media == "path":
            assert part.tobytes().decode() == str(tmp_path / f"{i}.jpg")
        elif media == "bytes":
            assert part.tobytes() == jpeg(i)
        else:
            assert np.array_equal(part, decode(jpeg(i)))
    jobs.close()


def test_pack_names_bad_samples(tmp_path: Path) -> None:
    dataset = from_torch([str(tmp_path / "none.jpg"), "/dev/null"], "path", PIPELINE)
    packed = Pack(dataset, PIPELINE, all_codings)(make_plan([0, 1]))
    assert packed.blob is None and [(b.index, b.kind) for b in packed.bad] == [(0, "missing"), (1, "unreadable")]


# Random numbers


@pytest.mark.parametrize("workers", [0, 2])
def test_draws_depend_on_epoch_and_sample_alone(workers: int, rng_untouched: None) -> None:
    class Random(Items):
        def __getitem__(self, i: int) -> Any:
            return jpeg(i), random.random()

    dataset = from_torch(Random("bytes"), "bytes", PIPELINE)
    a, b = run(dataset, make_plan([1, 2, 3]), make_plan([3, 2]), workers=workers)
    assert a.target.tolist()[:0:-1] == b.target.tolist() and len(a.target.unique()) == 3


def test_masks_boxes_and_keypoints_do_not_stay_where_the_image_moves() -> None:
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    mask = tv_tensors.Mask(torch.zeros(8, 8))
    boxes = tv_tensors.BoundingBoxes(torch.zeros(1, 4), format="XYXY", canvas_size=(8, 8))
    pixels = np.zeros((8, 8, 3), np.uint8)
    for target in (mask, {"boxes": boxes}, (3, mask)):
        moved = from_torch([(pixels, target)], "array", T.Compose([T.RandomHorizontalFlip(), T.ToTensor()]))
        with pytest.raises(PipelineError, match=r"list\[0\] returned (Mask|BoundingBoxes), which would not move"):
            moved.fetch(0)
        assert from_torch([(pixels, target)], "array", T.ToTensor()).fetch(0)[1] is target
