"""Transforms that choose frames: on numbers alone, before anything is decoded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import Arrays
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.pipelines import kinetics
from gpupipe.transforms.temporal import positions

FRAMES = np.arange(60).reshape(5, 12) * 2
KEYS = np.arange(5, dtype=np.uint64)


def test_positions_are_torchs_to_the_last_bit() -> None:
    wrong = [
        (length, count)
        for length in range(1, 130)
        for count in range(1, 140)
        if positions(length, count).tolist() != torch.linspace(0, length - 1, count).long().tolist()
    ]
    assert not wrong


def test_subsample_is_torchvisions() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    for length, count in ((16, 8), (30, 16), (5, 9), (7, 1), (3, 15)):
        clip = torch.arange(length).view(length, 1, 1, 1).expand(length, 3, 2, 2)
        want = v2.functional.uniform_temporal_subsample_video(clip, count)[:, 0, 0, 0]
        for name in (T.TemporalSubsample, T.UniformTemporalSubsample):
            got = T.Compose([name(count)]).choose(0, 0, KEYS[:1], np.arange(length)[None])
            assert got.tolist() == [want.tolist()]


def test_reverse_is_drawn_for_each_clip_and_takes_all_of_its_frames() -> None:
    keys = np.arange(4000, dtype=np.uint64)
    frames = np.tile(np.arange(6), (4000, 1))
    for p in (0.0, 0.3, 1.0):
        out = T.Compose([T.RandomTemporalReverse(p)]).choose(1, 2, keys, frames)
        turned = out[:, 0] == 5
        assert np.array_equal(out[turned], frames[turned][:, ::-1]) and np.array_equal(out[~turned], frames[~turned])
        assert abs(turned.mean() - p) < 0.03
    pipeline = T.Compose([T.RandomTemporalReverse()])
    assert not np.array_equal(pipeline.choose(1, 2, keys, frames), pipeline.choose(1, 3, keys, frames))
    whole = pipeline.choose(1, 2, keys, frames)
    assert np.array_equal(whole[77:99], pipeline.choose(1, 2, keys[77:99], frames[77:99]))  # not of the batch


def test_they_go_in_order_and_leave_no_ops() -> None:
    pipeline = T.Compose([T.RandomTemporalReverse(1.0), T.ToTensor(), T.TemporalSubsample(3)])
    assert pipeline.choose(0, 0, KEYS, FRAMES)[0].tolist() == [22, 12, 0]
    assert [type(op).__name__ for op in pipeline.skeleton] == ["ToDtype"]
    assert [type(t).__name__ for t in pipeline.temporal] == ["RandomTemporalReverse", "TemporalSubsample"]
    ops, *_ = pipeline.resolve(0, 0, KEYS, np.full((5, 2), 32))
    assert [type(op).__name__ for op in ops] == ["ToDtype"]
    assert not T.Compose([T.ToTensor()]).temporal


def test_adding_one_changes_no_draw_of_the_others() -> None:
    sizes = np.full((5, 2), 64)
    alone = T.Compose([T.RandomCrop(32)]).resolve(3, 1, KEYS, sizes)[0][0]
    beside = T.Compose([T.RandomTemporalReverse(), T.RandomCrop(32)]).resolve(3, 1, KEYS, sizes)[0][0]
    assert np.array_equal(alone.top, beside.top)  # type: ignore[attr-defined]


def test_names_and_fingerprints() -> None:
    assert repr(T.TemporalSubsample(8)) == "TemporalSubsample(num_samples=8)"
    assert repr(T.UniformTemporalSubsample(8)) == "UniformTemporalSubsample(num_samples=8)"
    prints = {T.Compose(t).fingerprint for t in ([], [T.TemporalSubsample(8)], [T.TemporalSubsample(4)])}
    assert len(prints) == 3


@pytest.mark.parametrize("count", [0, -1, 2.0, True, None, "8"])
def test_a_number_of_frames_that_makes_no_sense(count: object) -> None:
    with pytest.raises(ConfigError, match="num_samples must be an integer of at least 1"):
        T.TemporalSubsample(count)  # type: ignore[arg-type]


@pytest.mark.parametrize("p", [-0.1, 1.1, True, "0.5"])
def test_a_probability_that_is_none(p: object) -> None:
    with pytest.raises(ConfigError, match="RandomTemporalReverse: p must be"):
        T.RandomTemporalReverse(p)  # type: ignore[arg-type]


def test_containers_and_views_refuse_them() -> None:
    for wrapped in (T.RandomApply([T.RandomTemporalReverse()]), T.MultiView([T.TemporalSubsample(2)], 2)):
        with pytest.raises(PipelineError, match="selects frames of the whole clip"):
            T.Compose([T.CenterCrop(8), wrapped])


@pytest.mark.parametrize("engine", ["null", "torch", "dali"])
def test_a_dataset_of_images_refuses_them_when_the_loader_is_built(engine: str) -> None:
    dataset = Arrays(np.zeros((4, 8, 8, 3), np.uint8), transform=T.Compose([T.TemporalSubsample(2), T.ToTensor()]))
    with pytest.raises(PipelineError, match=r"TemporalSubsample.*frames of clips.*has images"):
        DataLoader(dataset, engine=engine, device="cpu")  # type: ignore[arg-type]


def test_the_pipelines_of_kinetics() -> None:
    train, val = kinetics.train(112), kinetics.val(112, 128, dtype="float16", mean=(0.45,) * 3, std=(0.225,) * 3)
    assert [type(t).__name__ for t in train] == ["RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize"]
    assert train.output.size == (112, 112) and train.output.dtype == "float32"
    assert val.output.size == (112, 112) and val.output.dtype == "float16"
    assert kinetics.train(dtype="uint8").output.size == (224, 224)
    assert "0.43216" in repr(train) and "0.225" in repr(val)
