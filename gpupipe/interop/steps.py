"""Record of what a script's transforms do to one sample, step by step.

While a script's ``__getitem__`` runs, each call of a transform adds a :class:`Step` to its :class:`SampleCall`. A step
knows the size and type of its result without any pixels. The reference computes the pixels, with the numbers of the
plan, if code asks for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..datasets.arrangements import ARRANGEMENTS
from ..errors import TranslationError
from ..reasons import Reason
from ..transforms import Transform
from ..transforms.boxes import BatchBoxes
from ..transforms.ops import Op

TO_ARRAY = -1
"""Place that stands for ``np.array()``, which makes an array of an image."""
TO_TENSOR = -2
"""Place that stands for ``decode_image()`` and ``pil_to_tensor()``, which make a tensor of an image."""
TO_IMAGE = -3
"""Place that stands for ``tv_tensors.Image()``."""
WRITTEN = -10
"""Places from here down stand for operations that a script's own code calls, such as ``image.crop()``."""


class Computes(Protocol):
    """Interface of the script's transforms, which are known by their places."""

    def place(self, place: int) -> int:
        """Return the first place with an equal transform."""

    def rest(self, place: int, begun: int) -> int:
        """Return the place of what remains of a container after its first ``begun`` transforms."""

    def kind(self, places: tuple[int, ...]) -> str:
        """Return what the transforms make of a PIL image: ``"pil"``, ``"tensor"``, or ``"image"`` for torchvision's
        ``Image``."""

    def tree(self, places: tuple[int, ...]) -> Any:
        """Return how several results are nested, with :class:`~gpupipe.datasets.sample_form.View` for each; ``None``
        for a single result."""

    def outputs(self, step: Step) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and data type of each result. An image has the shape [C, H, W]."""

    def dtypes(self, places: tuple[int, ...]) -> list[torch.dtype]:
        """Return the data type of each result."""

    def values(self, step: Step) -> list[Any]:
        """Compute the results."""

    def draws(self, step: Step) -> bool:
        """Return whether the last transform of a step may draw random numbers."""

    def draw_by_boxes(self, places: tuple[int, ...]) -> int:
        """Return how many of the transforms draw by boxes."""

    def written(self, op: Op) -> tuple[int, tuple[float, ...]] | None:
        """Return the place that stands for an op with one row, and the row of its numbers; ``None`` if the trials have
        not shown such an op."""

    def fixed(self, transform: Transform) -> int | None:
        """Return the place that stands for a transform of gpupipe without numbers; ``None`` as for :meth:`written`."""

    def stages(self, step: Step, place: int) -> list[Stage]:
        """Return what each of the script's transforms at ``place``, which made ``step``, does to the sample."""


class Stage(NamedTuple):
    """One transform of the script, resolved for one sample."""

    item: Any
    """The transform; ``None`` for a step that only gpupipe has."""
    kind: str
    """Kind of the image that it gets, as in :meth:`Computes.kind`."""
    ops: tuple[Op, ...]
    """Its ops, with one row."""
    size: tuple[int, int]
    """(height, width) of the image that it gets."""


@dataclass(eq=False)
class SampleCall:
    """One call of a dataset's ``__getitem__``.

    Args:
        computes: the transforms of the dataset.
        seed, epoch, key: determine the random numbers of this sample; see :func:`gpupipe.rng.uniforms`.
    """

    computes: Computes
    seed: int
    epoch: int
    key: int
    notice: Callable[[], Any] | None = None
    """Called whenever a transform is called; ``noticed`` keeps the results."""
    noticed: list[Any] = field(default_factory=list)
    looks: list[str] = field(default_factory=list)
    """Names of the operations that asked for values."""
    failure: TranslationError | None = None
    """Why a transform has no translation and was called instead."""
    hint: Reason | None = None
    """What a transform was given instead of an image, so that it was called."""
    sources: list[Source] = field(default_factory=list)
    """Images that were given to transforms."""
    arrays: list[Any] = field(default_factory=list)
    """Unread arrays that were given to transforms."""
    made_late: bool = False
    """Whether a value was computed from a tensor to which the script had written since it asked for the value."""
    begun: int = 0
    """Number of sequences of draws that have started."""

    def forget_given(self) -> None:
        """Forget the objects that the script opened, so that their files can be closed."""
        for source in self.sources:
            source.given = None

    def restart(self) -> None:
        """Forget everything, to repeat the call."""
        self.noticed, self.looks, self.sources, self.arrays, self.begun = [], [], [], [], 0
        self.failure, self.hint, self.made_late = None, None, False


