"""Trial runs of a script's dataset: what its samples look like, and whether an engine may do its transforms.

Trials run on a copy, with stand-ins for the results of its transforms. Some of them run once more as torch would run
them. gpupipe relies only on what both show.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..datasets.sample_form import kept, leaves
from ..errors import GpupipeError
from ..global_rng import lent, seed_all
from ..reasons import Reason, failure
from ..signal_handlers import pass_on
from ..transforms import Compose
from .chains import Chains, decoded, size_of
from .isolation import CannotCopy, Copy, State, Surroundings
from .marks import marked_dataset
from .pending import PendingTensor, settled
from .reach import RESETS, asks_for_types, calls_reached
from .same_names import UnsupportedError
from .shapes import Shape, Structure, common_shape, mode_of, read, rest_of
from .standing import Standing
from .steps import SampleCall

_TRIED = 8
"""Number of samples that are tried."""
_TRUE = 3
"""Number of samples that the script's own transforms also make."""
_BRANCHES = range(100, 116)
"""Seeds of further attempts at samples whose code chooses operations."""
_MORE = range(200, 210)
"""Seeds of further attempts if the first two agree by chance, such as in a number of boxes that is random."""


_WRITES = {"commit", "write", "writelines", "writerow", "writerows"}
"""Names of methods that leave a trace outside of the process, also in a trial."""


@dataclass
class Trial:
    """A sample that was tried.

    Attributes:
        sample: the sample with stand-ins.
        structure: the stand-ins in it.
        run: what happened in the call.
        arrays: whether the dataset's code may get unread arrays of images.
    """

    index: int
    sample: Any
    structure: Structure
    run: SampleCall
    arrays: bool

    def __post_init__(self) -> None:
        self.shape = self.structure.shape


