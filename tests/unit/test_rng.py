"""The random numbers: pure, uniform, independent, and the same for ever."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from goodness import chi_square_p, ks_two_sample_p, ks_uniform_p

from gpupipe.rng import key_of, mix64, stream, uniforms

P = 1e-3


def test_golden_values() -> None:
    """These numbers decide what every published run has seen: they must never change."""
    assert [hex(x) for x in mix64(np.array([0, 1, 2**63, 2**64 - 1], np.uint64))] == [
        "0x0",
        "0x5692161d100b05e5",
        "0x25c26ea579cea98a",
        "0xb4d055fcf2cbbd7b",
    ]
    assert key_of("Resize#1") == 0x96FFC110A1E3C24B
    assert stream(0, 0, "order") == 0x55485CA428C2981C
    assert stream(-1, 2**70, "x") == 0x8E9EBBDCF6A60C9E
    u = uniforms(0, 0, "RandomResizedCrop#1", np.array([0, 1, 2**40 + 1]), 2)
    assert u.tolist() == [
        [0.12607390748060077, 0.2675403053060268],
        [0.9391130429609891, 0.13431917294286055],
        [0.016670167665603586, 0.502487180291686],
    ]
    assert uniforms(123, 7, 5, np.array([9]), 3).tolist() == [
        [0.3609516782372679, 0.2631368320995958, 0.6242028125652184]
    ]


def test_mix64_leaves_its_argument_alone() -> None:
    x = np.arange(5, dtype=np.uint64)
    mix64(x)
    assert x.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("k", [0, 1, 22])
@pytest.mark.parametrize("samples", [0, 1, 7])
def test_shape_and_dtype(k: int, samples: int) -> None:
    u = uniforms(0, 0, "t", np.arange(samples), k)
    assert u.shape == (samples, k) and u.dtype == np.float64


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64, np.uint8])
def test_the_type_of_the_keys_does_not_count(dtype: type) -> None:
    a = uniforms(0, 0, "t", np.arange(10, dtype=dtype), 2)
    assert (a == uniforms(0, 0, "t", np.arange(10), 2)).all()


def test_a_row_depends_on_its_own_sample_only() -> None:
    whole = uniforms(5, 2, "t", np.arange(1000), 6)
    chosen = np.array([999, 3, 3, 500, 0])
    assert (uniforms(5, 2, "t", chosen, 6) == whole[chosen]).all()
    assert (uniforms(5, 2, "t", np.array([17]), 6) == whole[17:18]).all()


def test_the_first_numbers_do_not_depend_on_how_many_are_asked_for() -> None:
    assert (uniforms(5, 2, "t", np.arange(10), 22)[:, :3] == uniforms(5, 2, "t", np.arange(10), 3)).all()


@pytest.mark.parametrize("seed", [0, 1, 2**40, -7])
@pytest.mark.parametrize("epoch", [0, 89])
def test_uniform_over_samples(seed: int, epoch: int) -> None:
    u = uniforms(seed, epoch, "t", np.arange(50_000), 3)
    for column in u.T:
        assert ks_uniform_p(column) > P
        assert chi_square_p(np.bincount((column * 256).astype(int), minlength=256), len(u) / 256) > P


def test_pairs_are_independent() -> None:
    """Two numbers of one sample, and the same number of neighboring samples, fill the square evenly."""
    u = uniforms(0, 0, "t", np.arange(60_000), 2)
    for a, b in ((u[:, 0], u[:, 1]), (u[:-1, 0], u[1:, 0]), (u[:-1, 1], u[1:, 0])):
        cells = np.bincount((a * 20).astype(int) * 20 + (b * 20).astype(int), minlength=400)
        assert chi_square_p(cells, len(a) / 400) > P


def test_no_warning_and_no_global_generator(rng_untouched: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        uniforms(2**64 - 1, 2**64 - 1, "t", np.array([2**64 - 1], np.uint64), 5)


def test_the_tests_of_fit_can_fail() -> None:
    u = np.random.default_rng(0).random(5000)
    assert ks_uniform_p(u) > 0.01 and ks_uniform_p(u**1.1) < 1e-6
    assert ks_two_sample_p(u[:2500], u[2500:]) > 0.01 and ks_two_sample_p(u[:2500], u[2500:] + 0.1) < 1e-6
    counts = np.bincount((u * 10).astype(int))
    assert chi_square_p(counts, 500) > 0.01 and chi_square_p(counts + np.arange(10) * 20, 590) < 1e-6