def _version(value: Any) -> int:
    """Return the number of writes to a tensor. Tensors that were made in inference mode do not count them."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


class Pending:
    """A value that is not computed yet."""

    run: SampleCall
    _value: Any = None
    _version = 0
    is_shared = False
    """Whether several tensors stand for the same memory."""

    def value(self, asked: str) -> Any:
        """Return the value and compute it at the first request. ``asked`` names the operation that needs it."""
        # With an exact value, the script's code sees the same bits, so nothing has to be noted.
        if self._value is None and not self.is_exact:
            self.run.looks.append(asked)
        return self.settled()

    def settled(self) -> Any:
        """Return the value for the sample itself, which no code has asked for."""
        if self._value is None:
            self.run.made_late |= self.is_outdated
            with running(None):  # nothing that happens now is the script's
                self._value = self.compute()
            self._version = _version(self._value)
        return self._value

    @property
    def parents(self) -> tuple[Pending, ...]:
        """Values from which this one is computed."""
        return ()

    @property
    def is_outdated(self) -> bool:
        """Whether the script has written to a value from which this one would be computed now."""
        return self._value is None and any(one._was_written or one.is_outdated for one in self.parents)

    @property
    def _was_written(self) -> bool:
        return _version(self._value) != self._version

    @property
    def is_exact(self) -> bool:
        """Whether the value is what the script's own code makes, bit for bit, so that the code may look at it."""
        return False

    @property
    def is_computed(self) -> bool:
        return self._value is not None

    def compute(self) -> Any:
        raise NotImplementedError

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Return shape and data type."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """Data type, which is cheaper to know than the shape."""
        return self.output()[1]


@dataclass(eq=False)
class Source:
    """An image as the script opened it: a PIL image, an array u8[H, W, C] or a tensor u8[C, H, W].

    Args:
        image: the image. One that the script may close before it is read is one that opens its file again.
        given: the script's object.
    """

    image: Any
    given: Any = None

    def __post_init__(self) -> None:
        self._version = _version(self.image)

    @property
    def is_as_it_was(self) -> bool:
        """Whether the script has not written to the tensor since."""
        return _version(self.image) == self._version


class Step(Pending):
    """Result of a transform of an image, or of another transform's result.

    Attributes:
        source: the image that the first transform was given.
        may_draw: whether the transform may draw random numbers.
        before: the result that the transform was given; ``None`` for the image itself.
        place: number of the transform among those that the dataset holds.
        seed: seed of its random numbers. Several transforms of the same image, or of the same result, draw
        independently.
    """

    def __init__(self, run: SampleCall, source: Source, before: Step | None, place: int):
        self.run, self.source, self.before, self.place = run, source, before, place
        self.places: tuple[int, ...] = (*(before.places if before is not None else ()), place)
        self.children = 0
        if before is not None:
            before.is_shared = True  # a transform may return what it is given, or a view of it
        self.has_targets = False
        """Whether masks, boxes, keypoints or other images were moved with its numbers."""
        self.boxes: BatchBoxes | None = None
        """Boxes that the transform was given with the image and draws by."""
        self.seed: int
        self._values: list[Any] | None = None
        self._outputs: list[tuple[tuple[int, ...], torch.dtype]] | None = None
        # Steps that draw one after another share a seed, so that one pipeline draws for all of them. The first such
        # sequence has the seed of the plan, by which an engine draws; every other one has a seed of its own.
        drawing = before.last_drawing if before is not None else None
        # Operations that the script's own code calls have their numbers from that code.
        self.may_draw = place > WRITTEN and run.computes.draws(self)
        if not self.may_draw:
            self.seed = run.seed if drawing is None else drawing.seed
        elif drawing is None:
            self.seed = (run.seed + run.begun) % 2**64
            run.begun += 1
        else:
            # The first step after a result continues its sequence. Further ones start their own, or two crops of one
            # result would have the same window.
            self.seed = drawing.seed if not drawing.children else (run.seed + run.begun) % 2**64
            run.begun += bool(drawing.children)
            drawing.children += 1

    @property
    def parents(self) -> tuple[Pending, ...]:
        return () if self.before is None else (self.before,)

    @property
    def last_drawing(self) -> Step | None:
        """Return the last step up to this one that may draw."""
        return self if self.may_draw else None if self.before is None else self.before.last_drawing

    @property
    def is_exact(self) -> bool:
        return all(place <= WRITTEN for place in self.places)

    @property
    def chain(self) -> tuple[Step, ...]:
        """Return the steps from the first transform to this one."""
        return (*(self.before.chain if self.before is not None else ()), self)

    @property
    def kind(self) -> str:
        return self.run.computes.kind(self.places)

    def values(self) -> list[Any]:
        """Compute all results of the transform; a single one for most."""
        if self._values is None:
            self._values = self.run.computes.values(self)
        return self._values

    def compute(self) -> Any:
        return self.values()[0]

    def outputs(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        if self._outputs is None:
            self._outputs = self.run.computes.outputs(self)
        return self._outputs

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        return self.outputs()[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.run.computes.dtypes(self.places)[0]


class WrittenStep(Step):
    """Result of an operation that the script's own code calls with numbers, such as ``image.crop(box)``.

    Attributes:
        row: its numbers, see :func:`gpupipe.transforms.chosen.chosen`.
    """

    def __init__(self, run: SampleCall, source: Source, before: Step | None, op: Op, place: int):
        super().__init__(run, source, before, place)
        self._op = op
        self.row: tuple[float, ...] = ()
        self.act: Callable[[Any], Any] = lambda value: value
        """Does the operation, as the script's own code would."""

    @property
    def kind(self) -> str:
        return "pil" if self.before is None else self.before.kind

    def values(self) -> list[Any]:
        if self._values is None:
            self._values = [self.act(self.source.image if self.before is None else self.before.settled())]
        return self._values

    def outputs(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        if self.before is None:
            image = self.source.image
            (channels, *size), dtype = (len(image.getbands()), image.height, image.width), torch.uint8
        else:
            (channels, *size), dtype = self.before.output()
        # An op with a size decides that of its result.
        if (height := getattr(self._op, "height", None)) is not None:
            size = [int(height[0]), int(getattr(self._op, "width")[0])]  # noqa: B009
        return [((channels, *size), dtype)]

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8 if self.before is None else self.before.dtype


class OneOf(Pending):
    """One result of a transform that returns several."""

    def __init__(self, step: Step, number: int):
        self.run, self.step, self.number = step.run, step, number

    @property
    def parents(self) -> tuple[Pending, ...]:
        return (self.step,)

    def compute(self) -> Any:
        return self.step.values()[self.number]

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        return self.step.outputs()[self.number]

    @property
    def dtype(self) -> torch.dtype:
        return self.run.computes.dtypes(self.step.places)[self.number]


class Copied(Pending):
    """A copy, which a script may write to while it keeps the original."""

    def __init__(self, of: Pending):
        self.run, self.of = of.run, of

    @property
    def parents(self) -> tuple[Pending, ...]:
        return (self.of,)

    def compute(self) -> Any:
        return self.of.settled().clone()

    @property
    def is_exact(self) -> bool:
        return self.of.is_exact

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        return self.of.output()

    @property
    def dtype(self) -> torch.dtype:
        return self.of.dtype


class Arranged(Pending):
    """Result of a torch function that arranges values without reading them, such as ``torch.stack``.

    Attributes:
        name: name in :data:`~gpupipe.datasets.sample_form.ARRANGEMENTS`.
        parts: the pending results that it arranges.
        arguments: the other arguments.
    """

    def __init__(self, name: str, parts: tuple[Pending, ...], arguments: tuple[Any, ...]):
        self.run = parts[0].run
        self.name, self.parts, self.arguments = name, parts, arguments

    @property
    def parents(self) -> tuple[Pending, ...]:
        return self.parts

    @property
    def is_exact(self) -> bool:
        return all(part.is_exact for part in self.parts)

    def compute(self) -> Any:
        return ARRANGEMENTS[self.name].sample([part.settled() for part in self.parts], *self.arguments)

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        # On the meta device, torch finds shape and type without any values.
        empty = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in (p.output() for p in self.parts)]
        made = ARRANGEMENTS[self.name].sample(empty, *self.arguments)
        return tuple(made.shape), made.dtype

    @property
    def dtype(self) -> torch.dtype:
        arrangement = ARRANGEMENTS[self.name]
        if not arrangement.makes_values:
            return reduce(torch.promote_types, (part.dtype for part in self.parts))
        return arrangement.sample([torch.empty((1, 1, 1), dtype=self.parts[0].dtype)], *self.arguments).dtype


