"""What the policies resolve to: the tables and arguments of torchvision, and ops that no draw changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import settings_of

from gpupipe import transforms as T
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.transforms import auto_augment_tables as tables
from gpupipe.transforms.ops import AutoContrast, Brightness, Equalize, Invert, Mix, Op, Posterize, Solarize, Warp
from gpupipe.transforms.transform import Images

SIZE = (224, 180)

POLICIES: dict[str, Any] = {
    "rand": T.RandAugment(),
    "rand 3": T.RandAugment(3, 20, 40),
    "trivial": T.TrivialAugmentWide(),
    "imagenet": T.AutoAugment(),
    "cifar10": T.AutoAugment("cifar10"),
    "svhn": T.AutoAugment("svhn"),
    "augmix": T.AugMix(),
    "augmix part": T.AugMix(5, 2, 2, 1.0, False),
}


def resolve(t: Any, n: int = 500, seed: int = 0, size: Any = SIZE) -> tuple[tuple[Op, ...], Images]:
    u = np.random.default_rng(seed).random((n, t.draws))
    found: tuple[tuple[Op, ...], Images] = t.resolve(u, Images(np.tile(size, (n, 1))))
    return found


def test_tables_are_torchvisions() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    for ours, their in (
        (tables.RAND, v2.RandAugment._AUGMENTATION_SPACE),
        (tables.WIDE, v2.TrivialAugmentWide._AUGMENTATION_SPACE),
        (tables.AUTO, v2.AutoAugment._AUGMENTATION_SPACE),
        (tables.AUGMIX, v2.AugMix._AUGMENTATION_SPACE),
        (tables.AUGMIX_PART, v2.AugMix._PARTIAL_AUGMENTATION_SPACE),
    ):
        assert list(ours) == list(their)
        for name, (ranges, signed) in ours.items():
            want, want_signed = their[name]
            assert signed == want_signed
            for bins in (2, 10, 11, 31, 32, 100):
                for h, w in ((224, 180), (1, 2000), (333, 7)):
                    values = want(bins, h, w)
                    assert (ranges is None) == (values is None)
                    if ranges is not None:
                        got = np.broadcast_to(ranges(bins, np.array([[h, w], [5, 5]]))[0], bins)
                        # torch's last bit differs between processors
                        assert got == pytest.approx(values.double().numpy(), rel=3e-7, abs=1e-7 * float(values.max()))


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_searched_policies_are_torchvisions(policy: str) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    enum = v2.AutoAugmentPolicy(policy)
    assert list(tables.POLICIES[policy]) == v2.AutoAugment(enum)._policies
    assert T.AutoAugment(enum) == T.AutoAugment(policy)


@pytest.mark.parametrize("name", POLICIES)
def test_arguments_and_defaults_are_torchvisions(name: str) -> None:
    import inspect

    v2 = pytest.importorskip("torchvision.transforms.v2")
    cls = type(POLICIES[name])
    want = inspect.signature(getattr(v2, cls.__name__).__init__).parameters
    got = inspect.signature(cls).parameters
    assert list(got) == list(want)[1:]
    for key, parameter in got.items():
        default = want[key].default
        assert parameter.default == getattr(default, "value", default)


# ---- the ops


@pytest.mark.parametrize("name", POLICIES)
def test_ops_do_not_depend_on_draws_or_sizes(name: str) -> None:
    specs = {
        repr(settings_of(resolve(POLICIES[name], n, seed, size)[0]))
        for seed, n, size in ((0, 500, SIZE), (1, 1, (5, 9)), (2, 3, (640, 480)))
    }
    assert len(specs) == 1


def test_neutral_numbers_where_an_op_is_not_drawn() -> None:
    ops, _ = resolve(T.RandAugment(1))
    for op in ops:
        rest = ~op.mask  # type: ignore[attr-defined]
        if isinstance(op, Brightness):
            assert (op.factor[rest] == 1).all() and (op.factor[op.mask] != 1).all()
        if isinstance(op, Posterize):
            assert (op.bits[rest] == 8).all()
        if isinstance(op, Solarize):
            assert (op.threshold[rest] == 255).all()
        if isinstance(op, Warp):
            assert (op.matrix[rest] == [1, 0, 0, 0, 1, 0]).all() and (op.turns[rest] == -1).all()


def test_only_what_can_happen_is_in_the_graph() -> None:
    ops, _ = resolve(T.AutoAugment("imagenet"))
    second = len(ops) - 1 - [isinstance(op, Warp) for op in ops][::-1].index(True)
    assert not any(isinstance(op, Brightness) for op in ops)
    assert not any(isinstance(op, AutoContrast) for op in ops[:second])
    assert any(isinstance(op, Invert) for op in ops[second:]) and any(isinstance(op, Equalize) for op in ops[:second])
    assert resolve(T.RandAugment(0))[0] == ()


def test_augmix_weights() -> None:
    (op,), _ = resolve(T.AugMix(mixture_width=4), 20_000)
    assert isinstance(op, Mix) and op.always and op.mask.all() and op.branches[0] == ()
    assert op.weights.dtype == np.float32 and op.weights.shape == (20_000, 5) and len(op.branches) == 5
    assert op.weights.sum(axis=1) == pytest.approx(np.ones(20_000), abs=1e-6)
    assert op.weights.mean(axis=0) == pytest.approx([0.5, *[0.125] * 4], abs=0.01)
    depth: Any = sum(sum(o.mask.astype(int) for o in chain) for chain in op.branches[1:]) / 4  # type: ignore[attr-defined]
    assert depth.mean() == pytest.approx(2, abs=0.02) and depth.min() >= 1 and depth.max() <= 3


def test_sizes_are_each_samples_own() -> None:
    u = np.full((2, 2), 0.999)
    u[:, 0] = (list(tables.RAND).index("TranslateX") + 0.5) / len(tables.RAND)
    (warp, *_), _ = T.RandAugment(1, 30).resolve(u, Images(np.array([[100, 331], [100, 662]])))
    assert isinstance(warp, Warp) and warp.matrix[:, 2].tolist() == [-150, -300]


# ---- arguments


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: T.RandAugment(-1), "RandAugment: num_ops must be an integer of at least 0, not -1"),
        (lambda: T.RandAugment(magnitude=31), "magnitude must be an integer from 0 to 30, not 31"),
        (lambda: T.RandAugment(fill="red"), "fill must be a number or three of them, not 'red'"),
        (lambda: T.TrivialAugmentWide(num_magnitude_bins=1), "num_magnitude_bins must be an integer of at least 2"),
        (lambda: T.TrivialAugmentWide(interpolation="area"), "interpolation must be one of"),
        (lambda: T.AutoAugment("coco"), "AutoAugment: policy must be one of imagenet, cifar10, svhn, not 'coco'"),
        (lambda: T.AugMix(severity=11), "severity must be an integer from 1 to 10, not 11"),
        (lambda: T.AugMix(mixture_width=0), "mixture_width must be an integer of at least 1, not 0"),
        (lambda: T.AugMix(alpha=0.5), "AugMix: alpha must be 1, not 0.5"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_places_where_they_cannot_be() -> None:
    with pytest.raises(PipelineError, match=r"RandAugment.*is float32 at this point and must be uint8"):
        T.Compose([T.ToTensor(), T.RandAugment()])
    with pytest.raises(
        PipelineError, match="tensors do not support interpolation 'bicubic' here; use 'nearest' or 'bilinear'"
    ):
        T.Compose([T.ToImage(), T.RandAugment(interpolation="bicubic")])
    with pytest.raises(PipelineError, match="PIL images do not support interpolation 'lanczos'"):
        T.Compose([T.RandAugment(interpolation="lanczos")])
    T.Compose([T.RandAugment(interpolation="bicubic"), T.ToTensor()])


def test_repr_holds_every_argument() -> None:
    assert repr(T.AugMix(fill=3)) == (
        "AugMix(severity=3, mixture_width=3, chain_depth=-1, alpha=1.0, all_ops=True, interpolation='bilinear', "
        "fill=(3.0,))"
    )
    assert replace(T.TrivialAugmentWide(), fill=(1, 2, 3)).fill == (1.0, 2.0, 3.0)
