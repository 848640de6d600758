"""The policies are bit-exact with torchvision's own, when both are given the same draws.

torchvision's transforms run as they are; only the random numbers they ask for are ours, and ``linspace``, whose last
bit depends on the processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gpupipe import transforms as T
from gpupipe.kernels.apply import apply_batch, apply_sample
from gpupipe.testing.photos import photograph
from gpupipe.transforms import auto_augment_tables as tables
from gpupipe.transforms.numbers import uniform_weights
from gpupipe.transforms.transform import Images

v2 = pytest.importorskip("torchvision.transforms.v2")
F = pytest.importorskip("torchvision.transforms.v2.functional")
auto = pytest.importorskip("torchvision.transforms.v2._auto_augment")

SIZES = ((60, 80), (64, 64), (37, 50))


class Numbers:
    """torch, but what it draws comes from a list."""

    def __init__(self, numbers: Iterator[float]):
        self._numbers = numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def rand(self, size: Any) -> torch.Tensor:
        return torch.tensor(next(self._numbers), dtype=torch.float64)

    def randint(self, *args: Any, low: int = 0, high: int = 0, size: Any = ()) -> torch.Tensor:
        high = high or args[0]
        return torch.tensor(low + int(next(self._numbers) * (high - low)))

    def linspace(self, start: float, end: float, steps: int) -> torch.Tensor:
        return torch.from_numpy(tables._steps(end, steps, start)[0].astype(np.float32))


def asked(space: tables.Space, choice: float, which: float | None, sign: float) -> list[Any]:
    """What torchvision asks for to apply one operation."""
    ranges, signed = list(space.values())[int(choice * len(space))]
    return [choice] + [which] * (ranges is not None and which is not None) + [sign] * signed  # type: ignore[list-item]


def needs(t: Any, u: Any) -> list[float]:
    """The numbers that torchvision's transform asks for, in its order."""
    if isinstance(t, T.RandAugment):
        return [x for k in range(t.num_ops) for x in asked(tables.RAND, u[2 * k], None, u[2 * k + 1])]
    if isinstance(t, T.TrivialAugmentWide):
        return asked(tables.WIDE, *u)
    if isinstance(t, T.AutoAugment):
        out = [u[0]]
        for k, (name, p, _) in enumerate(tables.POLICIES[t.policy][int(u[0] * 25)]):
            out.append(u[1 + 2 * k])
            if u[1 + 2 * k] <= p and tables.AUTO[name][1]:
                out.append(u[2 + 2 * k])
        return out
    n, depths = t.mixture_width, u[2 + t.mixture_width :]
    steps = u[2 + 2 * n :].reshape(n, -1, 3)
    space = tables.AUGMIX if t.all_ops else tables.AUGMIX_PART
    out = []
    for chain in range(n):
        depth = t.chain_depth
        if depth <= 0:
            depth = 1 + int(depths[chain] * 3)
            out.append(depths[chain])
        out += [x for step in steps[chain, :depth] for x in asked(space, *step)]
    return out


def theirs(t: Any, u: Any, image: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    arguments = dict(vars(t))
    if isinstance(t, T.AutoAugment):
        arguments["policy"] = v2.AutoAugmentPolicy(t.policy)
    if t.fill is not None:
        arguments["fill"] = list(t.fill) if len(t.fill) > 1 else t.fill[0]
    transform = getattr(v2, type(t).__name__)(**arguments)
    if isinstance(t, T.AugMix):
        drawn = iter([u[:2], u[2 : 2 + t.mixture_width]])
        transform._sample_dirichlet = lambda params: torch.from_numpy(uniform_weights(next(drawn)[None])).float()
    numbers = iter(needs(t, u))
    with monkeypatch.context() as m:
        m.setattr(auto, "torch", Numbers(numbers))
        made = transform(image)
    assert next(numbers, None) is None, "torchvision asked for less"
    return made


POLICIES: dict[str, Any] = {
    "rand": T.RandAugment(),
    "rand strong": T.RandAugment(1, 30, fill=(12, 130, 250)),
    "rand bilinear": T.RandAugment(3, 9, interpolation="bilinear", fill=128),
    "trivial": T.TrivialAugmentWide(),
    "trivial bilinear": T.TrivialAugmentWide(interpolation="bilinear"),
    "imagenet": T.AutoAugment(),
    "cifar10": T.AutoAugment("cifar10", interpolation="bilinear"),
    "svhn": T.AutoAugment("svhn", fill=99),
    "augmix": T.AugMix(),
    "augmix part": T.AugMix(10, 2, 4, 1.0, False, "nearest", (1, 2, 3)),
    "augmix one": T.AugMix(1, 1, 1),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["pil", "tensor"])
@pytest.mark.parametrize("name", POLICIES)
def test_does_what_torchvision_does(name: str, kind: Any, size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    t, n = POLICIES[name], 24
    u = np.random.default_rng(sum(size)).random((n, t.draws))
    ops, _ = t.resolve(u, Images(np.tile(size, (n, 1)), kind=kind))
    for i in range(n):
        picture = Image.fromarray(photograph(*size, i))
        want = theirs(t, u[i], picture if kind == "pil" else F.pil_to_tensor(picture), monkeypatch)
        want = np.asarray(want) if kind == "pil" else want.permute(1, 2, 0).numpy()
        got = apply_sample(picture, ops, i)
        assert isinstance(got, np.ndarray) and got.dtype == np.uint8
        assert np.array_equal(got, want), (i, needs(t, u[i]))


@pytest.mark.parametrize("kind", ["pil", "tensor"])
@pytest.mark.parametrize("name", ["rand", "trivial bilinear", "imagenet", "augmix"])
def test_the_batch_form_is_the_sample_form(name: str, kind: Any) -> None:
    t, n, size = POLICIES[name], 40, (40, 52)
    u = np.random.default_rng(1).random((n, t.draws))
    ops, _ = t.resolve(u, Images(np.tile(size, (n, 1)), kind=kind))
    if name == "augmix":
        ops = (ops[0].where(np.arange(n) % 3 > 0, np.tile(size, (n, 1))),)
    pictures = np.stack([photograph(*size, i) for i in range(n)])
    batch = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
    got = apply_batch(batch, ops).permute(0, 2, 3, 1).numpy()
    for i in range(n):
        assert np.array_equal(got[i], apply_sample(pictures[i], ops, i)), i
    if name == "augmix":
        assert np.array_equal(got[::3], pictures[::3]) and not np.array_equal(got[1], pictures[1])


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Rotate", "ShearX", "Color", "Contrast"):
        monkeypatch.setitem(tables.WIDE, name, (tables._up_to(0.8), True))
    with pytest.raises(AssertionError):
        test_does_what_torchvision_does("trivial", "pil", (60, 80), monkeypatch)
