"""Blur and erasing: torchvision's bit by bit where the numbers are the same, and DALI against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import from_reference, pictures

from gpupipe import transforms as T
from gpupipe.datasets import Arrays
from gpupipe.engines import Dali
from gpupipe.kernels import BATCH_FORMS, FORMS
from gpupipe.kernels.device_random import normal
from gpupipe.kernels.picture import array
from gpupipe.kernels.registry import FAST_FORMS
from gpupipe.parity.tolerances import check
from gpupipe.testing.photos import photograph
from gpupipe.transforms.ops import Blur, Erase

F = pytest.importorskip("torchvision.transforms.v2.functional")

SIZES = [(60, 80), (97, 61), (64, 64), (33, 150), (12, 13)]
SIGMAS = np.array([0.1, 0.8, 1.3, 2.0, 7.0])
ALL = np.ones(5, np.bool_)


@pytest.mark.parametrize("kind", ["pil", "tensor", "float", "packed float"])
@pytest.mark.parametrize("kernel_size", [(3, 3), (5, 9), (9, 5), (23, 23), (1, 1)])
def test_blur(kind: str, kernel_size: tuple[int, int]) -> None:
    op = Blur(ALL, SIGMAS, kernel_size=kernel_size, kind="pil" if kind == "pil" else "tensor")
    for i, (h, w) in enumerate(SIZES):
        image: Any = Image.fromarray(photograph(h, w, i))
        if kind != "pil":
            image = F.pil_to_tensor(image)
            image = image / 255 if "float" in kind else image
            image = image.contiguous() if kind != "packed float" else image
        want = F.gaussian_blur(image, list(kernel_size), [float(SIGMAS[i])] * 2)
        want = F.pil_to_tensor(want) if kind == "pil" else want
        given = image if kind == "pil" else image.permute(1, 2, 0).numpy().copy()
        got = torch.from_numpy(np.array(array(FORMS[Blur](given, op, i)))).permute(2, 0, 1)
        assert torch.equal(got, want), (i, (got.float() - want.float()).abs().max())
        batch = (F.pil_to_tensor(image) if kind == "pil" else image)[None].clone()
        assert torch.equal(BATCH_FORMS[Blur](batch, op.take(slice(i, i + 1)))[0], want)


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("kernel_size", [(3, 3), (5, 9), (23, 23), (23, 3), (1, 5)])
def test_blur_along_axes(kernel_size: tuple[int, int], precision: str) -> None:
    """Images that are hardly larger than half of the kernel, several products along an axis, and kernels of which
    nothing is left but one weight or three."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for i, (h, w) in enumerate([*SIZES, (12, 12), (13, 200), (224, 57)]):
            for sigma in (0.1, 0.3, 1.0, 2.0, 7.0):
                op = Blur(ALL[:1], np.array([sigma]), kernel_size=kernel_size)
                pixels = photograph(h, w, i)
                for image, most in (
                    (pixels, 1),
                    (pixels[:, :, :1].copy(), 1),
                    ((pixels / 255).astype(np.float32), 2e-6),
                ):
                    want, got = (array(forms[Blur](image, op, 0)) for forms in (FORMS, FAST_FORMS))
                    apart = np.abs(want.astype(np.float64) - got)
                    assert got.shape == want.shape and got.dtype == want.dtype and apart.max() <= most
                    assert most < 1 or (apart > 0).mean() < 0.002, (h, w, sigma, (apart > 0).mean())
    finally:
        torch.set_float32_matmul_precision(before)


def test_blur_of_a_batch_at_once_is_that_of_its_images() -> None:
    """A GPU does all of them in one convolution."""
    from gpupipe.kernels.blur import blur_batch

    x = torch.from_numpy(pictures(5)).permute(0, 3, 1, 2)
    want = [F.gaussian_blur(row, [9, 5], [float(s)] * 2) for row, s in zip(x, SIGMAS, strict=True)]
    every = Blur(np.ones(5, np.bool_), SIGMAS, kernel_size=(9, 5))
    assert (blur_batch(x, every).int() - torch.stack(want).int()).abs().max() <= 1
    masked: Any = every.where(np.array([True, False, True, False, False]), np.full((5, 2), 0))
    out = BATCH_FORMS[Blur](x.clone(), masked)
    for i in range(5):
        assert torch.equal(out[i], want[i] if masked.mask[i] else x[i])


@pytest.mark.parametrize("value", [(0.0,), (0.5, -1.0, 2.0), None])
def test_erase(value: Any) -> None:
    x = torch.from_numpy(pictures(3)).permute(0, 3, 1, 2) / 255
    numbers = [np.array(v, np.int32) for v in ([3, 0, 9], [5, 0, 9], [10, 48, 0], [7, 56, 4])]
    op = Erase(np.array([True, True, False]), *numbers, np.arange(3, dtype=np.uint64), value=value)
    got = BATCH_FORMS[Erase](x.clone(), op)
    for i in range(3):
        top, left, h, w = (int(n[i]) for n in numbers)
        v = normal(op.seed[i : i + 1], 3 * h * w, x.device).view(3, h, w) if value is None else torch.tensor(value)
        v = v if value is None else v[:, None, None]
        assert torch.equal(got[i], F.erase(x[i], top, left, h, w, v) if op.mask[i] else x[i])


NORMALIZE = T.Normalize((0.5,), (0.2,))
PIPELINES = {
    "blur pil": [T.GaussianBlur(9), T.ToTensor(), NORMALIZE],
    "blur pil 23": [T.RandomHorizontalFlip(), T.GaussianBlur((23, 5), (0.5, 3.0)), T.ToImage()],
    "blur tensor": [T.ToImage(), T.GaussianBlur(3, 1.0)],
    "blur float": [T.ToTensor(), T.GaussianBlur(5), NORMALIZE],
    "erase": [T.ToTensor(), NORMALIZE, T.RandomErasing(p=0.7, value=(1, 2, 3))],
    "erase random": [T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE, T.RandomErasing(p=1.0, value="random")],
    "erase color": [T.ToTensor(), NORMALIZE, T.RandomErasing(p=1.0, value="color", count=(1, 3))],
    "erase bytes": [T.ToImage(), T.RandomErasing(p=1.0, value=200)],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_dali_against_the_reference(name: str) -> None:
    dataset = Arrays(pictures(16, 70, 90), transform=T.Compose(PIPELINES[name]))
    found = from_reference(dataset, Dali(graph="whole"))
    broken = check("dali/torch", dataset.transform, found, "graph")
    assert not broken, "\n".join([*broken, f"found: {found.to_dict()}"])
    assert found.images == 16
