"""Clips on a GPU: those that PyAV decodes, through pinned memory, and those that NVDEC decodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import FRAMES, NAMES, RAW, SEED, TRAIN, clips
from gpu_tools import DEVICE, DRY_RUN, delay, finish
from support import native_session, plans_of
from torch import Tensor

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import VideoList
from gpupipe.engines import Dali
from gpupipe.engines.torch.reference import reference

pytest.importorskip("av")
pytestmark = pytest.mark.usefixtures("where")

WHOLE = T.Compose([T.CenterCrop(36), T.PILToTensor()])
NVDEC = Dali(video="pyav" if DRY_RUN else "nvdec")
TAKEN = (
    *("cfr.mp4", "bframes.mp4", "bframes.mkv", "ntsc.mp4", "vfr.mp4"),
    *("uneven.mp4", "hevc-closed.mp4", "vp9.webm", "av1.mkv"),
)
"""What the GPU's decoder is given: even sides of at least 144 pixels, no open groups of pictures."""
REFUSED = ("open.mp4", "open.mkv", "faststart.mp4", "hevc.mp4", "odd.mkv", "cropped.mp4", "ffv1.mkv")
"""What it is not given, or cannot decode: open groups, odd or small frames, a codec that it does not have."""


@pytest.fixture(scope="session")
def files(videos: dict[str, Path]) -> list[Path]:
    """Small videos of all kinds, for PyAV."""
    found = [videos[name] for name in NAMES if name in videos]
    if len(found) < 4:
        pytest.skip("this PyAV has no libx264")
    return found


@pytest.fixture(scope="session")
def wide(wide_videos: dict[str, Path]) -> list[Path]:
    """H.264 that the GPU's decoder takes."""
    found = [wide_videos[name] for name in TAKEN[:5] if name in wide_videos]
    if len(found) < 4:
        pytest.skip("this PyAV has no libx264")
    return found


def load(dataset: Any, engine: Any = "dali", **arguments: Any) -> DataLoader:
    given = {"batch_size": 3, "shuffle": True, "num_workers": 2, "device": DEVICE, "seed": SEED, **arguments}
    return DataLoader(dataset, engine=engine, **given)


def images(dataset: Any, engine: Any = "dali", **arguments: Any) -> list[Tensor]:
    with load(dataset, engine, **arguments) as loader:
        return [x.cpu() for x, _ in loader]


def in_place_of_nvdec(loader: DataLoader) -> int:
    """Batches that PyAV decoded, as the loader says it."""
    found = re.search(r"PyAV instead (\d+) times", repr(loader))
    return int(found[1]) if found else 0


def read_late(loader: DataLoader, epochs: int = 2) -> list[Tensor]:
    """The batches, each read by a kernel that starts long after its Python object is gone."""
    copies = []
    with loader:
        for _ in range(epochs):
            for x, _ in loader:
                delay(12)
                copies.append(x.clone())
                del x
        finish()
    return [c.cpu() for c in copies]


@pytest.mark.parametrize("layout", ["CTHW", "TCHW"])
@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_pyavs_pixels_are_the_same_on_every_device(files: list[Path], engine: str, layout: str) -> None:
    dataset = clips(files, RAW, layout=layout)
    want = [reference(dataset, plan, RAW) for plan in plans_of(dataset, seed=SEED, batch_size=3)]
    assert all(torch.equal(a, b) for a, b in zip(images(dataset, engine), want, strict=True))


@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
def test_normalized_clips(files: list[Path], memory_format: str, measured: Callable[..., None]) -> None:
    dataset = clips(files, T.Compose(TRAIN.transforms, memory_format=memory_format))
    want = [reference(dataset, plan, dataset.transform) for plan in plans_of(dataset, seed=SEED, batch_size=3)]
    got = images(dataset)
    apart = [(a - b).abs() for a, b in zip(got, want, strict=True)]
    measured(f"clips: {memory_format}", max=max(float(d.max()) for d in apart), mean=float(apart[0].mean()))
    assert all(d.mean() < 0.02 for d in apart)


@pytest.mark.parametrize("engine", ["dali", NVDEC], ids=["pyav", "nvdec"])
def test_memory_is_not_reused_while_a_queued_kernel_reads_it(wide: list[Path], engine: Any) -> None:
    dataset = clips(wide * 4, RAW)
    with load(dataset, engine) as loader:
        want = []
        for _ in range(2):
            for x, _ in loader:
                finish()
                want.append(x.cpu())
    got = read_late(load(dataset, engine))
    assert len(got) == len(want) and all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_pinned_buffers_do_not_grow(files: list[Path]) -> None:
    with load(clips(files * 4, RAW)) as loader:
        held = []
        for _ in range(3):
            list(loader)
            held.append(native_session(loader).running.engine.reader.buffers.nbytes)  # type: ignore[union-attr,attr-defined]
    assert held[2] <= 1.5 * held[1]  # how many are in use at once depends on threads


