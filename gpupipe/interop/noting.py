"""Recording calls of transforms and of image functions, and returning pending results instead of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

from ..codecs.unread import close_with, is_unread, may_differ, unchanged
from ..datasets.sample_form import kept
from ..errors import TranslationError
from ..reasons import Reason
from ..transforms import Transform
from ..transforms.ops import Op
from .pending import PendingImage, PendingTensor, pending_tensor
from .steps import TO_TENSOR, Copied, OneOf, SampleCall, Source, Step, current_call, open_step, written_step


def noted(place: int, given: Any) -> Any:
    """Return the result of the transform at ``place`` for an image or a pending result; ``NotImplemented`` if the
    transform has to be called."""
    run = current_call()
    if run is None:
        return NotImplemented
    if isinstance(given, (PendingImage, PendingTensor)):
        pending = given.pending
        # A copy that is still pending equals its original, and an engine can continue with the original.
        while isinstance(pending, Copied) and not pending.is_computed:
            pending = pending.of
        step = open_step(run, pending)
        return NotImplemented if step is None else shown(run, step.source, step, place)
    return shown(run, _source(run, given), None, place)


def noted_as(kind: int, place: int, image: Any) -> Any:
    """Return the result of the transform at ``place`` for an array uint8[H, W, C], which albumentations gets in a
    dictionary, or for a tensor uint8[C, H, W]; see :func:`noted`.

    Args:
        kind: :data:`TO_ARRAY`, :data:`TO_TENSOR` or :data:`TO_IMAGE`.
    """
    run = current_call()
    if run is None:
        return NotImplemented
    made = _opened(run, image, kind)
    return NotImplemented if made is None else shown(run, made.source, made, place)


def _opened(run: SampleCall, image: Any, kind: int) -> Step | None:
    """Return the step that makes an array or a tensor of an image; ``None`` if the image was changed since."""
    read = getattr(image, "made", None)
    if read is not None:  # an unread array
        # read() compares these with all arrays that the code has made.
        run.arrays.append(image)
        # Continue with the image that the array was made of, unless the array is in the order blue, green, red.
        if isinstance(read.image, PendingImage):
            found = None if image.swapped else _unfinished(run, read.image)
            return None if found is None or found[0] is None else Step(run, found[0], found[1], kind)
    return Step(run, _source(run, image), None, kind)


def unread_tensor(array: Any) -> Any:
    """Return a pending tensor uint8[C, H, W] of an array uint8[H, W, C] that is not read; ``NotImplemented`` if nothing
    is noted."""
    run = current_call()
    made = None if run is None else _opened(run, array, TO_TENSOR)
    return NotImplemented if made is None else pending_tensor(made)


def written(
    image: Any, op: Callable[[int, int], Op | None], act: Callable[[Any], Any], *, keeps_info: bool = False
) -> Any:
    """Return the result of an operation that the script's own code calls.

    Returns ``NotImplemented`` if the operation has to be done now.

    Args:
        image: a pending result, or a PIL image in mode RGB or L that is not read yet.
        op: returns the op with one row for an image of (height, width).
        act: does the operation.
        keeps_info: whether the result has the ``info`` of the image.
    """
    run = current_call()
    if run is None or (found := _unfinished(run, image)) is None:
        return NotImplemented
    source, before = found
    height, width = (image.height, image.width) if before is None else before.output()[0][-2:]
    # The source is asked for late, so an operation that stands for no op leaves none behind.
    step = written_step(run, lambda: source or _source(run, image), before, op(height, width), act)
    if step is None:
        return NotImplemented
    if step.kind != "pil":
        return pending_tensor(step)
    result = PendingImage(step)
    result.info = image.info.copy() if keeps_info else {}
    return result


def written_as(image: Any, transform: Transform) -> Any:
    """Return the result of a transform of gpupipe that stands for a function that the script's own code calls, such as
    ``to_tensor()``; see :func:`written`."""
    run = current_call()
    if run is None:
        return NotImplemented
    found = _unfinished(run, image)
    if found is None and _is_real(image):  # such as after an operation that no engine knows
        found = None, None
    place = None if found is None else run.computes.fixed(transform)
    if found is None or place is None:
        return NotImplemented
    source, before = found
    return shown(run, source or _source(run, image), before, place)


def _unfinished(run: SampleCall, image: Any) -> tuple[Source | None, Step | None] | None:
    """Return the source of an image, ``None`` if it is the image itself, and the step that made it; ``None`` if no
    engine can continue with it."""
    if isinstance(image, (PendingImage, PendingTensor)):
        step = open_step(run, image.pending)
        if step is None or (isinstance(image, PendingImage) and not image.is_open):
            return None
        return step.source, step
    if isinstance(image, Image.Image) and image.mode in ("RGB", "L") and is_unread(image):
        return None, None
    return None


def _is_real(image: Any) -> bool:
    """Return whether it is an image in memory that an engine accepts."""
    is_pending = isinstance(image, PendingImage) and image.is_open
    return isinstance(image, Image.Image) and image.mode in ("RGB", "L") and not is_pending


def rest_of(place: int, begun: int) -> int | None:
    """Return the place of what remains of a container after its first ``begun`` transforms; ``None`` outside of
    :func:`running`."""
    run = current_call()
    return None if run is None else run.computes.rest(place, begun)


def called(hint: Reason) -> None:
    """Record that a transform is called because it got something other than an image."""
    run = current_call()
    if run is not None:
        run.hint = run.hint or hint


def cannot_follow(why: TranslationError) -> None:
    """Note why a part of a sample cannot follow its image. The transform is then called."""
    run = current_call()
    if run is not None:
        run.failure = run.failure or why


def _source(run: SampleCall, image: Any) -> Source:
    source = next((known for known in run.sources if known.given is image), None)
    if source is None or may_differ(image, source.image):
        if source is not None:
            source.given = None
        run.sources.append(source := Source(unchanged(image), image))
        close_with(image)
    return source


def shown(run: SampleCall, source: Source, before: Step | None, place: int) -> Any:
    """Return what the script gets as the result of a transform, or as several; ``NotImplemented`` if the transform has
    to be called because gpupipe has no such transform."""
    step = Step(run, source, before, run.computes.place(place))
    # Trials compare these: equal states before two draws mean that the script has set them.
    if run.notice is not None and step.may_draw:
        run.noticed.append(run.notice())
    try:
        tree, kind = run.computes.tree(step.places), step.kind
    except TranslationError as e:
        run.failure = run.failure or e
        return NotImplemented
    if tree is None:
        return PendingImage(step) if kind == "pil" else pending_tensor(step)
    return kept(lambda view: PendingTensor(OneOf(step, view.number)), tree)
