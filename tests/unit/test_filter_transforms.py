"""Blur: what is drawn, and the random fields out of a sample's seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from goodness import ks_two_sample_p, ks_uniform_p

from gpupipe import transforms as T
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.kernels.device_random import bits, normal
from gpupipe.rng import mix64
from gpupipe.transforms.compose import as_compose

CPU = torch.device("cpu")
SEEDS = np.array([0, 1, 2**52 + 12345, 2**64 - 1], np.uint64)


def resolve(pipeline: Any, n: int = 2000) -> tuple[Any, ...]:
    return as_compose(pipeline).resolve(1, 0, np.arange(n, dtype=np.uint64), np.array([[40, 60]] * n))[0]


def test_blur_draws_sigma_uniformly() -> None:
    (op,) = resolve(T.GaussianBlur((5, 9), (0.3, 1.8)))
    assert op.kernel_size == (5, 9) and op.always and op.mask.all()
    assert ks_uniform_p((op.sigma - 0.3) / 1.5) > 1e-3
    (op,) = resolve(T.GaussianBlur(3, 0.7))
    assert (op.sigma == 0.7).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.GaussianBlur(4), "must be odd"),
        (lambda: T.GaussianBlur(0), "positive integer"),
        (lambda: T.GaussianBlur(3, (2, 1)), "0 < low <= high"),
        (lambda: T.GaussianBlur(3, 0), "0 < low <= high"),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_what_does_not_fit_together() -> None:
    with pytest.raises(PipelineError, match="11x11 pixels is too small"):
        T.Compose([T.CenterCrop(11), T.GaussianBlur(23)])


# ---- fields


def test_bits_are_those_of_the_counter_hash() -> None:
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        rows = mix64(SEEDS * golden)
        want = mix64(rows[:, None] + (np.arange(1, 1001, dtype=np.uint64) * golden)[None])
    got = bits(SEEDS, 1000, CPU).numpy().view(np.uint64)
    assert np.array_equal(got, want)
    assert np.array_equal(bits(SEEDS, 400, CPU, start=600).numpy().view(np.uint64), want[:, 600:])


def test_fields_have_their_distribution() -> None:
    z = normal(SEEDS, 20_000, CPU)
    assert z.dtype == torch.float32 and z.shape == (4, 20_000)
    want = np.random.default_rng(0).standard_normal(80_000)
    for row in range(4):
        assert ks_two_sample_p(z[row].numpy(), want) > 1e-3
    assert np.abs(np.corrcoef(z.numpy()[1:]) - np.eye(3)).max() < 0.04
    assert abs(np.corrcoef(z[0, 1:].numpy(), z[0, :-1].numpy())[0, 1]) < 0.03


def test_long_fields_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = normal(SEEDS, 1000, CPU)
    monkeypatch.setattr("gpupipe.kernels.device_random._CHUNK", 300)
    assert torch.equal(normal(SEEDS, 1000, CPU), whole)
    assert torch.equal(normal(SEEDS[2:3], 1000, CPU), whole[2:3])