@pytest.mark.parametrize("name", [*TAKEN, "late.mp4", "vfr.mkv", "fragmented.mp4", "edited.mp4", "rotated.mp4"])
def test_nvdec_gives_the_frames_of_pyav(name: str, wide_videos: dict[str, Path], measured: Callable[..., None]) -> None:
    """Each frame must be nearer to the frame of its number than to its neighbors: colors may differ, numbers may
    not. Fails too if PyAV decoded what NVDEC is there for."""
    if name not in wide_videos:
        pytest.skip(f"this PyAV makes no {name}")
    dataset = VideoList([wide_videos[name]] * 3, FRAMES, stride=3, labels=[0, 1, 2], transform=WHOLE, layout="TCHW")
    with load(dataset, NVDEC) as loader:
        got = [x.cpu().double() for x, _ in loader]
        refused = in_place_of_nvdec(loader)
    apart = []
    for x, plan in zip(got, plans_of(dataset, seed=SEED, batch_size=3), strict=True):
        want = reference(dataset, plan, WHOLE).double()
        apart.append((x - want).abs())
        for t in range(FRAMES):
            distances = [(x[:, t] - want[:, k]).abs().mean(dim=(1, 2, 3)) for k in range(FRAMES)]
            assert (torch.stack(distances).argmin(dim=0) == t).all(), f"frame {t} is another one"
    measured(f"nvdec: {name}", max=float(apart[0].max()), mean=float(apart[0].mean()), refused=refused)
    assert apart[0].mean() < 10
    assert not (refused and name in TAKEN)


@pytest.mark.parametrize("name", REFUSED)
def test_pyav_decodes_what_nvdec_must_not(name: str, videos: dict[str, Path], wide_videos: dict[str, Path]) -> None:
    """Pixels equal to PyAV's, bit by bit, and the loader says how often. Fails if the GPU's decoder is given a video
    that it gets wrong: open groups of pictures come out of order, odd widths are written past the end of their memory.
    """
    made = videos if name in ("odd.mkv", "cropped.mp4") else wide_videos
    if name not in made:
        pytest.skip(f"this PyAV makes no {name}")
    dataset = VideoList([made[name]] * 4, FRAMES, stride=3, labels=[0, 1, 2, 3], transform=WHOLE, layout="TCHW")
    want = [reference(dataset, plan, WHOLE) for plan in plans_of(dataset, seed=SEED, batch_size=2)]
    with load(dataset, NVDEC, batch_size=2) as loader:
        got = [x.cpu() for x, _ in loader]
        # The two batches of this epoch, and those of the next one that are read ahead.
        assert DRY_RUN or in_place_of_nvdec(loader) == 4
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_nvdec_goes_on_after_what_it_refuses(
    wide: list[Path], wide_videos: dict[str, Path], tmp_path: Path, measured: Callable[..., None]
) -> None:
    if "ffv1.mkv" not in wide_videos:
        pytest.skip("this PyAV makes no FFV1")
    later = tmp_path / "later.mp4"
    later.write_bytes(wide[0].read_bytes())
    dataset = VideoList(
        [wide[0], wide_videos["ffv1.mkv"], wide[1], later, wide[2], wide[3]], FRAMES,
        labels=list(range(6)), transform=WHOLE, layout="TCHW",
    )  # fmt: skip
    later.write_bytes(later.read_bytes()[:900])
    with load(dataset, NVDEC, batch_size=2, on_error="skip", shuffle=False) as loader:
        for _ in range(2):
            seen = [int(y) for _, ys in loader for y in ys]
            assert seen == [0, 1, 2, 4, 5]
        assert {s.index for s in loader.report().samples} == {3}
        measured("nvdec: refusals", batches=in_place_of_nvdec(loader))


def test_an_epoch_that_is_left(wide: list[Path]) -> None:
    dataset = clips(wide * 2, RAW)
    want = images(dataset)
    for engine in ("dali", NVDEC):
        with load(dataset, engine) as loader:
            for _ in range(4):
                loader.set_epoch(0)
                first = next(iter(loader))[0].cpu()
            if engine == "dali":
                assert torch.equal(first, want[0])
            else:
                assert np.abs(first.numpy().astype(int) - want[0].numpy().astype(int)).mean() < 10
