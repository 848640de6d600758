"""Batches of clips that are made where frames are decoded: against the reference, and their memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("av")

from clips import BATCH, NAMES, TENSOR, clips
from support import plans_of

from gpupipe import engines, transforms as T
from gpupipe.engines.dali.options import installed
from gpupipe.engines.host.clip_frames import ClipBatches
from gpupipe.engines.torch.reference import reference
from gpupipe.kernels.geometry import resize, resize_by_torch
from gpupipe.kernels.picture import chw, nchw
from gpupipe.pipelines import kinetics
from gpupipe.reading.buffers import BatchPool, Borrowed, BufferPool
from gpupipe.reading.clips import ClipReader
from gpupipe.reading.setup import Setup
from gpupipe.testing.photos import photograph
from gpupipe.transforms import ops

WINDOW = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
EXACT = {
    "tensors": T.Compose([T.ToImage(), *WINDOW, T.ToDtype("float32", scale=True), T.Normalize((0.5,) * 3, (0.2,) * 3)]),
    "padded": T.Compose([T.RandomCrop(70, padding=20, fill=9, pad_if_needed=True), T.RandomHorizontalFlip(), *TENSOR]),
    "bytes": T.Compose([T.CenterCrop(20), T.PILToTensor()]),
    "last layout": T.Compose([T.RandomCrop(24), *TENSOR], memory_format="channels_last"),
    "halves": T.Compose([T.RandomCrop(24), *TENSOR, T.ToDtype("float16")]),
}


def setup_of(videos: dict[str, Path], pipeline: T.Compose, **arguments: Any) -> Setup:
    dataset = clips([videos[name] for name in NAMES], pipeline, **arguments)
    return Setup(dataset, pipeline, "cpu", BATCH, num_workers=2)


def batches_of(setup: Setup) -> list[tuple[Any, Any]]:
    """(plan, batch) of an epoch."""
    takers = ClipBatches.of(setup)
    assert takers is not None
    reader = ClipReader(setup, takers)
    found = [(ready.plan, ready.media) for ready in reader.run(iter(plans_of(setup.dataset, batch_size=BATCH)))]
    reader.close()
    takers.close()
    return found


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("layout", ["CTHW", "TCHW"])
def test_to_the_last_bit(videos: dict[str, Path], name: str, layout: Any) -> None:
    pipeline = EXACT[name]
    setup = setup_of(videos, pipeline, layout=layout)
    found = batches_of(setup)
    assert len(found) == -(-len(NAMES) // BATCH)
    for plan, batch in found:
        want = reference(setup.dataset, plan, pipeline)
        assert torch.equal(batch, want) and batch.dtype == want.dtype and batch.stride() == want.stride()


@pytest.mark.parametrize("pipeline", [kinetics.train(24, dtype="uint8"), kinetics.val(24, 32, dtype="uint8")])
def test_resized_within_a_level_of_pillow(videos: dict[str, Path], pipeline: T.Compose) -> None:
    setup = setup_of(videos, pipeline)
    for plan, batch in batches_of(setup):
        apart = (batch.int() - reference(setup.dataset, plan, pipeline).int()).abs()
        assert apart.max() <= 1 and apart.float().mean() < 0.06


def test_upright(videos: dict[str, Path]) -> None:
    pipeline = T.Compose([T.RandomCrop(24), *TENSOR])
    dataset = clips([videos["rotated.mp4"]] * 3, pipeline, upright=True)
    ((plan, batch),) = batches_of(Setup(dataset, pipeline, "cpu", BATCH, num_workers=2))
    assert torch.equal(batch, reference(dataset, plan, pipeline))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_fast_resizing_of_photographs(interpolation: Any) -> None:
    image = photograph(240, 320, 5)
    for kind in ("pil", "tensor"):
        if (kind, interpolation) == ("tensor", "lanczos"):
            continue
        for height, width in ((224, 224), (60, 400), (240, 320), (300, 31)):
            op = ops.Resize(np.array([height], np.int32), np.array([width], np.int32), interpolation, kind=kind)  # type: ignore[arg-type]
            got, want = (np.asarray(f(image, op, 0)).astype(int) for f in (resize_by_torch, resize))
            most = {("pil", "bilinear"): 1, ("pil", "bicubic"): 12}.get((kind, interpolation), 0)
            assert np.abs(got - want).max() <= most


class TestWhatFits:
    @pytest.mark.parametrize(
        "pipeline",
        [
            T.Compose([T.RandomResizedCrop(24), T.RandomGrayscale(0.5), *TENSOR]),  # an op that DALI does faster
            T.Compose([T.Resize(32), *TENSOR]),  # images of several sizes
            T.Compose([T.CenterCrop(32), T.MultiView([[*TENSOR], [T.RandomCrop(9), *TENSOR]])]),
            T.Compose([T.CenterCrop(32), *TENSOR, T.RandomErasing()]),
        ],
    )
    def test_what_does_not(self, videos: dict[str, Path], pipeline: T.Compose) -> None:
        assert ClipBatches.of(setup_of(videos, pipeline)) is None

    def test_only_on_the_cpu_and_only_clips(self, videos: dict[str, Path]) -> None:
        from dataclasses import replace

        from gpupipe.datasets import Arrays

        setup = setup_of(videos, kinetics.train(24))
        assert ClipBatches.of(setup) is not None
        assert ClipBatches.of(replace(setup, device="cuda:0")) is None
        images = Arrays(np.zeros((4, 8, 8, 3), np.uint8), transform=kinetics.train(24))
        assert ClipBatches.of(replace(setup, dataset=images)) is None

    @pytest.mark.skipif(not installed(), reason="DALI is not installed")
    def test_the_engine_says_which(self, videos: dict[str, Path]) -> None:
        made = engines.Dali().build(setup_of(videos, kinetics.train(24)))
        assert "where they are decoded" in made.facts()["frames"] and "DALI" not in made.facts()
        graph = engines.Dali().build(setup_of(videos, T.Compose([*WINDOW, T.RandomGrayscale(0.5), *TENSOR])))
        assert "frames" not in graph.facts() and "DALI" in graph.facts()


class TestBatchPool:
    def test_memory_comes_back_when_no_view_is_left(self) -> None:
        pool = BatchPool(keep=2)
        first = pool.empty((2, 3, 4), torch.float32)
        assert first.shape == (2, 3, 4) and first.is_contiguous() and first.dtype == torch.float32
        place, view = first.data_ptr(), first[1, 2:].numpy()
        first.fill_(7)
        del first
        assert pool.empty((2, 3, 4), torch.float32).data_ptr() != place and (view == 7).all()
        del view
        pool.close()  # of the other
        again = pool.empty((5, 5), torch.uint8)
        place = again.data_ptr()
        del again
        assert pool.empty((2, 2), torch.float16).data_ptr() == place  # 8 of 25 bytes

    def test_no_more_is_kept_than_asked(self) -> None:
        pool = BatchPool(keep=2)
        held = [pool.empty((1000,), torch.uint8) for _ in range(6)]
        assert len({tensor.data_ptr() for tensor in held}) == 6
        held.clear()
        assert len(pool._idle) == 2
        late = pool.empty((10,), torch.uint8)
        pool.close()
        del late  # comes back to nothing
        assert not pool._idle

    def test_no_python_runs_when_memory_comes_back(self) -> None:
        """In a finalizer of Python's Ctrl-C would be lost."""
        lent, batch = BufferPool(pinned=False).take(10), BatchPool(keep=2).empty((10,), torch.uint8)
        assert isinstance(lent, Borrowed)
        called: list[str] = []
        sys.setprofile(lambda frame, event, arg: called.append(frame.f_code.co_name) if event == "call" else None)
        del lent, batch
        sys.setprofile(None)
        assert called == []

    def test_batches_that_are_kept_stay_what_they_are(self, videos: dict[str, Path]) -> None:
        setup = setup_of(videos, kinetics.train(24), clips=3)
        kept = batches_of(setup)
        assert len({batch.data_ptr() for _, batch in kept}) == len(kept) == 8
        for (_, batch), (_, again) in zip(kept, batches_of(setup), strict=True):
            assert torch.equal(batch, again)


class TestImagesAsBatchesOfOne:
    def test_torch_sees_that_whole_images_are_channels_last(self) -> None:
        """Else it packs them, and what it makes of them, anew."""
        for shape in ((6, 8, 3), (6, 8, 1)):
            x = nchw(np.zeros(shape, np.uint8))
            assert x.is_contiguous(memory_format=torch.channels_last) and x.stride(0) == x.numel()

    @pytest.mark.parametrize(
        "view",
        [
            lambda a: a,
            lambda a: a[1:5, 2:7],
            lambda a: a[:, ::-1],
            lambda a: np.ascontiguousarray(a.transpose(2, 0, 1)).transpose(1, 2, 0),
            lambda a: np.frombuffer(a.tobytes(), np.uint8).reshape(a.shape),
        ],
        ids=["whole", "window", "mirrored", "planes", "read-only"],
    )
    def test_however_they_lie_in_memory(self, view: Any) -> None:
        image = view(np.random.default_rng(1).integers(0, 256, (6, 8, 3), dtype=np.uint8))
        assert torch.equal(nchw(image), chw(image)[None])
