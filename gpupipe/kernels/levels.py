"""Ops on bytes, computed by torch alone, so that TorchScript can compile them.

The same functions run on a GPU, and on a CPU call by call or, in a step of :mod:`.at_once`, without Python's lock.
Images are [n, 3, H, W]: bytes, or *levels*, which are bytes in float32 that an op left with a fraction. Levels become
bytes by truncation, and whole numbers before the next op. All results are those of Pillow.
"""

# torch.jit needs annotations as objects, so they must not become strings.
import torch
from torch import Tensor


def levels_of(x: Tensor) -> Tensor:
    """Return whole numbers in float32, channel by channel: a copy of bytes; levels in place."""
    if x.dtype == torch.uint8:
        return x.contiguous().to(torch.float32)
    return x.floor_()


def bytes_of(x: Tensor) -> Tensor:
    """Truncate levels to bytes; bytes as they are. Outside of compiled code, :func:`.picture.to_bytes` is faster."""
    # In two steps, which are vectorized; the direct conversion is not.
    return x if x.dtype == torch.uint8 else x.to(torch.int32).to(torch.uint8)


# ---- gray, and blends with a reduced image


def luma(levels: Tensor) -> Tensor:
    """Compute f32[n, 1, H, W] like ``convert("L")``: 16-bit fixed-point weights of ITU-R BT.601, rounded.

    All of these sums have at most 24 bits, so float32 holds them exactly.
    """
    if levels.shape[1] == 1:
        return levels.clone()
    gray = levels[:, 0:1] * (19595.0 / 65536)
    # Exact products: the result does not depend on whether the processor rounds before the sum.
    gray.add_(levels[:, 1:2], alpha=38470.0 / 65536).add_(levels[:, 2:3], alpha=7471.0 / 65536)
    return gray.add_(0.5).floor_()


def blend(levels: Tensor, less: Tensor, factor: Tensor) -> Tensor:
    """Compute ``Image.blend`` in place, with each step rounded by itself. The fraction is kept."""
    return levels.sub_(less).mul_(factor).add_(less).clamp_(0, 255)


def brightness(levels: Tensor, factor: Tensor) -> Tensor:
    """Blend with black, in place."""
    return levels.mul_(factor).clamp_(0, 255)


def contrast(levels: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean of the gray image, in place. Pillow's mean is one of integers, rounded."""
    flat = luma(levels)
    mean = flat.sum([1, 2, 3], keepdim=True, dtype=torch.float64)
    mean = mean.div_(float(flat[0].numel())).add_(0.5).floor_().to(torch.float32)
    return blend(levels, mean, factor)


def saturation(levels: Tensor, factor: Tensor) -> Tensor:
    """Blend with the gray image, in place."""
    return levels if levels.shape[1] == 1 else blend(levels, luma(levels), factor)


def sharpness(levels: Tensor, factor: Tensor) -> Tensor:
    """Blend with the smoothed image, in place. The outermost pixels do not change."""
    if min(levels.shape[2], levels.shape[3]) > 2:
        inner = levels[:, :, 1:-1, 1:-1]
        # Thirteenths are never halves, so rounding is unambiguous.
        smooth = sum_of_nine(levels).add_(inner, alpha=4).add_(6.5).div_(13).floor_()
        blend(inner, smooth, factor)
    return levels


def sum_of_nine(x: Tensor) -> Tensor:
    """Sum each pixel and its eight neighbors, [..., H - 2, W - 2]."""
    rows = (x[..., :-2, :] + x[..., 1:-1, :]).add_(x[..., 2:, :])
    return (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:])


# ---- hue


def hue(x: Tensor, turn: Tensor, tables: list[Tensor]) -> Tensor:
    """Rotate the hue of bytes by ``turn``, u8, which is added to the hue byte; see :mod:`.hue` for the tables."""
    if x.shape[1] == 1:
        return x
    byte, saturation, value = hsv_of(x, tables)
    return rgb_of(byte.add_(turn), saturation, value, tables)


