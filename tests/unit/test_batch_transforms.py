"""MixUp and CutMix: what is drawn against torchvision, and what is done to batches, bit by bit as there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from goodness import chi_square_p, ks_two_sample_p, ks_uniform_p

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import Arrays
from gpupipe.engines.mixing import mix
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.rng import uniforms
from gpupipe.transforms.mixing import beta
from gpupipe.transforms.ops import CutMix, MixUp

P = 1e-3
N = 20_000


# ---- what is drawn


@pytest.mark.parametrize("alpha", [0.02, 0.2, 0.4, 1.0, 2.5, 50.0])
def test_the_factor_has_the_beta_distribution(alpha: float) -> None:
    got = beta(alpha, uniforms(1, 2, "beta", np.arange(N), 2))
    assert ((got >= 0) & (got <= 1)).all()
    want = np.random.default_rng(3).beta(alpha, alpha, N)
    assert ks_two_sample_p(got, want) > P
    low, high = (np.minimum(x, 1 - x) for x in (got, want))  # where almost all is, for a small alpha
    assert ks_two_sample_p(np.log(low + 1e-300), np.log(high + 1e-300)) > P
    if alpha == 1.0:
        assert ks_uniform_p(got) > P


def test_the_factor_at_the_ends_of_the_uniforms() -> None:
    edge = np.array([0.0, 2.0**-53, 0.5, 1 - 2.0**-53])
    u = np.stack(np.meshgrid(edge, edge), axis=-1).reshape(-1, 2)
    for alpha in (1e-3, 0.1, 1.0, 1e3):
        got = beta(alpha, u)
        assert np.isfinite(got).all() and ((got >= 0) & (got <= 1)).all()


def _drawn(transform: Any, size: tuple[int, int], n: int = 4000) -> Any:
    """One op for n batches: of every sample's own numbers."""
    images = T.Compose([T.Resize(size), T.ToTensor()]).resolve(0, 0, np.arange(n, dtype=np.uint64), [[9, 9]] * n)[1]
    return transform.resolve(uniforms(7, 0, "mix", np.arange(n), transform.draws), images)[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(32, 32), (17, 40)])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_windows_of_cutmix_are_those_of_torchvision(
    alpha: float, size: tuple[int, int], torchvision_draws: None
) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    theirs = v2.CutMix(alpha=alpha, num_classes=3)
    image = torch.zeros(2, 3, *size)
    made = [theirs.make_params([image]) for _ in range(4000)]
    op = _drawn(T.CutMix(alpha=alpha, num_classes=3), size)
    boxes = np.array([params["box"] for params in made])
    for ours, column in ((op.left, boxes[:, 0]), (op.top, boxes[:, 1]), (op.left + op.width, boxes[:, 2])):
        assert ks_two_sample_p(ours, column) > P
    assert ks_two_sample_p(op.top + op.height, boxes[:, 3]) > P
    assert ks_two_sample_p(op.factor, [params["lam_adjusted"] for params in made]) > P
    share = op.height * op.width / (size[0] * size[1])
    assert np.array_equal(op.factor, 1 - share)
    assert (op.top >= 0).all() and (op.top + op.height <= size[0]).all() and (op.left + op.width <= size[1]).all()


def test_one_draw_for_the_batch_and_another_for_the_next() -> None:
    pipeline = T.Compose([T.Resize((8, 8)), T.ToTensor(), T.MixUp(num_classes=3)])
    factors = []
    for start in range(0, 4000, 4):
        keys = np.arange(start, start + 4, dtype=np.uint64)
        (op,) = pipeline.resolve(0, 0, keys, [[9, 9]] * 4).mixing
        assert isinstance(op, MixUp) and op.partner.tolist() == [3, 0, 1, 2]
        assert len(np.unique(op.factor)) == 1
        factors.append(op.factor[0])
    assert ks_uniform_p(factors) > P


