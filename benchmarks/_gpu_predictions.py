"""What was predicted of a GPU before anything of gpupipe had run on one: data, and the only place of these numbers.

The benchmarks put each beside what they measure, and docs/figures.md shows them as predictions until then. Nothing here
is changed after a measurement: if the two differ, the reason is looked for.

Made by reading the sources of DALI 2.4.0, nvImageCodec 0.9 and torch, from published measurements, and where nothing
better was known by guessing; for an H200 with 16 cores, nvJPEG 13.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import _common  # noqa: F401  (makes a source checkout importable)

from gpupipe.parity.tolerances import TABLE
from gpupipe.transforms.ops.promise import EQUAL, GRAPH, Bound, Tolerance

__all__ = ["DECODED", "NUMBERS", "PIXELS", "Number", "compare", "verdict"]


# ---- pixels: DALI on the GPU against the reference, in gray levels, on equal pixels


def _cpu(row: str, more: float = 0.0) -> Tolerance:
    """The CPU's promise, with the largest difference increased by ``more``."""
    cpu = TABLE[row].of(*GRAPH)
    assert cpu is not None

    def larger(bound: Bound) -> Bound:
        return replace(bound, max=min(bound.max + more, 255.0))

    return Tolerance(larger(cpu.interior), None if cpu.border is None else larger(cpu.border))


def _at_most(most: float, mean: float, over_1: float = 0.0) -> Tolerance:
    return Tolerance(Bound(most, mean, over_1))


_TWICE = 2  # perspectives are CV-CUDA's, which computes places in another order
_EQUAL = (
    *("crop", "flip", "invert", "posterize", "solarize", "solarizeadd", "hue", "boxblur", "channelpermutation"),
    "elastic, noise, erase",
)
_AS_ON_THE_CPU = (
    *("saturation pil", "saturation tensor", "blur float"),
    *("warp bilinear tensor float", "perspective bilinear tensor float"),
)

PIXELS: dict[str, Tolerance] = {
    **dict.fromkeys(_EQUAL, Tolerance(EQUAL)),
    "gray pil": _at_most(1, 0.01),
    "gray tensor": _at_most(1, 0.6),
    "brightness": _at_most(1, 0.01),
    "contrast pil": _at_most(1, 0.02),
    "contrast tensor": _at_most(1, 0.3),
    "sharpness": _at_most(1, 0.001),
    "blur uint8": _at_most(1, 0.001),
    "autocontrast": _at_most(1, 0.1),
    "equalize": _at_most(1, 0.5),
    "mix": _at_most(1, 0.5),
    "warp nearest": _at_most(255, 0.04, 0.001),
    "warp bilinear pil uint8": _at_most(255, 0.02, 0.0005),
    "warp bilinear tensor uint8": _at_most(1, 0.01),
    "perspective nearest": _at_most(255, _TWICE * 0.04, _TWICE * 0.001),
    "perspective bilinear pil uint8": _at_most(255, _TWICE * 0.02, _TWICE * 0.0005),
    "perspective bilinear tensor uint8": _at_most(1, _TWICE * 0.01),
    "jpeg": _at_most(60, 1.5, 0.6),
    "arithmetic float32": _at_most(2.6e-4, 2.6e-4),
    "arithmetic float16": _at_most(0.4, 0.1),
    "arithmetic bfloat16": _at_most(3, 0.8, 0.2),
    **{row: _cpu(row) for row in _AS_ON_THE_CPU},
    **{row: _cpu(row, 1) for row in TABLE if row.startswith("resize")},
}
"""Predictions by row of :data:`gpupipe.parity.tolerances.TABLE`, without decoding. Means and shares are of
photographs."""

DECODED: dict[str, Tolerance] = {
    "fancy": _at_most(4, 0.4, 0.1),
    "plain": _at_most(60, 2, 0.5),
}
"""Decoding whole images or windows by nvJPEG, by upsampling of chroma: the plain one differs at edges of color."""


def verdict(predicted: Tolerance, found: dict[str, float]) -> str:
    """``"as predicted"``, ``"equal"`` if a difference was predicted and there is none, or what is more than predicted.

    Args:
        found: a row of :func:`parity_measure.rows`, or ``Difference.to_dict()``.
    """
    parts = [("", predicted.interior)]
    if "border_max" in found:
        parts.append(("border_", predicted.border or predicted.interior))
    more = [
        f"{prefix}{what} {found[prefix + what]:.3g} instead of at most {limit:.3g}"
        for prefix, bound in parts
        for what, limit in (("max", bound.max), ("mean", bound.mean), ("over_1", bound.over_1))
        if found[prefix + what] > limit + 1e-6
    ]
    if more:
        return "; ".join(more)
    equal = not any(found[prefix + "max"] for prefix, _ in parts)
    return "equal" if equal and predicted.interior.max > 0 else "as predicted"