def tried(
    ds: Any, chains: Chains, check: Callable[[Trial], None] | None = None
) -> tuple[Shape, Trial, tuple[int, int] | None]:
    """Return the shape of the dataset's samples, one of them, and (height, width) of their images if it is common to
    all.

    Args:
        check: is called with the first trial, and may raise :class:`UnsupportedError` to save the others.

    Raises:
        UnsupportedError: no engine can make its samples.
        TranslationError: one of its transforms cannot be translated.
    """
    count = len(ds)
    indices = sorted({round(k) for k in np.linspace(0, count - 1, _TRIED)})
    try:
        # One copy runs with stand-ins, the other as torch would run it.
        copies = [Copy(ds, indices), Copy(ds, indices[:: max(1, len(indices) // _TRUE)])]
    except CannotCopy as e:
        raise UnsupportedError(f"it cannot be tried without leaving a trace: {e}", "cannot-copy") from None
    copied, true = copies[0], copies[1].made
    try:
        if any(isinstance(file, io.BufferedReader) for file in copied.opened) and "seek" not in calls_reached(ds):
            raise UnsupportedError(
                "it continues to read an open file regardless of the requested sample", "changes-itself"
            )
        if writes := sorted(calls_reached(ds) & _WRITES):
            raise UnsupportedError(f"reading a sample writes something ({', '.join(writes)})", "changes-itself")
        return _on_copies(ds, copied, true, indices, chains, check)
    finally:
        for one in copies:
            one.close()


def _on_copies(
    ds: Any, copied: Copy, true: Any, indices: list[int], chains: Chains, check: Callable[[Trial], None] | None
) -> tuple[Shape, Trial, tuple[int, int] | None]:
    with Surroundings([ds, *copied.met], indices) as outside:
        other, held, _ = standing(copied.made) if chains.are_marked else (copied.made, [], [])
        if not chains.are_like(held):
            raise UnsupportedError(
                "it cannot be tried without leaving a trace: a copy holds other transforms", "cannot-copy"
            )
        states = State(other, copied.elements), State(copied.made), State(true)

        def release() -> None:
            for state in states:
                state.release()

        def truly(index: int) -> Any:
            release()
            return true[index]

        try:
            # The transforms of the true copy run, and may remember their last results.
            return _judged(ds, other, truly, release, indices, chains, (*states[:2], outside), check)
        finally:
            release()


def _judged(
    ds: Any,
    other: Any,
    truly: Callable[[int], Any],
    release: Callable[[], None],
    indices: list[int],
    chains: Chains,
    states: Sequence[State | Surroundings],
    check: Callable[[Trial], None] | None,
) -> tuple[Shape, Trial, tuple[int, int] | None]:
    trials = [_first(other, indices[0], chains, check)]
    after_one = State(other)  # includes what the first sample created
    # Every sample has seeds of its own, so code that branches by draws shows more of its branches.
    trials += [_trials(other, index, chains, attempts=(2 * n, 2 * n + 1)) for n, index in enumerate(indices[1:], 1)]
    # Unread arrays were used. Without them, the same samples must come out, or arrays are read from now on.
    if any(one.run.arrays for one, _ in trials):
        without = [
            _trials(other, index, chains, arrays=False, attempts=(2 * n, 2 * n + 1)) for n, index in enumerate(indices)
        ]
        if not all(_same(one, other) for (one, _), (other, _) in zip(trials, without, strict=True)):
            trials = without
    if changed := sorted({name for state in (*states, after_one) for name in state.changed()}):
        raise UnsupportedError(f"reading a sample changes its {', '.join(changed)}", "changes-itself")
    del after_one  # it may hold an open file
    found = [one for both in trials for one in both]
    if chains.has_written:  # code that branches calls operations that few samples show
        for n, attempt in enumerate(_BRANCHES):
            index = indices[n % len(indices)]
            found += _trials(other, index, chains, arrays=trials[0][0].arrays, attempts=(attempt,))
    chains.complete()
    shape, example = _common(found, chains)
    pipeline = shape.pipeline(chains).pipeline

    def more(one: Trial) -> list[Trial]:
        release()
        return _trials(other, one.index, chains, arrays=one.arrays, attempts=_MORE)

    draws = any(t.draws for t in pipeline)
    _refuse_resets(ds, chains)
    if draws:
        _refuse_own_seeds(trials)
    if "get_worker_info" in calls_reached(ds):
        raise UnsupportedError(
            "it asks for its worker process, and the worker's dataset is not the object that is read here",
            "asks-worker",
        )
    if asks_for_types(ds):
        raise UnsupportedError(
            "it asks for the type() of something, but gets objects of a subclass while gpupipe learns its form",
            "compares-types",
        )
    if chains.is_callable:
        some = indices[:: max(1, len(indices) // _TRUE)]
        compared: Compared = "pixels" if not draws else "form" if _is_known(pipeline) else "sizes"
        if shape.examples and not draws:
            compared = "all"
        frame = shape.frame(chains)
        # Samples of another form are made by hand, so nothing stands in for their images.
        alike = [both for both in trials if both[0].index in some and both[0].shape.frame(chains) == frame]
        _compare(truly, alike, compared, more)
    sizes = {size_of(source.image) for both in trials for one in both for source in one.run.sources}
    return shape, example, sizes.pop() if len(sizes) == 1 else None


def _first(ds: Any, index: int, chains: Chains, check: Callable[[Trial], None] | None) -> list[Trial]:
    """Read a sample that may already show that no engine can make the samples."""
    trials = _trials(ds, index, chains)
    first = trials[0]
    if chains.is_empty and not first.shape.slots:
        raise UnsupportedError(_NO_IMAGE, "own-pixels")
    if first.run.hint and not first.shape.slots:  # and the transform that was called instead may change itself
        raise UnsupportedError(first.run.hint.text, first.run.hint.code)
    if check is not None:
        check(first)
    return trials


def standing(ds: Any) -> tuple[Any, list[Any], list[tuple[Any, Any]]]:
    """Return a copy of a dataset with :class:`Standing` objects in place of its transforms, these transforms, and
    (copy, original) of each object that was copied."""
    held: list[Any] = []

    def mark(transform: Any) -> Standing:
        held.append(transform)
        return Standing(transform, len(held) - 1)

    made, _, copied = marked_dataset(ds, mark)
    return made, held, copied


def _trials(
    ds: Any, index: int, chains: Chains, *, arrays: bool = True, attempts: Sequence[int] = (0, 1)
) -> list[Trial]:
    """Read a sample several times, with different random numbers. Raises :class:`UnsupportedError`."""
    made = []
    with lent():
        for attempt in attempts:
            run = SampleCall(chains, attempt, 0, index, notice=_states)
            seed_all(attempt)
            try:
                sample, structure = read(ds, index, run, arrays=arrays)
            except Exception as e:
                pass_on(e)
                if run.hint:
                    raise UnsupportedError(run.hint.text, run.hint.code) from None
                raise UnsupportedError(f"sample {index} failed: {failure(e)}", "sample-fails") from None
            if run.failure is not None:
                raise run.failure
            made.append(Trial(index, sample, structure, run, arrays))
    return made


def _states() -> tuple[bytes, ...]:
    """Return the states of the global generators and advance them, as a transform that draws would."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    found = (
        torch.default_generator.get_state().numpy().tobytes(),
        repr(random.getstate()).encode(),
        numpy[1].tobytes() + bytes(repr(numpy[2:]), "ascii"),
    )
    torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002
    return found


def _common(trials: list[Trial], chains: Chains) -> tuple[Shape, Trial]:
    """Return the shape that most samples have. Raises :class:`UnsupportedError` if no engine can make it."""
    looks = Counter(trial.run.looks[0] for trial in trials if trial.run.looks)
    # A sample whose code looks at images is made by hand, so only few may be like that.
    if 2 * looks.total() > len(trials):
        raise UnsupportedError(
            f"it computes with images after a transform that it holds ({looks.most_common(1)[0][0]})", "looks-at-values"
        )
    kinds = [(trial.shape.frame(chains), frozenset(map(mode_of, trial.structure.sources))) for trial in trials]
    unseen = (kind for kind, trial in zip(kinds, trials, strict=True) if not trial.run.looks)
    (kind, count), *_ = Counter(unseen).most_common()
    shape, modes = kind
    if not shape.slots:
        hints = [trial.run.hint for trial in trials if trial.run.hint]
        hint = hints[0] if hints else Reason(_NO_IMAGE, "own-pixels")
        raise UnsupportedError(hint.text, hint.code)
    # Samples of any other form are made by hand, so most must have this one.
    if 2 * count <= len(trials):
        several = sorted({" and ".join(sorted(modes)) for of, modes in kinds if of == shape})
        raise UnsupportedError(
            "its samples do not all have the same form and the same transforms"
            if len(several) < 2
            else f"its images have several modes: {', '.join(several)}",
            "unlike-samples",
        )
    if len(modes) > 1:
        raise UnsupportedError(
            f"the images of one sample have several modes: {', '.join(sorted(modes))}", "unlike-samples"
        )
    alike = [trial for trial, other in zip(trials, kinds, strict=True) if other == kind and not trial.run.looks]
    shape = common_shape([trial.structure for trial in alike], chains)
    shape.check(alike[0].structure.images)
    return shape, alike[0]


_NO_IMAGE = "no image in its samples comes from transforms or functions that an engine could do"
_OWN_SEEDS = "it sets the state of a random generator before its transforms draw"


def _refuse_resets(ds: Any, chains: Chains) -> None:
    """Raise :class:`UnsupportedError` if code that resets a random generator may run before a transform that draws.
    Trials need not have shown this."""
    resets = calls_reached(ds) & RESETS
    if resets and chains.may_draw():
        raise UnsupportedError(f"{_OWN_SEEDS} ({', '.join(sorted(resets))})", "own-seeds")


def _refuse_own_seeds(trials: list[list[Trial]]) -> None:
    """Raise :class:`UnsupportedError` if generators were in the same state before two transforms drew."""
    why = _OWN_SEEDS
    for one, two in trials:
        # _states() moves all generators on, so two equal states of one attempt were set by the script.
        for states in (one.run.noticed, two.run.noticed):
            if any(len({*of}) < len(of) for of in zip(*states, strict=True)):
                raise UnsupportedError(why, "own-seeds")
        # The attempts have different seeds, so a state that both have was set by the script, too.
        if any(a == b for at in zip(one.run.noticed, two.run.noticed, strict=False) for a, b in zip(*at, strict=True)):
            raise UnsupportedError(why, "own-seeds")


# ---- comparison with torch's results

Compared = Literal["form", "sizes", "pixels", "all"]
"""How images are compared. Random ones differ in pixels, and functions of the script may return other sizes. ``"all"``
also compares what is random elsewhere in the sample, because all draws are the script's own."""


def _is_known(pipeline: Compose) -> bool:
    return all(op.sendable for op in pipeline.skeleton)


def _compare(
    truly: Callable[[int], Any],
    trials: list[list[Trial]],
    compared: Compared,
    more: Callable[[Trial], list[Trial]],
) -> None:
    """Raise :class:`UnsupportedError` if the script's own transforms, run on a copy, make different samples.

    Args:
        truly: reads a sample with the script's own transforms.
        more: makes further attempts at a sample.
    """
    for one, two in trials:
        # Such a sample is made by hand.
        if one.run.looks:
            continue
        with lent():
            seed_all(one.run.seed)
            try:
                sample = truly(one.index)
            except Exception as e:
                pass_on(e)
                raise UnsupportedError(f"sample {one.index} failed: {failure(e)}", "sample-fails") from None
        # What differs between two attempts is random and not compared, unless seed_all() repeats all draws.
        wrong = _difference(sample, [one.sample] if compared == "all" else [one.sample, two.sample], compared)
        if wrong is not None and compared in ("form", "sizes"):
            wrong = _difference(sample, [each.sample for each in (one, two, *more(one))], compared)
        if wrong is not None:
            raise UnsupportedError(f"with stand-ins its code makes a different sample {one.index}: {wrong}", "differs")


def _difference(true: Any, made: list[Any], compared: Compared) -> str | None:
    """Describe how a sample differs from those with stand-ins. Differences between those are random."""
    if _containers(true) != _containers(made[0]):
        return "other containers"
    for a, b, *others in zip_longest(leaves(true), *map(leaves, made)):
        if isinstance(b, (PendingTensor, Image.Image)):
            wrong = _difference_of_images(a, b, compared)
            if wrong is not None:
                return wrong
        elif type(a) is not type(b):
            return f"a {type(a).__name__} is a {type(b).__name__}"
        elif all(_equal(b, other) for other in others) and not _equal(a, b):
            return f"{a!r} is {b!r}"
    return None


def _difference_of_images(true: Any, stand_in: Any, compared: Compared) -> str | None:
    if isinstance(stand_in, PendingTensor):
        if not isinstance(true, Tensor):
            return f"a {type(true).__name__} is a Tensor"
        if true.dtype != stand_in.dtype or true.ndim != stand_in.ndim:
            return f"{true.dtype}{list(true.shape)} is {stand_in.dtype}{list(stand_in.shape)}"
    elif not isinstance(true, Image.Image):
        return f"a {type(true).__name__} is a PIL image"
    if compared == "form":
        return None
    try:
        mine = settled(stand_in)
    except GpupipeError as e:
        return str(e)
    # NumPy has no bfloat16.
    a, b = (np.asarray(x.double() if isinstance(x, torch.Tensor) else x, np.float64) for x in (true, mine))
    if a.shape != b.shape:
        return f"an image {list(a.shape)} is {list(b.shape)}"
    return (
        None
        if compared == "sizes" or np.allclose(a, b, atol=1e-5)
        else f"pixels differ by up to {np.abs(a - b).max():.3g}"
    )


def _same(one: Trial, other: Trial) -> bool:
    """Tell whether a sample with unread arrays equals the one whose arrays were read."""
    if one.shape != other.shape:  # such as of code that calculates with arrays, which then makes the sample itself
        if _containers(one.sample) != _containers(other.sample):
            return False
        parts = zip(leaves(settled(one.sample)), leaves(settled(other.sample)), strict=True)
        return all(type(a) is type(b) and _equal(a, b) for a, b in parts)
    images = zip(one.structure.sources, other.structure.sources, strict=True)
    if not all(np.array_equal(decoded(a.image), decoded(b.image)) for a, b in images):
        return False
    pairs = zip(rest_of(one.sample), rest_of(other.sample), strict=True)
    return all(type(a) is type(b) and _equal(a, b) for a, b in pairs)


def _containers(sample: Any) -> Any:
    return kept(lambda part: None, sample)


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(np.array_equal(np.asarray(a), np.asarray(b)))
    except Exception:  # comparing what a script returns may raise anything
        return a is b
