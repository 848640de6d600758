"""Decides where DALI's graph ends and what continues after it.

On a GPU the graph does everything that DALI supports, and torch does the rest on the batch, on the device. On a CPU,
threads of the host continue image by image (:mod:`gpupipe.engines.host.image_threads`) as soon as that is cheaper,
which is usually right after the decoder. The costs of every op are in ``lowering/costs.json``, in milliseconds of one
core per image of 224 x 224 pixels. The graph ends before the op that minimizes the total cost.
``benchmarks/op_costs.py`` measures them, and its table is in docs/promises.md.

User code ends the graph on every device: DALI then decodes on the CPU, no more than the window of a first crop, and the
host does everything else with the forms of the reference. Ops that are cheaper on a batch run on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ...errors import PipelineError
from ...kernels import has_batch_form
from ...kernels.check import check_ops
from ...reading.windows import window_of
from ...transforms.ops import Op, ToDtype, Views
from ...transforms.ops.structure import calls_in
from ..base import names_of
from .lowering import LOWERINGS, lacks

Size: TypeAlias = tuple[int, int] | None

_CALL = 0.015
"""Milliseconds of Python for an op on an image. Only one thread at a time can run Python."""
_FED = 0.002
"""Milliseconds of Python for an op of the graph, to feed its numbers."""
_CLOSER = 1.1
"""Factor by which the host may be more expensive, since it is closer to the reference."""
_MEASURED_ON = 224 * 224
"""Pixels per image in the measurements."""


@dataclass(frozen=True)
class GraphEnd:
    """End of the graph: the number of ops that it does, for several views in each branch."""

    shared: int
    branches: tuple[int, ...] = ()
    then_threads: bool = False
    """Whether threads of the host continue image by image. The graph then runs on the CPU, whatever the device."""
    why: str = ""
    """Why the graph is not whole; empty if ending it is only cheaper."""

    def rest(self, ops: Sequence[Op]) -> tuple[tuple[Op, ...], ...]:
        """Return the remaining ops of a plan for each output of the graph."""
        if not self.branches:
            return (tuple(ops[self.shared :]),)
        return tuple(branch[n:] for branch, n in zip(ops[self.shared].branches, self.branches, strict=True))

    def names(self, ops: Sequence[Op]) -> list[str]:
        """Return the names of the remaining ops, each once."""
        return list(dict.fromkeys(name for rest in self.rest(ops) for name in names_of(rest)))


def graph_end(ops: Sequence[Op], *, whole: bool, common: Callable[[], Size] = lambda: None) -> GraphEnd:
    """Return where the graph must end for the ops of a pipeline.

    Args:
        ops: ops of a pipeline.
        whole: whether DALI must do everything that it supports, as on a GPU.
        common: returns the size (height, width) of the decoded images if all are equal. Only called if needed, since it
            may have to check all of them.

    Raises :class:`PipelineError` that names an op that cannot be done.
    """
    window = int(window_of(ops) is not None)  # readers keep no more of an image than this
    function = next(calls_in(ops), None)
    if function is not None:
        check_ops(ops)
        why = f"{function.name} is a function of single images, which runs on the host"
        return GraphEnd(window, then_threads=True, why=why)
    if not whole:
        return _cheapest(ops, window)
    try:
        return _whole(ops, common)
    except PipelineError as e:
        end = _cheapest(ops, window)
        return end if not end.then_threads else GraphEnd(end.shared, then_threads=True, why=str(e))


# ---- on a CPU


def _cheapest(ops: Sequence[Op], first: int) -> GraphEnd:
    """Return where the graph ends on a CPU, after at least ``first`` ops."""
    reach, _ = _reach(ops, None)
    reach = next((n for n, op in enumerate(ops[:reach]) if _is_far(op)), reach)
    costs = [_Costs.of(op, area) for op, area in zip(ops, _areas(ops), strict=True)]
    # After ToDtype the graph would write floats in its layout, and the host would read them: do all of the ops, or
    # none.
    floats = next((n for n, op in enumerate(ops) if isinstance(op, ToDtype)), len(ops))
    ends = [*range(first, min(reach, floats) + 1), *([len(ops)] if reach == len(ops) else [])] or [first]
    # The graph is a prefix of the ops, so there are only len(ops) + 1 places where it can end.
    totals = {n: sum(c.dali for c in costs[:n]) + sum(c.host for c in costs[n:]) for n in ends}
    # The first end that costs at most 10 % more than the cheapest one, because the host is closer to the reference.
    end = next(n for n in ends if totals[n] <= min(totals.values()) * _CLOSER)
    if end == len(ops):
        return GraphEnd(end)
    check_ops(ops[end:])
    return GraphEnd(end, then_threads=True)


def _is_far(op: Op) -> bool:
    lowering = LOWERINGS.get(type(op))
    return (lowering is not None and lowering.far) or any(_is_far(one) for b in op.branches for one in b)


@dataclass(frozen=True)
class _Costs:
    dali: float
    host: float

    @classmethod
    def of(cls, op: Any, area: float) -> _Costs:
        """Milliseconds for an image with ``area`` times the pixels of the measurements."""
        lowering = LOWERINGS.get(type(op))
        mask = getattr(op, "mask", None)
        # An op with a mask costs nothing for images that did not draw it.
        drawn = 1.0 if mask is None or getattr(op, "always", False) else float(np.mean(mask))
        inner = [cls.of(one, area) for branch in op.branches for one in branch]
        dali, host = sum(c.dali for c in inner) + _FED, sum(c.host for c in inner) + drawn * _CALL
        if lowering is not None:
            cost = lowering.cost
            dali += drawn * area * cost.dali
            host += drawn * area * (cost.tensor if getattr(op, "kind", "pil") == "tensor" else cost.pil)
        return cls(dali, host)


def _areas(ops: Sequence[Op]) -> list[float]:
    """Pixels that each op produces, relative to the measurements. Unknown sizes count as one."""
    areas, size = [], None
    for op in ops:
        size = _after(op, size)
        areas.append(1.0 if size is None else size[0] * size[1] / _MEASURED_ON)
    return areas


# ---- on a GPU


def _whole(ops: Sequence[Op], common: Callable[[], Size]) -> GraphEnd:
    # Views has no lowering itself, so DALI's reach ends at it.
    n, size = _reach(ops, None)
    if n == len(ops) - 1 and isinstance(ops[n], Views):
        return GraphEnd(n, tuple(_checked(branch, size, common) for branch in ops[n].branches))
    return GraphEnd(_checked(ops, None, common))


def _checked(ops: Sequence[Op], size: Size, common: Callable[[], Size]) -> int:
    n, size = _reach(ops, size)
    if n == len(ops):
        return n
    named = names_of(ops[n:])[0]
    for op in ops[n:]:
        if not has_batch_form(op):
            raise PipelineError(
                f"{names_of([op])[0]}{'' if op is ops[n] else f' after {named}'} cannot run on a GPU here; move it"
            )
    # Without a crop or resize, images may still have the common size of the decoded ones.
    if size is None and (common() is None or any(hasattr(op, "height") for op in ops[:n])):
        raise PipelineError(
            f"{named} works on the whole batch, but images have different sizes at that point; put a "
            "RandomResizedCrop, "
            "CenterCrop or Resize((h, w)) before it"
        )
    return n


def _reach(ops: Sequence[Op], size: Size) -> tuple[int, Size]:
    """Return (number of ops that DALI can do, the image size after them if it is equal for all)."""
    floats = False
    for n, op in enumerate(ops):
        if lacks(op, floats):
            return n, size
        floats = floats or (isinstance(op, ToDtype) and op.dtype != "uint8")
        size = _after(op, size)
    return len(ops), size


def _after(op: Any, size: Size) -> Size:
    if not hasattr(op, "height"):
        return size
    sizes = set(zip(op.height.tolist(), op.width.tolist(), strict=True))
    return sizes.pop() if len(sizes) == 1 else None