# ---- speed and cost


@dataclass(frozen=True)
class Number:
    """A number that was predicted to lie between two others; ``None`` means no limit."""

    what: str
    low: float | None
    high: float | None
    unit: str = ""
    why: str = ""

    def __str__(self) -> str:
        def shown(x: float) -> str:
            return f"{x:,.0f}" if x >= 100 else f"{x:g}"

        if self.low is None or self.high is None:
            limit = f"at least {shown(self.low)}" if self.low is not None else f"at most {shown(self.high or 0.0)}"
        else:
            limit = f"{shown(self.low)} to {shown(self.high)}"
        return f"{limit} {self.unit}".strip()


NUMBERS: dict[str, Number] = {
    "loader: to by hand": Number(
        "gpupipe's DALI engine to the graph written by hand with the same settings", 0.98, None, "",
        "gpupipe adds 2.8 ms of CPU time to a batch of 256: at most 91,000 images/s",
    ),
    "loader: to torchvision": Number("gpupipe to torch's DataLoader with torchvision, the same cores", 5, None),
    "loader: plain, 4:2:0": Number(
        "plain upsampling, float16 output, 4:2:0 photographs", 10_000, 17_000, "images/s",
        "the decoding engines 6,000 to 8,000 and 16 threads with 400 each",
    ),
    "loader: plain, 4:4:4": Number(
        "plain upsampling, float16 output, 4:4:4 photographs", 8_000, 17_000, "images/s",
        "twice the samples of chroma",
    ),
    "loader: fancy, 4:2:0": Number(
        "fancy upsampling, float16 output, 4:2:0 photographs", 5_000, 12_000, "images/s",
        "windows by nvJPEG from 13.2 on; by libjpeg-turbo 5,000 to 7,000",
    ),
    "loader: fancy, 4:4:4": Number(
        "fancy upsampling, float16 output, 4:4:4 photographs", 8_000, 17_000, "images/s",
        "nothing is upsampled, so the same as plain",
    ),
    "loader: best hw_decoder_load": Number("the best share for the decoding engines", 0.4, 0.5),
    "loader: torchvision on CUDA": Number(
        "torchvision's decode_jpeg on the GPU, its transforms there image by image", 1_000, 6_000, "images/s",
        "decoding alone 7,800 on an A100",
    ),
    "loader: DALI's torchvision API": Number(
        "DALI's torchvision API on the GPU, image by image", 300, 2_000, "images/s", "a pipeline run for each image"
    ),
    "training: stall": Number(
        "share of a ResNet-50 step that is above replayed batches, gpupipe's DALI engine", None, 0.02
    ),
    "training: stall of torchvision": Number("the same, torch's DataLoader with torchvision on 16 cores", 0, 0.3),
    "copy: bus": Number("one large copy from pinned memory", 45, 57, "GB/s", "PCIe 5 x16"),
    "copy: pageable": Number("a pageable batch, share of the bus", 0.05, 0.5),
    "copy: ring": Number(
        "a batch through the pinned ring, share of the bus", 0.1, 0.5, "", "one core copies within the host"
    ),
    "copy: pinning saves": Number(
        "share of a ResNet-50 step that pinning saves, float32 batches", 0.0, 0.15, "", "tutorials say 0.3 to 0.5"
    ),
    "video: nvdec to pyav": Number("clips per second, NVDEC to PyAV on 16 cores", 0.5, 3),
    "video: to torchcodec": Number("gpupipe's faster way to torchcodec's CUDA decoder", 0.8, None),
}  # fmt: skip


def compare(measured: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Each number beside its prediction; prints them.

    Args:
        measured: by key of :data:`NUMBERS`; raises KeyError for one that was not predicted.
    """
    out: dict[str, dict[str, Any]] = {}
    for key, value in measured.items():
        number = NUMBERS[key]
        as_predicted = (number.low is None or value >= number.low) and (number.high is None or value <= number.high)
        out[key] = {
            "what": number.what, "predicted": str(number), "low": number.low, "high": number.high,
            "measured": value, "as_predicted": as_predicted,
        }  # fmt: skip
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        print(f"{'as predicted' if as_predicted else 'NOT AS PREDICTED'}: {number.what}: {shown}, predicted {number}")
    return out