@pytest.mark.slow
def test_a_choice_is_of_the_whole_batch() -> None:
    choice = T.RandomChoice([T.MixUp(num_classes=3), T.CutMix(num_classes=3)], p=[0.25, 0.75])
    pipeline = T.Compose([T.Resize((32, 32)), T.ToTensor(), choice])
    mixed = 0
    for start in range(0, 8000, 4):
        mixup, cutmix = pipeline.resolve(0, 0, np.arange(start, start + 4, dtype=np.uint64), [[9, 9]] * 4).mixing
        assert isinstance(mixup, MixUp) and isinstance(cutmix, CutMix)
        assert (mixup.factor == mixup.factor[0]).all() and (cutmix.height == cutmix.height[0]).all()
        assert (mixup.factor == 1).all() or ((cutmix.factor == 1).all() and not cutmix.height.any())
        mixed += bool((mixup.factor != 1).all())
    assert chi_square_p([mixed, 2000 - mixed], [500, 1500]) > P


# ---- what is done


def _ops(batch: int, factor: float = 0.3, num_classes: int | None = 7) -> list[Any]:
    partner, same = np.roll(np.arange(batch), 1), np.full(batch, factor)
    box = [np.full(batch, n, np.int32) for n in (2, 1, 4, 5)]
    return [
        MixUp(partner, same, num_classes=num_classes),
        CutMix(partner, np.full(batch, 1 - 20 / 80), *box, num_classes=num_classes),
    ]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("soft", [False, True], ids=["classes", "shares"])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_bit_by_bit_as_torchvision(batch: int, soft: bool, dtype: torch.dtype, memory_format: Any) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    random = torch.Generator().manual_seed(batch)
    images = torch.randn(batch, 3, 8, 10, generator=random).to(dtype).contiguous(memory_format=memory_format)
    target = torch.rand(batch, 7, generator=random) if soft else torch.randint(7, (batch,), generator=random)
    before = images.clone()
    for op, name in zip(_ops(batch, num_classes=None if soft else 7), ("MixUp", "CutMix"), strict=True):
        theirs = getattr(v2, name)(num_classes=None if soft else 7)
        params = {"labels": target, "batch_size": batch, "lam": float(op.factor[0])}
        params |= {"box": (1, 2, 6, 6), "lam_adjusted": float(op.factor[0])}
        got_images, got_target = mix(images, target, [op])
        assert torch.equal(got_images, theirs.transform(images, params)), name
        want = theirs.transform(target, params)
        assert torch.equal(got_target, want) and got_target.dtype == want.dtype, name
        assert got_images.is_contiguous(memory_format=memory_format)
        assert torch.equal(images, before)
        written = before.clone()
        got_again, _ = mix(written, target, [op], inplace=True)
        assert torch.equal(got_again, got_images)
        assert (got_again.data_ptr() == written.data_ptr()) == (dtype == torch.float32)


def test_one_after_the_other() -> None:
    images, target = torch.randn(4, 3, 8, 10), torch.arange(4)
    mixup, cutmix = _ops(4)
    both = mix(images, target, [mixup, cutmix])
    step = mix(*mix(images, target, [mixup]), [cutmix])
    assert all(torch.equal(a, b) for a, b in zip(both, step, strict=True))
    assert torch.allclose(both[1].sum(dim=1), torch.ones(4))


def test_what_is_left_out_still_has_shares() -> None:
    images = torch.randn(3, 3, 8, 10)
    mask = np.zeros(3, np.bool_)
    ops = [op.where(mask, np.zeros((3, 2), np.int64)) for op in _ops(3)]
    got, target = mix(images, torch.tensor([0, 6, 2]), ops)
    assert got is images and torch.equal(target, torch.eye(7)[[0, 6, 2]])


def test_any_partner() -> None:
    images, target = torch.randn(3, 3, 8, 10), torch.arange(3)
    op = MixUp(np.array([2, 2, 0]), np.full(3, 0.25), num_classes=3)
    got, shares = mix(images, target, [op])
    assert torch.allclose(got, 0.25 * images + 0.75 * images[[2, 2, 0]])
    assert torch.equal(mix(images.clone(), target, [op], inplace=True)[0], got)
    assert torch.allclose(shares, 0.25 * torch.eye(3) + 0.75 * torch.eye(3)[[2, 2, 0]])


