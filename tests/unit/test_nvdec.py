"""Everything of the GPU's video path but the GPU: the same pipeline on DALI's CPU decoder, which has few codecs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import plans_of

from gpupipe import transforms as T
from gpupipe.codecs.video.decode import decode_clip
from gpupipe.datasets import VideoList
from gpupipe.engines.dali import nvdec
from gpupipe.engines.dali.nvdec import NvdecReader
from gpupipe.reading.setup import Setup
from gpupipe.types import Plan

pytest.importorskip("av")


@pytest.fixture(autouse=True)
def _small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """The videos here are smaller than a GPU's decoder takes, and DALI's CPU decoder takes them all."""
    monkeypatch.setattr(nvdec, "SMALLEST", 16)


def dataset_of(videos: dict[str, Path], *names: str) -> VideoList:
    paths = [videos[name] for name in names]
    return VideoList(paths, 4, stride=2, labels=list(range(len(paths))), transform=T.Compose([T.PILToTensor()]))


def feeder_of(dataset: VideoList, batch_size: int = 2) -> NvdecReader:
    return NvdecReader(Setup(dataset, dataset.transform, "cpu", batch_size, num_workers=2))


def by_pyav(dataset: VideoList, plan: Plan) -> Any:
    assert plan.frames is not None
    return np.stack(
        [decode_clip(dataset.entry(int(i)), f) for i, f in zip(plan.indices, plan.frames, strict=True)]
    ).reshape(-1, 64, 96, 3)


def test_frames_and_labels_in_the_order_of_the_plans(videos: dict[str, Path]) -> None:
    dataset = dataset_of(videos, *["vp8.webm", "vp9.webm"] * 3)
    plans = plans_of(dataset, batch_size=2)
    feeder = feeder_of(dataset)
    for _ in range(2):
        for plan, ready in zip(plans, feeder.run(iter(plans)), strict=True):
            assert ready.plan is plan and not ready.bad
            assert ready.target.tolist() == plan.indices.tolist()
            got, want = torch.stack(ready.media).numpy().astype(int), by_pyav(dataset, plan).astype(int)
            # Other colors, but these frames: any other one is further away.
            assert np.abs(got - want).mean() < 10
            assert np.abs(got[1:] - want[:-1]).mean() > 15
    feeder.close()


def test_a_run_that_is_left_leaves_nothing_behind(videos: dict[str, Path]) -> None:
    dataset = dataset_of(videos, *["vp8.webm", "vp9.webm"] * 3)
    plans, feeder = plans_of(dataset, batch_size=2), feeder_of(dataset)
    first = next(iter(feeder.run(iter(plans))))
    again = next(iter(feeder.run(iter(plans[2:]))))
    assert first.plan is plans[0] and again.plan is plans[2]
    assert np.abs(torch.stack(again.media).numpy() - by_pyav(dataset, plans[2]).astype(int)).mean() < 10
    feeder.close()


def test_what_the_decoder_refuses_pyav_decodes(videos: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    # DALI's CPU decoder has no H.264.
    dataset = dataset_of(videos, "vp9.webm", "vp9.webm", "cfr.mp4", "vp8.webm", "vp8.webm", "vp9.webm")
    plans, feeder = plans_of(dataset, batch_size=2, shuffle=False), feeder_of(dataset)
    with caplog.at_level(logging.WARNING, "gpupipe"):
        found = list(feeder.run(iter(plans)))
    assert [r.plan.step for r in found] == [0, 1, 2] and not any(r.bad for r in found)
    assert np.array_equal(torch.stack(found[1].media).numpy(), by_pyav(dataset, plans[1]))
    assert np.abs(torch.stack(found[2].media).numpy() - by_pyav(dataset, plans[2]).astype(int)).mean() < 10
    assert "refused a batch, which PyAV decodes instead" in caplog.text
    assert "PyAV instead 1 times" in feeder.facts()["video"]
    feeder.close()


@pytest.mark.parametrize("built", [0, 1])
def test_without_nvdec_pyav_decodes_everything(
    built: int, videos: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container without libnvcuvid. Also if it is gone only when the pipeline is built again."""
    make, calls = nvdec.decoding_pipeline, list[int]()

    def pipeline(*given: Any) -> Any:
        calls.append(1)
        if len(calls) > built:
            raise RuntimeError("Critical error when building pipeline:\nAssert on ... failed: libnvcuvid.so.1")
        return make(*given)

    monkeypatch.setattr(nvdec, "decoding_pipeline", pipeline)
    # DALI's CPU decoder has no H.264, so the pipeline is built again after the first batch.
    dataset = dataset_of(videos, *["cfr.mp4"] * 6)
    plans, feeder = plans_of(dataset, batch_size=2, shuffle=False), feeder_of(dataset)
    with caplog.at_level(logging.WARNING, "gpupipe"):
        for _ in range(2):
            found = list(feeder.run(iter(plans)))
            assert [r.plan.step for r in found] == [0, 1, 2]
            for ready, plan in zip(found, plans, strict=True):
                assert np.array_equal(torch.stack(ready.media).numpy(), by_pyav(dataset, plan))
    assert caplog.text.count("cannot be used, so PyAV decodes all clips") == 1 and "libnvcuvid" in caplog.text
    assert feeder.facts() == {"video": "PyAV, because NVDEC cannot be used"} and len(calls) == built + 1
    feeder.close()


def test_what_pyav_refuses_too_is_bad(videos: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "later.mp4"
    path.write_bytes(videos["cfr.mp4"].read_bytes())
    dataset = VideoList([videos["vp9.webm"], path], 4, transform=T.Compose([T.PILToTensor()]))
    path.write_bytes(path.read_bytes()[:800])
    feeder = feeder_of(dataset)
    (ready,) = feeder.run(iter(plans_of(dataset, batch_size=2, shuffle=False)))
    assert [bad.index for bad in ready.bad] == [1] and "later.mp4" in ready.bad[0].path
    feeder.close()


@pytest.mark.parametrize(
    ("sizes", "suits"),
    [
        ([[144, 256], [720, 1280]], True),
        ([[720, 1280], [142, 256]], False),
        ([[144, 255]], False),
        ([[145, 256]], False),
    ],
)
def test_odd_and_small_frames_are_not_given_to_the_decoder(
    sizes: list[list[int]], suits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvdec, "SMALLEST", 144)
    none = np.zeros(len(sizes), np.int64)
    plan = Plan(0, 0, 0, none, none.astype(np.uint64), len(sizes), 0, sizes=np.array(sizes, np.int32))
    assert nvdec.suits(plan) is suits


def test_what_the_decoder_must_not_be_given_pyav_decodes(
    videos: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nvdec, "SMALLEST", 144)
    dataset = dataset_of(videos, "vp9.webm", "vp9.webm", "vp8.webm", "vp8.webm")
    plans, feeder = plans_of(dataset, batch_size=2, shuffle=False), feeder_of(dataset)
    for plan, ready in zip(plans, feeder.run(iter(plans)), strict=True):
        assert np.array_equal(torch.stack(ready.media).numpy(), by_pyav(dataset, plan))
    assert "PyAV instead 2 times" in feeder.facts()["video"] and not caplog.text
    feeder.close()