def hsv_of(x: Tensor, tables: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Convert u8[n, 3, H, W] to bytes of hue, saturation and value, u8[n, H, W] each."""
    red, green, blue = x[:, 0], x[:, 1], x[:, 2]
    higher, lower = torch.maximum(red, green), torch.minimum(red, green)
    value, lowest = torch.maximum(higher, blue), torch.minimum(lower, blue)
    middle = torch.maximum(lower, torch.minimum(higher, blue))
    # The sign of a difference, shifted over all bits, is -1 where the first channel is smaller: much faster than a
    # comparison of bytes.
    r, g, b = red.to(torch.int32), green.to(torch.int32), blue.to(torch.int32)
    order = (r - b).bitwise_right_shift_(31).mul_(2).add_((g - b).bitwise_right_shift_(31)).mul_(2)
    order = order.add_((r - g).bitwise_right_shift_(31)).add_(7)
    spread = (value - lowest).to(torch.int32)
    index = order.mul_(256).add_(spread).mul_(256).add_(value - middle)
    found = tables[0].index_select(0, index.flatten())
    saturation = tables[1].index_select(0, spread.mul_(256).add_(value).flatten())
    return found.view_as(value), saturation.view_as(value), value


def rgb_of(hue: Tensor, saturation: Tensor, value: Tensor, tables: list[Tensor]) -> Tensor:
    """Convert bytes of hue, saturation and value, u8[n, H, W] each, to u8[n, 3, H, W]."""
    index = hue.to(torch.int32).mul_(256).add_(saturation).flatten()
    bright = value.to(torch.float32)
    planes = [bytes_of(tables[c].index_select(0, index).view_as(value).mul_(bright).add_(0.5)) for c in range(2, 5)]
    return torch.stack(planes, dim=1)


# ---- thresholds


def solarize(levels: Tensor, threshold: Tensor) -> Tensor:
    """Invert levels that are at least ``threshold``."""
    return torch.where(levels >= threshold, 255.0 - levels, levels)


# ---- blur


def gaussian(size: int, sigma: float) -> Tensor:
    """Return the middle of a Gaussian kernel, f64, without weights that are below the precision of float32."""
    at = torch.arange(size, dtype=torch.float64, device="cpu") - (size - 1) / 2
    weights = torch.exp((at / sigma).pow(2).mul(-0.5))
    weights /= weights.sum()
    return weights[weights > 1e-8]


def blur(x: Tensor, width: int, height: int, sigma: float) -> Tensor:
    """Blur [C, H, W], bytes in float32 or float64, along one axis after the other, on a CPU.

    The borders are mirrored, so the image must be larger than half of the kernel, ``width`` x ``height`` pixels.
    """
    # Rows of channels, [H, C, W]: both axes are then products of two matrices.
    rows = x.transpose(0, 1).contiguous()
    return _filtered(_filtered(rows, 2, width, sigma), 0, height, sigma).transpose(0, 1)


def _filtered(x: Tensor, axis: int, size: int, sigma: float) -> Tensor:
    """Filter [H, C, W] along its first or last axis."""
    kernel = gaussian(size, sigma)
    reach = kernel.shape[0] // 2
    if reach <= 1:  # a pass over the image for each weight is faster than matrices
        x = x.movedim(axis, 0)
        made = x * kernel[reach]
        if reach == 1:
            sides = x * kernel[0]
            made[1:].add_(sides[:-1])
            made[:-1].add_(sides[1:])
            made[0].add_(sides[1])
            made[-1].add_(sides[-2])
        return made.movedim(0, axis)
    made = torch.empty_like(x)
    if axis == 2:
        values, results = x.flatten(0, 1).t(), made.flatten(0, 1).t()
    else:
        values, results = x.flatten(1), made.flatten(1)
    length = x.shape[axis]
    # Results that one product computes. Large blocks multiply more zeros, small ones need more calls.
    blocks = (length + 55) // 56
    for k in range(blocks):
        start, stop = length * k // blocks, length * (k + 1) // blocks
        first, last = max(start - reach, 0), min(stop + reach, length)
        weights = _band(kernel, stop - start, first - (start - reach), stop + reach - last).to(x.dtype)
        torch.mm(weights, values[first:last], out=results[start:stop])
    return made


def _band(kernel: Tensor, count: int, before: int, after: int) -> Tensor:
    """Return the matrix f64[count, values] that computes ``count`` results from the values around them.

    It has the kernel in each row, one column further right than in the row before. Instead of ``before`` columns at
    the left and ``after`` at the right, which are outside of the image, it has their weights where they are mirrored.
    """
    size = kernel.shape[0]
    columns = count + size - 1
    band = torch.zeros(count, columns, dtype=kernel.dtype, device="cpu")
    band.as_strided([count, size], [columns + 1, 1]).copy_(kernel)
    inside = band[:, before : columns - after]
    if before > 0:
        inside[:, 1 : before + 1].add_(band[:, :before].flip(1))
    if after > 0:
        inside[:, -after - 1 : -1].add_(band[:, columns - after :].flip(1))
    return inside
