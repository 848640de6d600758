"""What stands in for convolutions and products of matrices on a GPU, where scripts may allow these to round to TF32."""

from __future__ import annotations

import numpy as np
import torch

from gpupipe.kernels import enhance
from gpupipe.kernels.warp import _product


def test_sums_are_the_filter_of_sharpness() -> None:
    for dtype in (torch.uint8, torch.float32):
        x = (torch.rand(2, 3, 12, 17) * 255).to(dtype).float()
        want = torch.nn.functional.conv2d(x, enhance._smooth(x.dtype, x.device).expand(3, 1, 3, 3), groups=3)
        got = enhance._smooth_by_sums(x)
        assert torch.allclose(got, want, rtol=1e-5)
        if dtype == torch.uint8:
            assert torch.equal(got.round(), want.round())


class _Elsewhere(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)


def test_the_product_of_places() -> None:
    rng = np.random.default_rng(0)
    places = torch.from_numpy(rng.normal(size=(4, 50, 3)).astype(np.float32))
    theta = torch.from_numpy(rng.normal(size=(4, 3, 2)).astype(np.float32))
    before = places.clone()
    got = _product(places.as_subclass(_Elsewhere), theta)
    assert torch.allclose(torch.Tensor(got), places.bmm(theta), atol=1e-5)
    assert torch.equal(places, before)
