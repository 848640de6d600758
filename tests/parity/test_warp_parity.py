"""Rotations, affine maps and perspective: torchvision's bit by bit, the batch's too, DALI's nearly."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from support import from_reference, pictures, plans_of

from gpupipe import transforms as T
from gpupipe.datasets import Arrays
from gpupipe.engines import Dali
from gpupipe.engines.torch.reference import reference
from gpupipe.kernels import BATCH_FORMS, FORMS
from gpupipe.kernels.picture import array
from gpupipe.parity.difference import difference
from gpupipe.parity.tolerances import check
from gpupipe.testing.photos import photograph
from gpupipe.transforms.matrices import affine_warp, rotation_warp
from gpupipe.transforms.ops import Op, Perspective, Warp
from gpupipe.transforms.transform import Images

F = pytest.importorskip("torchvision.transforms.v2.functional")
MODE = {mode.value: mode for mode in pytest.importorskip("torchvision.transforms").InterpolationMode}
FORM = sys.modules["gpupipe.kernels.warp"]

SIZES = np.array([(60, 80), (97, 61), (64, 64), (33, 50), (47, 48), (21, 90)])
FILLS = [(0.0,), (7.0,), (10.0, 250.0, 33.0), None]
KINDS = ["pil", "tensor", "float"]
ALL = np.ones(len(SIZES), np.bool_)


def originals(kind: str) -> list[Any]:
    """As torchvision would get them: PIL images, or [C, H, W]."""
    images = [Image.fromarray(photograph(h, w, i)) for i, (h, w) in enumerate(SIZES.tolist())]
    if kind == "pil":
        return images
    tensors = [F.pil_to_tensor(image).contiguous() for image in images]
    return [x.to(torch.float32) / 255 for x in tensors] if kind == "float" else tensors


def modes(kind: str) -> list[str]:
    return ["nearest", "bilinear", "bicubic"] if kind == "pil" else ["nearest", "bilinear"]


def images_for(kind: str) -> Images:
    return Images(SIZES, kind="pil" if kind == "pil" else "tensor", dtype="float32" if kind == "float" else "uint8")


def pixels(image: Any) -> torch.Tensor:
    """[C, H, W]"""
    return image if isinstance(image, torch.Tensor) else F.pil_to_tensor(image)


def check_all(kind: str, op: Op, theirs: Callable[[Any, int], Any]) -> None:
    """The form for samples, the form for batches, and what a batch on a GPU goes through, against torchvision."""
    for i, original in enumerate(originals(kind)):
        want = pixels(theirs(original, i))
        given = original if kind == "pil" else original.permute(1, 2, 0).numpy().copy()
        got = torch.from_numpy(np.array(array(FORMS[type(op)](given, op, i)))).permute(2, 0, 1)
        assert got.shape == want.shape and torch.equal(got, want), (i, op.settings())
        one = op.take(slice(i, i + 1))
        batch = pixels(original)[None]
        assert torch.equal(BATCH_FORMS[type(op)](batch.clone(), one)[0], want), (i, op.settings())
        with mock.patch.object(FORM, "_as_image", return_value=False):
            assert torch.equal(BATCH_FORMS[type(op)](batch.clone(), one)[0], want), (i, op.settings())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("expand", [False, True])
def test_rotate(kind: str, expand: bool) -> None:
    angles = [np.array([30.0, -77.7, 200.1, 45.0, 359.0, 1e-3]), np.array([0.0, 90.0, 180.0, 270.0, -90.0, 360.0])]
    for angle in angles:
        for mode in modes(kind):
            for fill, center in zip(FILLS, (None, None, (5.0, 9.5), None), strict=True):
                op = rotation_warp(
                    images_for(kind), ALL, angle=angle, expand=expand, center=center, interpolation=mode, fill=fill
                )

                def theirs(image: Any, i: int, angle=angle, mode=mode, fill=fill, center=center) -> Any:
                    return F.rotate(
                        image, float(angle[i]), MODE[mode], expand, center and list(center), fill and list(fill)
                    )

                check_all(kind, op, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_affine(kind: str) -> None:
    rng = np.random.default_rng(1)
    n = len(SIZES)
    turned = (
        rng.uniform(-180, 180, n),
        rng.integers(-9, 9, (n, 2)),
        rng.uniform(0.5, 2, n),
        rng.uniform(-40, 40, (n, 2)),
    )
    shifted = (np.zeros(n), rng.integers(-30, 30, (n, 2)), np.ones(n), np.zeros((n, 2)))
    scaled = (np.zeros(n), np.zeros((n, 2), np.int64), rng.uniform(0.3, 3, n), np.zeros((n, 2)))
    halved = (np.zeros(n), np.zeros((n, 2), np.int64), np.full(n, 2.0), np.zeros((n, 2)))
    for angle, translate, scale, shear in (turned, shifted, scaled, halved):
        for mode in modes(kind):
            for fill, center in zip(FILLS, (None, (0.0, 0.0), (5.0, 9.5), None), strict=True):
                op = affine_warp(
                    images_for(kind), ALL, angle=angle, translate=translate, scale=scale, shear=shear, center=center,
                    interpolation=mode, fill=fill,
                )  # fmt: skip

                def theirs(image: Any, i: int, n=(angle, translate, scale, shear, mode, fill, center)) -> Any:
                    angle, translate, scale, shear, mode, fill, center = n
                    return F.affine(
                        image, float(angle[i]), [int(t) for t in translate[i]], float(scale[i]),
                        [float(s) for s in shear[i]], MODE[mode], fill and list(fill), center and list(center),
                    )  # fmt: skip

                check_all(kind, op, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_perspective(kind: str) -> None:
    for mode in modes(kind):
        for fill in FILLS:
            transform = T.RandomPerspective(0.6, p=1.0, interpolation=mode, fill=fill)
            u = np.random.default_rng(2).random((len(SIZES), 9))
            (op,), _ = transform.resolve(u, images_for(kind))
            assert isinstance(op, Perspective) and op.always

            def theirs(image: Any, i: int, op=op, mode=mode, fill=fill) -> Any:
                numbers = op.coefficients[i].tolist()
                return F.perspective(image, None, None, MODE[mode], fill and list(fill), coefficients=numbers)

            check_all(kind, op, theirs)


@pytest.mark.parametrize("kind", ["pil", "float"])
def test_the_mask_leaves_samples_alone(kind: str) -> None:
    n = 6
    images = Images(np.full((n, 2), 40), kind="pil" if kind == "pil" else "tensor")
    mask = np.array([True, False, True, True, False, False])
    x = torch.from_numpy(np.stack([photograph(40, 40, i) for i in range(n)])).permute(0, 3, 1, 2).contiguous()
    x = x / 255 if kind == "float" else x
    ops = [
        rotation_warp(images, mask, angle=20.0, expand=False),
        Perspective(mask, np.tile([1.1, 0.1, 0, 0, 1, 2, 1e-3, 0], (n, 1)), kind=images.kind),
        rotation_warp(images, ALL[:n], angle=20.0, always=True).where(mask, images.sizes),
    ]
    for op in ops:
        out = BATCH_FORMS[type(op)](x.clone(), op)
        for i in range(n):
            sample = array(FORMS[type(op)](x[i].permute(1, 2, 0).numpy().copy(), op, i))
            assert torch.equal(out[i], torch.from_numpy(np.array(sample)).permute(2, 0, 1))
            assert torch.equal(out[i], x[i]) != mask[i]


def test_a_batch_may_come_out_in_another_size_but_not_in_several() -> None:
    images = Images(np.full((3, 2), (20, 30)))
    x = torch.zeros(3, 3, 20, 30, dtype=torch.uint8)
    for angles, mask in (([90.0, 90.0, 90.0], [1, 1, 1]), ([90.0, 0.0, 90.0], [1, 1, 1]), ([90.0] * 3, [1, 0, 1])):
        op = rotation_warp(images, np.array(mask, bool), angle=np.array(angles), expand=True)
        if angles[1] and all(mask):
            assert BATCH_FORMS[Warp](x.clone(), op).shape == (3, 3, 30, 20)
            continue
        with pytest.raises(ValueError, match="in different sizes cannot be stacked"):
            BATCH_FORMS[Warp](x.clone(), op)


PIPELINES = {
    f"{name} {kind} {mode}": T.Compose([*before, *chain(mode, 9.0 if kind != "float" else 0.3), *after])
    for kind, before, after in (
        ("pil", [], [T.ToImage()]),
        ("tensor", [T.ToImage()], []),
        ("float", [T.ToTensor()], [T.Normalize((0.5,), (0.2,))]),
    )
    for mode in ("nearest", "bilinear")
    for name, chain in {
        "affine": lambda m, f: [T.RandomAffine(30, (0.1, 0.1), (0.7, 1.3), 20, interpolation=m)],
        "fill": lambda m, f: [T.RandomAffine(30, (0.1, 0.1), interpolation=m, fill=(f, 2 * f, 3 * f))],
        "expand": lambda m, f: [T.RandomRotation(45, expand=True, interpolation=m, fill=f), T.CenterCrop(60)],
        "quarters": lambda m, f: [T.RandomRotation((90, 90), expand=True, interpolation=m, fill=None)],
        "perspective": lambda m, f: [T.RandomPerspective(p=0.7, interpolation=m, fill=f)],
        "after a resize": lambda m, f: [T.RandomResizedCrop(40), T.RandomRotation(20, interpolation=m, fill=None)],
    }.items()
}


@pytest.mark.parametrize("name", PIPELINES)
def test_dali_against_the_reference(name: str) -> None:
    dataset = Arrays(pictures(16, 70, 90), transform=PIPELINES[name])
    found = from_reference(dataset, Dali(graph="whole"))
    broken = check("dali/torch", dataset.transform, found, "graph")
    assert not broken, "\n".join([*broken, f"found: {found.to_dict()}"])
    assert found.images == 16 and ("quarters" not in name or "float" in name or found.equal == 1)


def test_a_matrix_that_is_half_a_pixel_off_is_told() -> None:
    dataset = Arrays(pictures(8, 70, 90), transform=PIPELINES["affine pil bilinear"])
    (plan,) = plans_of(dataset, batch_size=8)
    assert plan.ops is not None and isinstance(plan.ops[0], Warp) and dataset.sizes is not None
    moved = replace(plan.ops[0], matrix=plan.ops[0].matrix + np.array([0, 0, 0.5, 0, 0, 0]))
    other = reference(dataset, replace(plan, ops=(moved, *plan.ops[1:])), dataset.transform)
    found = difference(other, reference(dataset, plan, dataset.transform), plan.ops, dataset.sizes[plan.indices])
    assert check("dali/torch", dataset.transform, found, "graph")
