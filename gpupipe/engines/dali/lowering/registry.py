"""Registry of the lowerings: how the graph does each op that DALI supports.

A lowering only defines the operators that do the work of its op. Images that did not draw the op pass it by. That is
common to all ops, so it is done here::

    @lowering(ops.Invert, only="uint8")
    def invert(drawn, op): return drawn.image ^ np.uint8(255)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from ....transforms.ops import Op
from .canvas import Canvas, OpAddress, Selected

_Drawn = TypeVar("_Drawn", bound=Callable[[Selected, Any], Any])
_OnCanvas = TypeVar("_OnCanvas", bound=Callable[[Canvas, OpAddress, Any], None])


class Cost(NamedTuple):
    """Milliseconds of one core for an image of 224 x 224 pixels, which :mod:`..graph_end` uses to decide."""

    dali: float
    """Cost in DALI's graph on the CPU."""
    pil: float
    """Cost of the form for one image (:mod:`gpupipe.kernels`), if torchvision would have a PIL image."""
    tensor: float
    """Cost of the form for one image, if torchvision would have a tensor."""


COSTS: dict[str, list[float]] = json.loads(Path(__file__).with_name("costs.json").read_text())
"""Fields of :class:`Cost` by the name of the op, as ``benchmarks/op_costs.py --write`` measures them."""


@dataclass(frozen=True)
class Lowering:
    """The graph's implementation of an op."""

    paint: Callable[[Canvas, OpAddress, Any], None]
    only: Literal["uint8"] | None
    """Type of the values that it works on; any if ``None``."""
    unless: Callable[[Any], bool]
    """Called with the op. Returns whether DALI does not support its settings."""
    cost: Cost
    far: bool
    """Whether DALI differs so much from the reference that a CPU's graph ends before the op, whatever it costs."""


def _cost(kind: type[Op]) -> Cost:
    if kind.__name__ not in COSTS:
        raise LookupError(
            f"costs.json has no costs of {kind.__name__}; write a guess, then measure: benchmarks/op_costs.py --write"
        )
    return Cost(*COSTS[kind.__name__])


LOWERINGS: dict[type[Op], Lowering] = {}
"""Lowerings by type of op. Ops without one, and all ops after them, run without DALI; see :mod:`..graph_end`."""


def lowering(
    kind: type[Op],
    *,
    far: bool = False,
    only: Literal["uint8"] | None = None,
    unless: Callable[[Any], bool] = lambda op: False,
    upright: bool = False,
) -> Callable[[_Drawn], _Drawn]:
    """Register what the graph does to the images that drew an op.

    ``function(drawn, op)`` takes ``drawn.image`` and numbers, and returns the changed image, or ``None`` if it changes
    nothing.

    Args:
        far: whether DALI differs so much from the reference that a CPU's graph ends before the op, whatever it costs.
        only: type of the values that it works on; after ``ToTensor`` torch does the rest.
        unless: whether DALI does not support the settings of the op; torch then runs it.
        upright: whether the op depends on the positions of pixels, so that flips cannot be deferred. Ops that move
            pixels always do.
    """

    def register(function: _Drawn) -> _Drawn:
        def paint(canvas: Canvas, address: OpAddress, op: Any) -> None:
            drawn = Selected(canvas, address, op, upright=upright or op.geometric)
            made = function(drawn, op)
            if made is not None:
                drawn.done(made)

        LOWERINGS[kind] = Lowering(paint, only, unless, _cost(kind), far)
        return function

    return register


def canvas_lowering(
    kind: type[Op],
    *,
    far: bool = False,
    only: Literal["uint8"] | None = None,
    unless: Callable[[Any], bool] = lambda op: False,
) -> Callable[[_OnCanvas], _OnCanvas]:
    """Register what the graph does with an op that has no mask, or handles it itself.

    ``function(canvas, address, op)`` changes the canvas.
    """

    def register(function: _OnCanvas) -> _OnCanvas:
        LOWERINGS[kind] = Lowering(function, only, unless, _cost(kind), far)
        return function

    return register


def lacks(op: Op, floats: bool) -> bool:
    """Return whether DALI has no form of an op, or of one within it. ``floats``: whether the image is no longer
    uint8."""
    found = LOWERINGS.get(type(op))
    if found is None or (floats and found.only == "uint8") or found.unless(op):
        return True
    return any(lacks(inner, floats) for branch in op.branches for inner in branch)


def paint(canvas: Canvas, ops: Sequence[Op], address: OpAddress = ()) -> None:
    """Put ops on the canvas; ``address`` is that of the sequence that they belong to."""
    for i, op in enumerate(ops):
        LOWERINGS[type(op)].paint(canvas, (*address, i), op)
