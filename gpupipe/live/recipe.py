"""A batch that waits, as it travels from the process that runs the script's code to the one that has the engine.

It has the encoded images, and jobs: images that come out with one shape and type, with the numbers of their ops.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, JpegImagePlugin
from torch import Tensor

from ..kernels.apply import apply_sample, apply_tail, head_and_tail
from ..kernels.picture import CONVERT
from ..reading.kept import OpenFile
from ..stages import DECODING
from ..transforms.ops import Normalize, Op
from . import looks
from .rows import arranged
from .slots import common_ops, signature
from .steps import AnyTensor, CallStep, Encoded, Move, PixelStep, Row
from .switch import switched
from .tensors import Member, WaitingTensor, make
from .trays import Data

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]


Result = Row | CallStep
"""What a tensor of a batch becomes. Rows stand in the place of steps of pixels."""


@dataclass(frozen=True, eq=False)
class Job:
    """Images that an engine makes together."""

    sources: npt.NDArray[np.int64]
    """i64[B]: the encoded image of each."""
    ops: tuple[Op, ...]
    shape: tuple[int, ...]
    """[C, H, W]"""
    dtype: torch.dtype


@dataclass(eq=False)
class Recipe:
    """A batch that waits."""

    encoded: list[Data] = field(default_factory=list)
    sizes: I32 = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    """i32[N, 2]: their height and width."""
    files: list[OpenFile | None] = field(default_factory=list)
    """Where they come from."""
    jobs: list[Job] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    """One for each tensor that waits."""

    def only(self, numbers: Sequence[int]) -> tuple[Recipe, npt.NDArray[np.int64]]:
        """Return a recipe for some of the jobs, and i64[M], the encoded images that it has."""
        jobs = [self.jobs[number] for number in numbers]
        sources = np.unique(np.concatenate([np.zeros(0, np.int64), *(job.sources for job in jobs)]))
        encoded, files = ([some[source] for source in sources.tolist()] for some in (self.encoded, self.files))
        jobs = [replace(job, sources=np.searchsorted(sources, job.sources)) for job in jobs]
        return Recipe(encoded, self.sizes[sources], files, jobs), sources

    @DECODING
    def picture(self, number: int, factor: int = 1) -> Image.Image:
        """Return an encoded image in RGB as Pillow decodes it, reduced by ``factor``. Raises what Pillow raises."""
        with switched(False), JpegImagePlugin.JpegImageFile(io.BytesIO(bytes(self.encoded[number]))) as image:
            if factor > 1:
                # Both sides stay at least this large, so round down.
                image.draft(None, (max(image.width // factor, 1), max(image.height // factor, 1)))
            return CONVERT(image, "RGB")

    def result(self, number: int) -> Tensor:
        """Return one tensor of the batch, as the reference makes it."""
        made = [self.by_reference(job) for job in range(len(self.jobs))]
        return results_of(self, made)[number]

    def by_reference(self, number: int) -> Tensor:
        """Return the images of a job, [B, C, H, W], made by Pillow and by the forms of the reference."""
        job = self.jobs[number]
        head, tail = head_and_tail(job.ops)
        images = []
        for row, source in enumerate(job.sources.tolist()):
            images.append(apply_sample(self.picture(source), head, row))
        return apply_tail(torch.from_numpy(np.stack(images)), tail)  # type: ignore[no-any-return]


def recipe_of(tensors: Iterable[WaitingTensor]) -> Recipe | None:
    """Return the recipe of tensors that wait, and number them. Those that no engine can make become true ones.

    Returns ``None`` if there is nothing for an engine to do.
    """
    found: list[tuple[WaitingTensor, AnyTensor | Result]] = []
    pixels: dict[PixelStep, Row | None] = {}
    waiting = [tensor for tensor in tensors if "value" not in vars(tensor)]
    together = _together(waiting)
    for tensor in waiting:
        if not isinstance(tensor, WaitingTensor):
            continue  # made with another one
        steps = _pixels_of(tensor.step)
        if id(tensor) in together:
            make(tensor, "a batch with several views of one tensor")
        elif not any(step.can_be_made for step in steps):
            make(tensor)
        else:
            found.append((tensor, tensor.step))
            pixels.update(dict.fromkeys(steps))
    if not found:
        return None
    recipe, known, taken = Recipe(), dict[int, Any](), set[int]()
    _divide(recipe, pixels)
    for number, (tensor, step) in enumerate(found):
        tensor.number = number
        if id(step) in taken:  # equal values in memory of its own
            step = CallStep(torch.clone, (step,), {}, tuple(tensor.shape), tensor.dtype)
        taken.add(id(step))
        recipe.results.append(_result(step, pixels, known))
    return recipe


def _together(tensors: Sequence[WaitingTensor]) -> set[int]:
    """Return the tensors, by id, that share memory with others of the batch, and would not if engines made them."""
    families = {id(tensor.family): tensor.family for tensor in tensors if tensor.family is not None}
    found: set[int] = set()
    for family in families.values():
        members = {id(member.tensor): member for member in family}
        some = [members[id(tensor)] for tensor in tensors if tensor.family is family]
        if len(some) > 1 and not all(_is_view(member, members) for member in some):
            found |= {id(member.tensor) for member in some}
    return found


def _is_view(member: Member, members: dict[int, Member]) -> bool:
    """Return whether a tensor is called later with the tensors that it shares memory with, which are made once."""
    if not isinstance(member.tensor.step, CallStep):
        return False
    while member.of is not None:
        step = member.tensor.step
        if not isinstance(step, CallStep) or not step.args or step.args[0] is not member.of.step:
            return False
        member = members[id(member.of)]
    return True


def _pixels_of(step: AnyTensor) -> list[PixelStep]:
    if isinstance(step, PixelStep):
        return [step]
    return [pixel for part in step.parts() for pixel in _pixels_of(part)]


def _divide(recipe: Recipe, pixels: dict[PixelStep, Row | None]) -> None:
    """Divide images into jobs, and note the place of each."""
    sources: dict[Encoded, int] = {}
    groups: dict[Any, list[tuple[PixelStep, tuple[Move, ...]]]] = {}
    for step in pixels:
        if step.can_be_made:
            moves = _merged(arranged(step.moves or ()))
            groups.setdefault((signature(moves), step.shape, step.dtype), []).append((step, moves))
            sources.setdefault(step.source, len(sources))
    recipe.encoded, recipe.files = [source.data for source in sources], [source.file for source in sources]
    recipe.sizes = np.array([source.size for source in sources], np.int32)
    for source in sources:
        source.sent = True
    for (_, shape, dtype), members in groups.items():
        at = np.array([sources[step.source] for step, _ in members], np.int64)
        ops = common_ops([moves for _, moves in members], recipe.sizes[at])
        for row, (step, _) in enumerate(members):
            pixels[step] = Row(len(recipe.jobs), row)
        recipe.jobs.append(Job(at, ops, shape, dtype))


def _merged(moves: Sequence[Move]) -> tuple[Move, ...]:
    """Join a subtraction and a division, which scripts may write one after another, to one op."""
    made: list[Move] = []
    for move in moves:
        before = made[-1] if made else None
        if before is not None and before.op is move.op is Normalize:
            (_, mean), (_, std) = before.settings
            (_, mean2), (_, std2) = move.settings
            if {*std} == {1.0} and {*mean2} == {0.0}:
                made[-1] = move._replace(settings=(("mean", mean), ("std", std2)))
                continue
        made.append(move)
    return tuple(made)


def _result(step: Any, pixels: dict[PixelStep, Row | None], known: dict[int, Any]) -> Any:
    """Return a step with rows in the place of images that engines make, and true tensors in that of others.

    ``known``: what it has returned for other steps, by their id.
    """
    if id(step) not in known:
        if isinstance(step, CallStep):
            args, kwargs = step.replaced(lambda part: _result(part, pixels, known))
            known[id(step)] = CallStep(step.function, args, kwargs, step.shape, step.dtype)
        elif (row := pixels[step]) is not None:
            return row
        else:
            looks.looked(step.source)
            known[id(step)] = step.tensor()
    return known[id(step)]


# ---- after the engine


def results_of(recipe: Recipe, made: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors of a batch, given those of its jobs, [B, C, H, W] each, which they may share or change."""
    uses, calls = Counter[int](), Counter[int]()
    for result in recipe.results:
        _count(result, uses, calls)
    alone = {job for job, count in uses.items() if count == len(recipe.jobs[job].sources)}
    once = {call for call, count in calls.items() if count == 1}
    known = dict[int, Tensor]()
    return [_value(result, recipe, made, alone, once, known) for result in recipe.results]