_here = threading.local()


class running:
    """Context in which the dataset's transforms return pending results in this thread; with ``None``, they do not."""

    def __init__(self, run: SampleCall | None):
        self._run = run

    def __enter__(self) -> None:
        self._outer, _here.run = getattr(_here, "run", None), self._run

    def __exit__(self, *_: object) -> None:
        _here.run = self._outer


def current_call() -> SampleCall | None:
    """Return the call whose steps this thread records; ``None`` outside of :func:`running`."""
    run: SampleCall | None = getattr(_here, "run", None)
    return run


def open_step(run: SampleCall, pending: Pending) -> Step | None:
    """Return a pending result as a step that an engine can continue; ``None`` if it cannot."""
    # Code may have changed a computed value in place, so nothing can continue after it.
    known = isinstance(pending, Step) and not pending.is_computed and pending.run is run
    return pending if known else None  # type: ignore[return-value]


def written_step(
    run: SampleCall, source: Callable[[], Source], before: Step | None, op: Op | None, act: Callable[[Any], Any]
) -> WrittenStep | None:
    """Return the step of an operation that the script's own code calls; ``None`` if it has to be done now.

    Args:
        op: the operation with one row; ``None`` if there is no such op.
        act: does the operation.
    """
    place = None if op is None else run.computes.written(op)
    if op is None or place is None:
        return None
    step = WrittenStep(run, source(), before, op, place[0])
    step.act, step.row = act, place[1]
    return step