@pytest.mark.parametrize(
    ("target", "num_classes", "match"),
    [
        ([0, 1], 7, "one tensor of targets, .* not list"),
        (torch.zeros(3, dtype=torch.int64), 7, r"not a tensor \[3\]"),
        (torch.zeros(2, 2, 2), None, r"not a tensor \[2, 2, 2\]"),
        (torch.tensor([0, 1]), None, "given with num_classes"),
        (torch.tensor([0.0, 1.0]), 7, "must be integers"),
        (torch.tensor([0, 7]), 7, "num_classes=7 does not fit the targets"),
        (torch.zeros(2, 6), 7, "targets of 6 classes do not fit num_classes=7"),
    ],
)
def test_targets_that_cannot_be_mixed(target: Any, num_classes: int | None, match: str) -> None:
    for op in _ops(2, num_classes=num_classes):
        with pytest.raises(PipelineError, match=rf"^{type(op).__name__}.*{match}"):
            mix(torch.zeros(2, 3, 8, 10), target, [op])


def test_rows_with_other_numbers_are_refused() -> None:
    op = MixUp(np.array([1, 0]), np.array([0.5, 0.6]), num_classes=3)
    with pytest.raises(PipelineError, match="the same numbers for all samples"):
        mix(torch.zeros(2, 3, 4, 4), torch.tensor([0, 1]), [op])


# ---- refused when they are made

PIXELS = np.zeros((6, 9, 9, 3), np.uint8)
LABELS = np.array([0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("cls", [T.MixUp, T.CutMix])
def test_arguments(cls: Any) -> None:
    assert repr(cls(num_classes=3)) == f"{cls.__name__}(alpha=1.0, num_classes=3)"
    assert cls(num_classes=3, labels_getter=None) == cls(num_classes=3)
    with pytest.raises(ConfigError, match=r"labels_getter=.*remove it"):
        cls(num_classes=3, labels_getter=len)
    for alpha in (0, -1, "x", True, float("inf")):
        with pytest.raises(ConfigError, match="alpha must be a positive number"):
            cls(alpha=alpha)
    for n in (0, 2.5, True):
        with pytest.raises(ConfigError, match="num_classes must be an integer of at least 1"):
            cls(num_classes=n)
    for before in ([], [T.PILToTensor()]):
        with pytest.raises(PipelineError, match="uint8 at this point and must be floats"):
            T.Compose([*before, cls(num_classes=3)])
    with pytest.raises(PipelineError, match=rf"follows {cls.__name__}.*needs the finished batch"):
        T.Compose([T.ToTensor(), cls(num_classes=3), T.RandomHorizontalFlip()])
    with pytest.raises(PipelineError, match="each image has several views here"):
        T.Compose([T.MultiView(T.ToTensor(), 2), cls(num_classes=3)])
    with pytest.raises(PipelineError, match="cannot be part of a view"):
        T.Compose([T.MultiView([[T.ToTensor(), cls(num_classes=3)]])])


@pytest.mark.parametrize("engine", ["torch", "dali", "null"])
@pytest.mark.parametrize("inside", [False, True])
def test_labels_that_do_not_fit_are_refused_with_the_loader(engine: Any, inside: bool) -> None:
    def loader(labels: Any, **arguments: Any) -> DataLoader:
        last: Any = T.CutMix(**arguments)
        last = T.RandomApply([last]) if inside else last
        dataset = Arrays(PIXELS, labels, transform=T.Compose([T.ToTensor(), last]))
        return DataLoader(dataset, batch_size=2, engine=engine, device="cpu")

    loader(LABELS, num_classes=6)
    with pytest.raises(ConfigError, match=r"CutMix mixes labels, and Arrays\(.*\) has none"):
        loader(None, num_classes=6)
    with pytest.raises(ConfigError, match=r"CutMix: the labels are integers, so it needs num_classes"):
        loader(LABELS)
    with pytest.raises(ConfigError, match=r"num_classes=5 does not fit labels of 0 to 5"):
        loader(LABELS, num_classes=5)
    with pytest.raises(ConfigError, match=r"num_classes=6 does not fit labels of -1 to 4"):
        loader(LABELS - 1, num_classes=6)
