"""Quantiles against scipy's, which is not needed here: its values are written down."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from goodness import ks_two_sample_p, ks_uniform_p

from gpupipe.errors import ConfigError
from gpupipe.transforms.quantiles import beta_quantile, dirichlet, gamma_quantile

P = 1e-4
U = [1e-12, 0.001, 0.1, 0.37, 0.5, 0.77, 0.999, 1 - 2**-40]

# scipy.special.betaincinv(a, b, u) and gammaincinv(a, u), scipy 1.17
# ruff: noqa: E501
# fmt: off
BETA = {
    (0.2, 0.2): [2.4780562448634872e-59, 2.478056244863435e-14, 0.00024776469190814675, 0.15393514857081705, 0.5, 0.9842184294590718, 0.9999999999999752, 1.0],
    (0.4, 1.0): [9.999999999999999e-31, 3.162277660168379e-08, 0.00316227766016838, 0.08327301903978263, 0.17677669529663692, 0.5202676385284789, 0.9975018746874609, 0.9999999999977263],
    (1.0, 0.3): [3.3333333333294444e-12, 0.003329446172695454, 0.2961582386224959, 0.7856442366334182, 0.9007874342519875, 0.9925453695309496, 0.9999999999, 1.0],
    (0.8, 0.8): [1.2737425593130041e-15, 0.0002265013158630112, 0.07105044309060285, 0.35144958799401504, 0.5, 0.8018663522077081, 0.999773498684137, 0.9999999999999989],
    (2.0, 5.0): [2.5819897863610075e-07, 0.008255492787746678, 0.09259525891312873, 0.21032463252174394, 0.26444998329566005, 0.402118402610099, 0.818613866919134, 0.9972689623396545],
    (3.0, 0.05): [0.00038197941243719254, 0.3464658804381166, 0.9704267234847522, 0.9999776865790805, 0.9999997806503332, 0.9999999999999605, 1.0, 1.0],
    (50.0, 70.0): [0.14926613492619487, 0.2839287572938242, 0.35937728488666226, 0.40129366144445916, 0.41620219115122564, 0.44973480313576747, 0.5572012282144976, 0.7245697593316285],
    (10000.0, 10000.0): [0.4751444094861486, 0.48907554644043605, 0.49546906737197843, 0.4988267081909803, 0.5, 0.5026122329139258, 0.510924453559564, 0.5249022314380978],
}
GAMMA = {
    0.01: [0.0, 5.660738147062265e-301, 5.660738147062073e-101, 3.741497613694663e-44, 4.465535018910562e-31, 2.5231646014092243e-12, 1.509084147694745, 20.109230192198833],
    0.2: [6.525480843457185e-61, 6.525480843457226e-16, 6.525516328619701e-06, 0.004542172180915581, 0.02074633919282486, 0.20880000496044077, 4.101964324738666, 23.639452923031033],
    0.5: [7.853981633974466e-25, 7.853985746312461e-07, 0.00789538704671561, 0.11603037880541468, 0.227468211559786, 0.7204306940265733, 5.413783085331366, 25.51516783374865],
    1.0: [1.0000000000005e-12, 0.001000500333583534, 0.10536051565782636, 0.4620354595965587, 0.6931471805599455, 1.4696759700589417, 6.907755278982137, 27.725887222397812],
    3.0: [0.0001817203146263742, 0.1905333775684032, 1.1020653282493214, 2.1728591866907383, 2.674060313723559, 4.056085866746104, 11.228872242412661, 34.15296700091932],
    100.0: [44.8860220300176, 71.9213974950004, 87.41763649959366, 96.39138495287821, 99.66686491931549, 107.2239882069103, 133.7702639113786, 187.4467159119615],
    10000.0: [9312.628969854226, 9693.824385823726, 9872.060875049736, 9966.518677902091, 9999.666668642047, 10073.731993251908, 10311.875224539537, 10721.075971875109],
}
# fmt: on


@pytest.mark.parametrize(("a", "b"), BETA)
def test_beta_is_what_scipy_computes(a: float, b: float) -> None:
    assert beta_quantile(U, a, b) == pytest.approx(BETA[a, b], rel=1e-11, abs=0)


@pytest.mark.parametrize("a", GAMMA)
def test_gamma_is_what_scipy_computes(a: float) -> None:
    assert gamma_quantile(U, a) == pytest.approx(GAMMA[a], rel=1e-11, abs=0)


@pytest.mark.parametrize(("a", "b"), [(0.2, 0.2), (1.0, 1.0), (0.7, 3.0), (40.0, 2.0)])
def test_beta_is_distributed_as_numpys(a: float, b: float) -> None:
    rng = np.random.default_rng(0)
    assert ks_two_sample_p(beta_quantile(rng.random(50_000), a, b), rng.beta(a, b, 50_000)) > P
    assert ks_two_sample_p(beta_quantile(rng.random(50_000), a, b * 1.1), rng.beta(a, b, 50_000)) < P


@pytest.mark.parametrize("a", [0.2, 1.0, 7.0])
def test_gamma_is_distributed_as_numpys(a: float) -> None:
    rng = np.random.default_rng(1)
    assert ks_two_sample_p(gamma_quantile(rng.random(50_000), a), rng.gamma(a, size=50_000)) > P
    assert ks_two_sample_p(gamma_quantile(rng.random(50_000), a * 1.1), rng.gamma(a, size=50_000)) < P


@pytest.mark.part(of=3)
@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("n", [2, 3])
def test_dirichlet_is_distributed_as_numpys(alpha: float, n: int) -> None:
    rng = np.random.default_rng(2)
    got, want = dirichlet(rng.random((30_000, n)), alpha), rng.dirichlet([alpha] * n, 30_000)
    assert got.sum(axis=1) == pytest.approx(np.ones(30_000), abs=1e-12)
    assert all(ks_two_sample_p(got[:, i], want[:, i]) > P for i in range(n))
    assert ks_two_sample_p(got.max(axis=1), want.max(axis=1)) > P


def test_simple_cases() -> None:
    u = np.linspace(0, 1, 101)
    assert beta_quantile(u, 1, 1) == pytest.approx(u, abs=1e-15)
    assert gamma_quantile(u[:-1], 1) == pytest.approx(-np.log1p(-u[:-1]), abs=1e-14)
    # arcsine law
    assert beta_quantile(u, 0.5, 0.5) == pytest.approx(np.sin(np.pi * u / 2) ** 2, abs=1e-13)
    assert ks_uniform_p(beta_quantile(np.random.default_rng(0).random(10_000), 1, 1)) > P


@pytest.mark.parametrize("a", [1e-3, 0.05, 0.2, 1.0, 30.0])
def test_ends_and_order(a: float) -> None:
    u = np.concatenate([[0.0, 2.0**-53], np.linspace(1e-6, 1 - 1e-6, 999), [1 - 2.0**-53]])
    for x in (beta_quantile(u, a, 0.3), beta_quantile(u, 0.3, a), gamma_quantile(u, a)):
        assert np.isfinite(x).all() and x[0] == 0 and (np.diff(x) >= -1e-13).all()
    assert beta_quantile([0.0, 1.0], a, 0.3).tolist() == [0, 1]


def test_mirrored() -> None:
    u = np.linspace(0.01, 0.99, 99)
    assert beta_quantile(u, 0.2, 1.7) == pytest.approx(1 - beta_quantile(1 - u, 1.7, 0.2), abs=1e-12)


def test_shapes() -> None:
    assert beta_quantile(0.5, 2, 2).shape == () and gamma_quantile(0.5, 2).shape == ()
    assert beta_quantile(np.full((2, 0, 3), 0.5), 2, 2).shape == (2, 0, 3)
    assert beta_quantile(np.full((2, 3), 0.5), 2, 2) == pytest.approx(np.full((2, 3), 0.5))
    assert dirichlet(np.full((4, 2, 3), 0.2), 0.5) == pytest.approx(np.full((4, 2, 3), 1 / 3))


def test_dirichlet_of_small_alpha_is_one_corner() -> None:
    u = np.random.default_rng(3).random((1000, 4))
    u[0] = 0
    weights = dirichlet(u, 1e-4)
    assert np.isfinite(weights).all() and (weights.max(axis=1) > 0.99).mean() > 0.99


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: beta_quantile(0.5, 0, 1), "beta_quantile: a must be a positive number, not 0"),
        (lambda: beta_quantile(0.5, 1, math.inf), "b must be a positive number, not inf"),
        (lambda: gamma_quantile(0.5, "1"), "gamma_quantile: a must be a positive number, not '1'"),  # type: ignore[arg-type]
        (lambda: dirichlet([0.5], -1), "dirichlet: alpha must be a positive number, not -1"),
        (lambda: beta_quantile(1.5, 1, 1), "u must contain probabilities"),
        (lambda: gamma_quantile([0.5, math.nan], 1), "u must contain probabilities"),
        (lambda: gamma_quantile(1.0, 1), "u must contain probabilities"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