def _count(part: Any, uses: Counter[int], calls: Counter[int]) -> None:
    """Count the images of each job that a result is made of, and how often each call is used, by its id."""
    if isinstance(part, Row):
        uses[part.job] += 1
        return
    calls[id(part)] += 1
    if calls[id(part)] == 1:
        for inner in part.parts():
            _count(inner, uses, calls)


def _value(
    result: Any,
    recipe: Recipe,
    made: Sequence[Tensor],
    alone: AbstractSet[int],
    once: AbstractSet[int],
    known: dict[int, Tensor],
) -> Tensor:
    """Return what a tensor becomes.

    Args:
        alone: jobs of which every image is used once.
        once: calls that are used once, by their id.
        known: values of other calls, by their id. Views of one tensor share its memory.
    """
    if isinstance(result, Row):
        batch = made[result.job]
        # An image of its own keeps no others alive.
        return batch[result.row] if len(batch) == 1 and result.job in alone else batch[result.row].clone()
    if id(result) in known:
        return known[id(result)]

    def inner(part: Any) -> Tensor:
        return made[part.job][part.row] if isinstance(part, Row) else _value(part, recipe, made, alone, once, known)

    job = _whole_job(result, recipe)
    if job is None or job not in alone or not all(isinstance(part, Row) or id(part) in once for part in result.args[0]):
        known[id(result)] = result.call(inner)
        return known[id(result)]
    for row, part in enumerate(result.args[0]):
        if isinstance(part, CallStep):  # of this image
            value = part.call(inner)
            is_view = value.untyped_storage().data_ptr() == made[job].untyped_storage().data_ptr()
            made[job][row] = value.clone() if is_view else value
    known[id(result)] = made[job]
    return made[job]


def _whole_job(result: CallStep, recipe: Recipe) -> int | None:
    """Return the job whose batch is the result of ``torch.stack``, apart from changes of single images."""
    if result.function is not torch.stack or len(result.args) != 1 or result.kwargs.get("dim", 0) != 0:
        return None
    parts: Any = result.args[0]
    rows = [_row_of(part) for part in parts]
    job = rows[0].job if rows[0] is not None else -1
    if rows != [Row(job, k) for k in range(len(rows))] or len(rows) != len(recipe.jobs[job].sources):
        return None
    one = recipe.jobs[job]
    fits = all(isinstance(part, Row) or (part.shape, part.dtype) == (one.shape, one.dtype) for part in parts)
    return job if fits else None


def _row_of(part: Any) -> Row | None:
    """Return the only image that a part of a batch is made of."""
    while isinstance(part, CallStep):  # a change of one image
        inner = part.parts()
        if len(inner) != 1:
            return None
        (part,) = inner
    return part if isinstance(part, Row) else None
