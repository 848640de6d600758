"""Shard, Plan and Batch: they check themselves and print shapes."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.errors import BadSample, ConfigError, SampleError
from gpupipe.transforms import CenterCrop, Compose
from gpupipe.types import Batch, Plan, Shard


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "seed": 0, "epoch": 1, "step": 2, "indices": np.arange(4), "keys": np.arange(4, dtype=np.uint64), "valid": 4,
        "consumed": 12,
    }  # fmt: skip
    return Plan(**{**values, **changes})


@pytest.mark.parametrize(("rank", "world"), [(1, 1), (-1, 2), (0, 0), (0, -1), (2, 2)])
def test_shard_refuses(rank: int, world: int) -> None:
    with pytest.raises(ConfigError, match=rf"rank={rank}, world_size={world}"):
        Shard(rank, world)


@pytest.mark.parametrize("pair", [("0", 1), (0, 1.0), (None, 2)])
def test_shard_takes_integers(pair: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigError, match="two integers"):
        Shard(*pair)


def test_shard_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Shard().rank = 3  # type: ignore[misc]


def test_plan_checks_itself() -> None:
    with pytest.raises(ConfigError, match="must be 1-D and of equal length"):
        plan(keys=np.arange(3, dtype=np.uint64))
    with pytest.raises(ConfigError, match="must be 1-D and of equal length"):
        plan(indices=np.zeros((2, 2), np.int64), keys=np.zeros((2, 2), np.uint64))
    with pytest.raises(ConfigError, match="valid=5 of 4"):
        plan(valid=5)


def test_plan_prints_shapes() -> None:
    assert repr(plan()) == "Plan(epoch 1, step 2: 4 samples; unresolved)"
    sizes = np.full((4, 2), 10, np.int32)
    ops, *_ = Compose([CenterCrop(4)]).resolve(0, 0, plan().keys, sizes)
    known = plan(valid=3).with_sizes(sizes, ops)
    assert repr(known) == "Plan(epoch 1, step 2: 4 samples, 3 of them real; Crop)"
    assert known.sizes is sizes and len(known) == 4
    assert repr(plan(ops=())).endswith("; nothing)")


def test_batch_prints_shapes() -> None:
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    target = (torch.zeros(4, dtype=torch.int64), [np.zeros(4, np.float32)], "text")
    text = repr(Batch(images, target, plan()))
    assert text.startswith("Batch(uint8[4, 3, 8, 8], target (int64[4], (float32[4]), str), Plan(")
    assert "target None" in repr(Batch(images, None, plan()))


def test_sample_error_lists_and_travels() -> None:
    error = SampleError([BadSample(i, f"/p/{i}.jpg", "truncated", "ended early") for i in range(7)])
    assert "sample 0 (/p/0.jpg): truncated: ended early" in str(error) and "and 2 more" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert again.samples == error.samples and str(again) == str(error)
