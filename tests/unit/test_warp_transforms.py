"""Rotations, affine maps, perspective, erasing and random sizes resolve to torchvision's numbers, or to
numbers of the same distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from goodness import ks_two_sample_p
from support import settings_of

from gpupipe import transforms as T
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.transforms import matrices, ops
from gpupipe.transforms.compose import as_compose

v2 = pytest.importorskip("torchvision.transforms.v2")
geometry = pytest.importorskip("torchvision.transforms.v2.functional._geometry")

P, N = 1e-3, 1500


pytestmark = pytest.mark.usefixtures("torchvision_draws")


def resolve(pipeline: Any, size: tuple[int, int], n: int = N) -> tuple[tuple[Any, ...], Any]:
    return as_compose(pipeline).resolve(1, 0, np.arange(n, dtype=np.uint64), np.array([size] * n))[:2]


def theirs(transform: Any, size: tuple[int, int], n: int = N) -> list[dict[str, Any]]:
    image = torch.empty(3, *size, dtype=torch.uint8)
    return [transform.make_params([image]) for _ in range(n)]


def alike(got: Any, want: Any) -> None:
    assert ks_two_sample_p(np.asarray(got, np.float64), np.asarray(want, np.float64)) > P


# ---- matrices


@pytest.mark.parametrize("kind", ["pil", "tensor"])
@pytest.mark.parametrize("center", [None, (3.0, 7.5)])
def test_affine_matrices_are_torchvisions_in_every_bit(kind: Any, center: Any) -> None:
    rng, n = np.random.default_rng(0), 300
    sizes, angle, scale = rng.integers(1, 400, (n, 2)), rng.uniform(-200, 200, n), rng.uniform(0.3, 2, n)
    shear, shift = rng.uniform(-60, 60, (n, 2)), rng.integers(-30, 30, (n, 2))
    got = matrices.affine_matrix(angle, shift, scale, shear, center, sizes, kind)
    for i, (h, w) in enumerate(sizes.tolist()):
        middle = [w * 0.5, h * 0.5] if center is None else list(center)
        if kind == "tensor":
            middle = [middle[0] - w * 0.5, middle[1] - h * 0.5]
        want = geometry._get_inverse_affine_matrix(
            middle, float(angle[i]), shift[i].tolist(), float(scale[i]), shear[i].tolist()
        )
        assert got[i].tolist() == want


@pytest.mark.slow
def test_sizes_of_expanded_rotations_are_torchvisions() -> None:
    rng, n = np.random.default_rng(0), 2000
    sizes, angle = rng.integers(1, 600, (n, 2)), rng.uniform(0, 360, n)
    angle[:400] = rng.choice([0, 90, 180, 270], 400) + rng.uniform(-1e-5, 1e-5, 400)  # where its tolerance decides
    matrix, out, turns = matrices.rotation_matrix(angle, True, None, sizes, "tensor")
    assert (turns == -1).all()
    for i, (h, w) in enumerate(sizes.tolist()):
        width, height = geometry._compute_affine_output_size(matrix[i].tolist(), w, h)
        assert out[i].tolist() == [height, width]


def test_quarter_turns_are_exact() -> None:
    sizes = np.array([[30, 41]] * 6)
    angle = np.array([0.0, 90, 180, 270, -90, 450])
    for kind in ("pil", "tensor"):
        _, out, turns = matrices.rotation_matrix(angle, True, None, sizes, kind)  # type: ignore[arg-type]
        assert turns.tolist() == [0, 1, 2, 3, 3, 1]
        assert out.tolist() == [[41, 30] if k % 2 else [30, 41] for k in turns]
        _, out, turns = matrices.rotation_matrix(angle, False, None, sizes, kind)  # type: ignore[arg-type]
        assert turns.tolist() == [0, -1, 2, -1, -1, -1] and (out == sizes).all()
        assert (matrices.rotation_matrix(angle, True, (1.0, 2.0), sizes, kind)[2] == -1).all()  # type: ignore[arg-type]


# ---- what is drawn


def test_rotation() -> None:
    drawn = [d["angle"] for d in theirs(v2.RandomRotation((-20, 70)), (40, 60))]
    (op,), images = resolve(T.RandomRotation((-20, 70)), (40, 60))
    angle = np.degrees(np.arctan2(-op.matrix[:, 1], op.matrix[:, 0]))
    assert op.always and (images.sizes == [40, 60]).all() and (op.turns == -1).all()
    alike(angle, drawn)
    (_,), images = resolve(T.RandomRotation(20, expand=True), (40, 60))
    assert (images.sizes >= [40, 60]).all() and len(np.unique(images.sizes[:, 0])) > 5


def test_affine() -> None:
    arguments: dict[str, Any] = {
        "degrees": (10, 40),
        "translate": (0.1, 0.3),
        "scale": (0.5, 2.0),
        "shear": (1, 9, 2, 30),
    }
    drawn = theirs(v2.RandomAffine(**arguments), (50, 80))
    seen: list[dict[str, Any]] = []
    original = T.warp.affine_warp  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpupipe.transforms.warp.affine_warp", lambda *a, **k: seen.append(k) or original(*a, **k))
        (op,), images = resolve(T.RandomAffine(**arguments), (50, 80))
    assert op.always and (images.sizes == [50, 80]).all() and (op.source == [50, 80]).all()
    assert len(seen[-1]["angle"]) == N
    alike(seen[-1]["angle"], [d["angle"] for d in drawn])
    alike(seen[-1]["scale"], [d["scale"] for d in drawn])
    for axis in range(2):
        alike(seen[-1]["translate"][:, axis], [d["translate"][axis] for d in drawn])
        alike(seen[-1]["shear"][:, axis], [d["shear"][axis] for d in drawn])
    assert (seen[-1]["translate"] % 1 == 0).all()


def test_perspective() -> None:
    drawn = theirs(v2.RandomPerspective(0.6, p=1.0), (51, 80))
    (op,), _ = resolve(T.RandomPerspective(0.6, p=1.0), (51, 80))
    for k in range(8):
        alike(op.coefficients[:, k], [d["coefficients"][k] for d in drawn])
    (op,), _ = resolve(T.RandomPerspective(p=0.3), (51, 80))
    assert 0.25 < op.mask.mean() < 0.35 and not op.always


def test_perspective_coefficients_solve_the_corners() -> None:
    functional = pytest.importorskip("torchvision.transforms.functional")
    rng = np.random.default_rng(0)
    corners = np.stack([[[0, 0], [79, 0], [79, 50], [0, 50]]] * 50) + rng.integers(-9, 9, (50, 4, 2)) * 1.0
    images = T.transform.Images(np.array([[51, 80]] * 50))  # type: ignore[attr-defined]
    got = T.warp._coefficients(corners, images)  # type: ignore[attr-defined]
    for i in range(50):
        want = functional._get_perspective_coeffs([[0, 0], [79, 0], [79, 50], [0, 50]], corners[i].astype(int).tolist())
        assert np.allclose(got[i], want, rtol=1e-6, atol=1e-9)
    resolve(T.RandomPerspective(1.0, p=1.0), (1, 5), 20)  # has no unique answer, and is none the worse for it


@pytest.mark.parametrize("size", [(60, 80), (100, 9)])
def test_erasing(size: tuple[int, int]) -> None:
    options: dict[str, Any] = {"scale": (0.1, 0.9), "ratio": (0.2, 4.0)}
    drawn = [d for d in theirs(v2.RandomErasing(p=1.0, **options), size) if d["v"] is not None]
    (_, op), _ = resolve([T.ToTensor(), T.RandomErasing(p=1.0, **options)], size)
    assert abs(op.mask.mean() - len(drawn) / N) < 4 * np.sqrt(0.25 / N)
    for ours, name in (("top", "i"), ("left", "j"), ("height", "h"), ("width", "w")):
        alike(getattr(op, ours)[op.mask], [d[name] for d in drawn])
    assert (op.top + op.height <= size[0]).all() and (op.left + op.width <= size[1]).all() and (op.top >= 0).all()
    assert len(np.unique(op.seed)) == N


def test_several_windows_share_the_area() -> None:
    (_, *windows), _ = resolve([T.ToTensor(), T.RandomErasing(p=1.0, value="color", count=(1, 3))], (60, 80))
    first, second, third = windows
    assert not first.per_pixel and first.value is None
    count = first.mask.astype(int) + second.mask + third.mask
    assert np.allclose(np.bincount(count)[1:] / N, 1 / 3, atol=0.06)
    area = first.height * first.width / 4800
    assert area[count == 1].mean() > 2 * area[count == 3].mean()


def test_random_sizes() -> None:
    for ours, other in (
        (T.ScaleJitter((100, 150), (0.5, 1.5)), v2.ScaleJitter((100, 150), (0.5, 1.5))),
        (T.RandomShortestSize((30, 50, 70), 100), v2.RandomShortestSize([30, 50, 70], 100)),
        (T.RandomResize(30, 70), v2.RandomResize(30, 70)),
    ):
        drawn = [
            v2.functional._geometry._compute_resized_output_size((60, 97), d["size"]) for d in theirs(other, (60, 97))
        ]
        (op,), images = resolve(ours, (60, 97))
        assert (images.sizes[:, 0] == op.height).all() and op.antialias
        alike(op.height, [d[0] for d in drawn])
        alike(op.width, [d[1] for d in drawn])
        assert {tuple(s) for s in images.sizes.tolist()} <= {tuple(s) for s in drawn} or isinstance(ours, T.ScaleJitter)


def test_scale_jitter_multiplies_in_float32_as_torchvision_does() -> None:
    r = np.random.default_rng(0).random((N, 1))
    sizes = np.random.default_rng(1).integers(10, 900, (N, 2))
    op: Any
    (op,), _ = T.ScaleJitter((640, 480)).resolve(r, T.transform.Images(sizes))  # type: ignore[attr-defined]
    for i, (h, w) in enumerate(sizes.tolist()):
        factor = min(480 / h, 640 / w) * torch.tensor([0.1 + r[i, 0] * (2.0 - 0.1)], dtype=torch.float32)
        assert (op.height[i], op.width[i]) == (max(int(h * factor), 1), max(int(w * factor), 1))


def test_zoom_out() -> None:
    drawn = [d["padding"] for d in theirs(v2.RandomZoomOut(p=1.0), (30, 41))]
    (op,), images = resolve(T.RandomZoomOut(p=1.0, fill=9), (30, 41))
    right, bottom = op.left + op.width - 41, op.top + op.height - 30
    for k, ours in enumerate((-op.left, -op.top, right, bottom)):
        assert (ours >= 0).all()
        alike(ours, [d[k] for d in drawn])
    assert op.padded and op.fill == (9.0,) and (images.sizes[:, 1] == op.width).all()
    (op,), _ = resolve(T.RandomZoomOut(p=0.0), (30, 41), 9)
    assert (op.height == 30).all() and (op.left == 0).all()


# ---- errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomRotation(-3), "must not be negative"),
        (lambda: T.RandomRotation((3, 1)), "low <= high"),
        (lambda: T.RandomRotation(3, interpolation="cubic"), "interpolation must be one of"),
        (lambda: T.RandomRotation(3, center=(1, 2, 3)), "center must be 2"),
        (lambda: T.RandomAffine(3, translate=(0.1, 2)), "between 0 and 1"),
        (lambda: T.RandomAffine(3, scale=(0, 2)), "0 < low"),
        (lambda: T.RandomAffine(3, shear=(1, 2, 3)), "must be 1 or 2 or 4"),
        (lambda: T.RandomAffine(3, fill=(1, 2)), "fill must be a number or three"),
        (lambda: T.RandomPerspective(2.0), "distortion_scale"),
        (lambda: T.RandomErasing(scale=(0.3, 2)), "scale must be"),
        (lambda: T.RandomErasing(ratio=(3, 1)), "ratio must be"),
        (lambda: T.RandomErasing(value="noise"), '"random" or "color"'),
        (lambda: T.RandomErasing(count=0), "count must be"),
        (lambda: T.RandomErasing(count=(1, True)), "count must be"),
        (lambda: T.Pad(True), "numbers of pixels, none negative, not True"),
        (lambda: T.RandomCrop(8, padding=(0, True)), "padding must be"),
        (lambda: T.CenterCrop((8, True)), "size must be"),
        (lambda: T.ScaleJitter(3), "two numbers"),
        (lambda: T.RandomShortestSize(()), "min_size"),
        (lambda: T.RandomResize(30, 30), "min_size < max_size"),
        (lambda: T.RandomZoomOut(side_range=(0.5, 2)), "1 <= low <= high"),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ([T.RandomErasing()], "put it after ToTensor"),
        ([T.ToImage(), T.RandomErasing(value="random")], "uint8 cannot hold normal noise"),
        ([T.Grayscale(), T.ToTensor(), T.RandomErasing(value=(1, 2, 3))], "3 values for an image of 1"),
        ([T.ToImage(), T.RandomRotation(3, interpolation="bicubic")], "before ToTensor or ToImage"),
        ([T.RandomRotation(3, interpolation="lanczos")], "PIL images do not support interpolation 'lanczos'"),
        ([T.Grayscale(), T.RandomAffine(3, fill=(1, 2, 3))], "fill has 3 numbers"),
    ],
)
def test_what_does_not_fit_together(chain: list[Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        T.Compose(chain)


def test_numbers_are_no_settings() -> None:
    """A graph is built from the settings; they must not change with the draws."""
    chain = T.Compose([T.RandomRotation(9), T.RandomPerspective(), T.ToTensor(), T.RandomErasing(value="random")])
    sizes = np.array([[60, 80], [97, 61]])
    a, b = (chain.resolve(seed, 0, np.arange(2, dtype=np.uint64), sizes)[0] for seed in (1, 2))
    assert settings_of(a) == settings_of(b)
    assert [type(op) for op in a] == [ops.Warp, ops.Perspective, ops.ToDtype, ops.Erase]
