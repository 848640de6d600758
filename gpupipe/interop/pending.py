"""Pending results of a script's transforms: an engine computes them later, or the reference as soon as code looks.

While a script's ``__getitem__`` runs, objects stand in place of its transforms and record what they are given. They
return a :class:`PendingTensor`, which is a ``torch.Tensor``, or a :class:`PendingImage`, which is a PIL image. Both
answer questions about size and type without any pixels. When code asks for values, the reference computes the sample
with the numbers of the plan. So user code never notices that anything is missing.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils import _pytree

from ..codecs.unread import close_with, is_unread, sendable
from ..datasets.arrangements import ARRANGEMENTS
from ..datasets.sample_form import kept, tv_image
from ..errors import TranslationError
from ..reasons import Reason
from ..transforms import Transform
from ..transforms.ops import Crop, Flip, Op

__all__ = [
    "TO_ARRAY",
    "TO_IMAGE",
    "TO_TENSOR",
    "Arranged",
    "Computes",
    "Copied",
    "OneOf",
    "Pending",
    "PendingImage",
    "PendingTVImage",
    "PendingTensor",
    "SampleCall",
    "Source",
    "Stage",
    "Step",
    "WrittenStep",
    "called",
    "cannot_follow",
    "exact",
    "noted",
    "noted_as",
    "pending_step",
    "rest_of",
    "running",
    "settled",
    "settled_part",
    "unread_tensor",
    "written",
    "written_as",
]  # fmt: skip


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

    def values(self, step: Step) -> list[Any]:
        """Compute the results."""

    def draws(self, step: Step) -> bool:
        """Return whether the last transform of a step may draw random numbers."""

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
    begun: int = 0
    """Number of sequences of draws that have started."""

    def forget_given(self) -> None:
        """Forget the objects that the script opened, so that their files can be closed."""
        for source in self.sources:
            source.given = None

    def restart(self) -> None:
        """Forget everything, to repeat the call."""
        self.noticed, self.looks, self.sources, self.arrays, self.begun = [], [], [], [], 0
        self.failure, self.hint = None, None


class Pending:
    """A value that is not computed yet."""

    run: SampleCall
    _value: Any = None

    def value(self, asked: str) -> Any:
        """Return the value and compute it at the first request. ``asked`` names the operation that needs it."""
        if self._value is None and not self.is_exact:
            self.run.looks.append(asked)
        return self.settled()

    def settled(self) -> Any:
        """Return the value for the sample itself, which no code has asked for."""
        if self._value is None:
            with running(None):  # nothing that happens now is the script's
                self._value = self.compute()
        return self._value

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
        self._version = self._now

    @property
    def _now(self) -> int:
        return self.image._version if isinstance(self.image, Tensor) else 0

    @property
    def is_as_it_was(self) -> bool:
        """Whether the script has not written to the tensor since."""
        return self._now == self._version


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
        self.has_targets = False
        """Whether masks, boxes, keypoints or other images were moved with its numbers."""
        self.seed: int
        self._values: list[Any] | None = None
        self._outputs: list[tuple[tuple[int, ...], torch.dtype]] | None = None
        drawing = before.last_drawing if before is not None else None
        self.may_draw = place > WRITTEN and run.computes.draws(self)
        if not self.may_draw:
            self.seed = run.seed if drawing is None else drawing.seed
        elif drawing is None:
            self.seed = (run.seed + run.begun) % 2**64
            run.begun += 1
        else:
            self.seed = drawing.seed if not drawing.children else (run.seed + run.begun) % 2**64
            run.begun += bool(drawing.children)
            drawing.children += 1

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
        if (height := getattr(self._op, "height", None)) is not None:
            size = [int(height[0]), int(getattr(self._op, "width")[0])]  # noqa: B009
        return [((channels, *size), dtype)]


class OneOf(Pending):
    """One result of a transform that returns several."""

    def __init__(self, step: Step, number: int):
        self.run, self.step, self.number = step.run, step, number

    def compute(self) -> Any:
        return self.step.values()[self.number]

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        return self.step.outputs()[self.number]


class Copied(Pending):
    """A copy, which a script may write to while it keeps the original."""

    def __init__(self, of: Pending):
        self.run, self.of = of.run, of

    def compute(self) -> Any:
        return self.of.value("clone").clone()

    @property
    def is_exact(self) -> bool:
        return self.of.is_exact

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        return self.of.output()


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
    def is_exact(self) -> bool:
        return all(part.is_exact for part in self.parts)

    def compute(self) -> Any:
        return ARRANGEMENTS[self.name].sample([part.value(self.name) for part in self.parts], *self.arguments)

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        empty = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in (p.output() for p in self.parts)]
        made = ARRANGEMENTS[self.name].sample(empty, *self.arguments)
        return tuple(made.shape), made.dtype


_here = threading.local()


@contextmanager
def running(run: SampleCall | None) -> Iterator[SampleCall | None]:
    """Context in which the dataset's transforms return pending results in this thread; with ``None``, they do not."""
    outer, _here.run = getattr(_here, "run", None), run
    try:
        yield run
    finally:
        _here.run = outer


def noted(place: int, given: Any) -> Any:
    """Return the result of the transform at ``place`` for an image or a pending result; ``NotImplemented`` if the
    transform has to be called."""
    run: SampleCall | None = getattr(_here, "run", None)
    if run is None:
        return NotImplemented
    if isinstance(given, (PendingImage, PendingTensor)):
        pending = given.pending
        while isinstance(pending, Copied) and not pending.is_computed:
            pending = pending.of
        # Code may have changed a computed value in place.
        if not isinstance(pending, Step) or pending.is_computed or pending.run is not run:
            return NotImplemented
        return shown(run, pending.source, pending, place)
    return shown(run, _source(run, given), None, place)


def noted_as(kind: int, place: int, image: Any) -> Any:
    """Return the result of the transform at ``place`` for an array uint8[H, W, C], which albumentations gets in a
    dictionary, or for a tensor uint8[C, H, W]; see :func:`noted`.

    Args:
        kind: :data:`TO_ARRAY`, :data:`TO_TENSOR` or :data:`TO_IMAGE`.
    """
    run: SampleCall | None = getattr(_here, "run", None)
    if run is None:
        return NotImplemented
    made = _opened(run, image, kind)
    return NotImplemented if made is None else shown(run, made.source, made, place)


def _opened(run: SampleCall, image: Any, kind: int) -> Step | None:
    """Return the step that makes an array or a tensor of an image; ``None`` if the image was changed since."""
    read = getattr(image, "made", None)
    if read is not None:  # an unread array
        run.arrays.append(image)
        if isinstance(read.image, PendingImage):
            found = None if image.swapped else _unfinished(run, read.image)
            return None if found is None or found[0] is None else Step(run, found[0], found[1], kind)
    return Step(run, _source(run, image), None, kind)


def unread_tensor(array: Any) -> Any:
    """Return a pending tensor uint8[C, H, W] of an array uint8[H, W, C] that is not read; ``NotImplemented`` if nothing
    is noted."""
    run: SampleCall | None = getattr(_here, "run", None)
    made = None if run is None else _opened(run, array, TO_TENSOR)
    return NotImplemented if made is None else _tensor(made)


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
    run: SampleCall | None = getattr(_here, "run", None)
    if run is None or (found := _unfinished(run, image)) is None:
        return NotImplemented
    source, before = found
    height, width = (image.height, image.width) if before is None else before.output()[0][-2:]
    made = op(height, width)
    place = None if made is None else run.computes.written(made)
    if made is None or place is None:
        return NotImplemented
    step = WrittenStep(run, source or _source(run, image), before, made, place[0])
    step.act, step.row = act, place[1]
    if step.kind != "pil":
        return _tensor(step)
    result = PendingImage(step)
    result.info = image.info.copy() if keeps_info else {}
    return result


def written_as(image: Any, transform: Transform) -> Any:
    """Return the result of a transform of gpupipe that stands for a function that the script's own code calls, such as
    ``to_tensor()``; see :func:`written`."""
    run: SampleCall | None = getattr(_here, "run", None)
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
        step = image.pending
        is_open = not isinstance(image, PendingImage) or image.is_open
        if not isinstance(step, Step) or step.is_computed or step.run is not run or not is_open:
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
    run: SampleCall | None = getattr(_here, "run", None)
    return None if run is None else run.computes.rest(place, begun)


def called(hint: Reason) -> None:
    """Record that a transform is called because it got something other than an image."""
    run: SampleCall | None = getattr(_here, "run", None)
    if run is not None:
        run.hint = run.hint or hint


def cannot_follow(why: TranslationError) -> None:
    """Note why a part of a sample cannot follow its image. The transform is then called."""
    run: SampleCall | None = getattr(_here, "run", None)
    if run is not None:
        run.failure = run.failure or why


def pending_step(made: Any) -> Step | None:
    """Return the step of a pending image; ``None`` for anything else, such as several views."""
    step = made.pending if isinstance(made, (PendingImage, PendingTensor)) else None
    return step if isinstance(step, Step) else None


def _source(run: SampleCall, image: Any) -> Source:
    source = next((known for known in run.sources if known.given is image), None)
    if source is None:
        run.sources.append(source := Source(sendable(image), image))
        close_with(image)
    return source


def shown(run: SampleCall, source: Source, before: Step | None, place: int) -> Any:
    """Return what the script gets as the result of a transform, or as several; ``NotImplemented`` if the transform has
    to be called because gpupipe has no such transform."""
    step = Step(run, source, before, run.computes.place(place))
    if run.notice is not None and step.may_draw:
        run.noticed.append(run.notice())
    try:
        tree, kind = run.computes.tree(step.places), step.kind
    except TranslationError as e:
        run.failure = run.failure or e
        return NotImplemented
    if tree is None:
        return PendingImage(step) if kind == "pil" else _tensor(step)
    return kept(lambda view: PendingTensor(OneOf(step, view.number)), tree)


def settled(tree: Any) -> Any:
    """Compute all values of a sample."""
    return kept(settled_part, tree)


def exact(part: Any) -> Any:
    """Compute the value of a part of a sample that the script's own code may look at; see :attr:`Pending.is_exact`."""
    is_pending = isinstance(part, (PendingTensor, PendingImage))
    return settled_part(part) if is_pending and part.pending.is_exact else part


def settled_part(part: Any) -> Any:
    """Compute the value of one part of a sample, if it is pending."""
    if isinstance(part, PendingTensor):
        return part.pending.settled()
    if isinstance(part, PendingImage):
        part.pending.settled()
        return Image.Image.copy(part)
    return part


# ---- PIL images


class PendingImage(Image.Image):
    """A PIL image in mode RGB or L whose pixels are computed at their first use."""

    def __init__(self, pending: Step):
        super().__init__()
        self.pending = pending

    @property
    def is_loaded(self) -> bool:
        return self._im is not None

    @property
    def is_open(self) -> bool:
        """Whether an engine may go on with it."""
        return self._im is None and not self.pending.is_computed

    def _settle(self) -> None:
        (channels, height, width), _ = self.pending.output()
        self._mode, self._size = "L" if channels == 1 else "RGB", (width, height)

    @property
    def size(self) -> tuple[int, int]:
        if self._size == (0, 0):
            self._settle()
        return self._size

    @property
    def mode(self) -> str:
        if not self._mode:
            self._settle()
        return self._mode

    @property
    def im(self) -> Any:
        if self._im is None:
            self._im = self.pending.value("its pixels").im.copy()
            self._settle()
        return Image.Image.im.fget(self)  # type: ignore[attr-defined]

    @im.setter
    def im(self, im: Any) -> None:
        self._im = im

    def load(self) -> Any:
        assert self.im is not None
        return super().load()

    def copy(self) -> Image.Image:
        return PendingImage(self.pending) if self._im is None else super().copy()

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        if mode == self.mode and not args and not kwargs:
            return self.copy()
        self.load()
        return super().convert(mode, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.load()
        return _as_it_is, (super().copy(),)

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def _as_it_is(image: Image.Image) -> Image.Image:
    return image


# ---- tensors


class PendingTensor(Tensor):
    """A tensor whose values are computed at their first use. Shape, data type and device are known before."""

    pending: Pending

    @staticmethod
    def __new__(cls, pending: Pending) -> PendingTensor:
        # The size of the wrapper means nothing, because every question goes through __torch_function__.
        cpu = torch.device("cpu")
        made: PendingTensor = torch.Tensor._make_wrapper_subclass(cls, (0,), dtype=torch.float32, device=cpu)
        made.pending = pending
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (known := _KNOWN.get(func)) is not None and args and not args[0].pending.is_computed:
            return known(args[0].pending, *args[1:], **kwargs)
        if (made := _carried(func, args, kwargs)) is not NotImplemented:
            return made
        name = getattr(func, "__name__", str(func))
        real = _pytree.tree_map(lambda x: x.pending.value(name) if isinstance(x, PendingTensor) else x, (args, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*real[0], **real[1])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default and not args[0].pending.is_computed:
            return PendingTensor(args[0].pending)  # torch.tensor(x) begins like this
        if func is torch.ops.aten._to_copy.default and _is_copy(args[0].pending, kwargs or {}):
            return PendingTensor(Copied(args[0].pending))
        real = _pytree.tree_map(
            lambda x: x.pending.value(str(func)) if isinstance(x, PendingTensor) else x, (args, kwargs or {})
        )
        return func(*real[0], **real[1])

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.pending.value("pickle").__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.pending.value("deepcopy").clone()

    def as_subclass(self, cls: Any) -> Any:
        made = _as_image(self, cls)
        return self.pending.value("as_subclass").as_subclass(cls) if made is NotImplemented else made

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        return self.pending.value("numpy").numpy(*args, **kwargs)


class PendingTVImage(PendingTensor):
    """A pending tensor that stands for torchvision's ``Image``."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return tv_image()  # type: ignore[no-any-return]


def _tensor(step: Step) -> PendingTensor:
    return PendingTVImage(step) if step.kind == "image" else PendingTensor(step)


def _is_copy(pending: Pending, wanted: dict[str, Any]) -> bool:
    """Tell whether ``torch.tensor(x)`` is a copy. torch takes the wrapper's data type, float32, for that of the
    tensor."""
    others = wanted.keys() - {"dtype", "device", "layout", "pin_memory", "non_blocking", "memory_format"}
    is_plain = not others and str(wanted.get("device", "cpu")) == "cpu" and not wanted.get("pin_memory")
    is_float = pending.output()[1] is torch.float32 and wanted.get("dtype", torch.float32) is torch.float32
    return is_plain and is_float and not pending.is_computed


def _shape(p: Pending) -> torch.Size:
    return torch.Size(p.output()[0])


def _item_bytes(p: Pending) -> int:
    return p.output()[1].itemsize


def _getter(name: str) -> Any:
    """Return the function that torch calls to read an attribute."""
    return getattr(Tensor, name).__get__


_KNOWN: dict[Any, Callable[..., Any]] = {
    _getter("shape"): _shape,
    Tensor.size: lambda p, dim=None: _shape(p) if dim is None else _shape(p)[dim],
    _getter("ndim"): lambda p: len(_shape(p)),
    Tensor.dim: lambda p: len(_shape(p)),
    Tensor.numel: lambda p: _shape(p).numel(),
    Tensor.nelement: lambda p: _shape(p).numel(),
    torch.numel: lambda p: _shape(p).numel(),
    Tensor.__len__: lambda p: _shape(p)[0],
    _getter("dtype"): lambda p: p.output()[1],
    _getter("device"): lambda p: torch.device("cpu"),
    _getter("layout"): lambda p: torch.strided,
    _getter("requires_grad"): lambda p: False,
    _getter("is_cuda"): lambda p: False,
    _getter("is_sparse"): lambda p: False,
    _getter("is_leaf"): lambda p: True,
    _getter("grad"): lambda p: None,
    Tensor.is_floating_point: lambda p: p.output()[1].is_floating_point,
    torch.is_floating_point: lambda p: p.output()[1].is_floating_point,
    Tensor.is_complex: lambda p: False,
    torch.is_complex: lambda p: False,
    Tensor.element_size: _item_bytes,
    _getter("itemsize"): _item_bytes,
    _getter("nbytes"): lambda p: _shape(p).numel() * _item_bytes(p),
    Tensor.is_contiguous: lambda p, **kwargs: True,
    Tensor.get_device: lambda p: -1,
}
"""Answers that need no values, by function."""


def _carried(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the pending result of a torch function if an engine can apply the function to a batch just as well;
    otherwise ``NotImplemented``."""
    if func in _SAME and len(args) == 1 and not kwargs and not args[0].pending.is_computed:
        return PendingTensor(args[0].pending)
    if func in _COPIES and len(args) == 1 and not kwargs and not args[0].pending.is_computed:
        return PendingTensor(Copied(args[0].pending))
    if func is Tensor.requires_grad_ and args[1:] == (False,) and not kwargs:
        return args[0]
    if func in _VIEWS and not kwargs and _is_as_large(*args):
        return PendingTensor(args[0].pending)
    if func in _MOVES and args and isinstance(args[0], PendingTensor):
        op = _MOVES[func](*args, **kwargs)
        if op is not None:
            return written(args[0], op, lambda value: func(value, *args[1:], **kwargs))
    if func in _IN_PLACE:
        return _in_place(_IN_PLACE[func], *args, **kwargs)
    if func in _CASTS and not kwargs:
        return _cast(_CASTS[func], *args)
    if func is Tensor.__getitem__ and args[1] is None:
        func, args = Tensor.unsqueeze, (args[0], 0)
    for name, arrangement in ARRANGEMENTS.items():
        if func in arrangement.functions and (found := arrangement.read(args, kwargs)) is not None:
            parts, arguments = found
            if all(isinstance(part, PendingTensor) and not part.pending.is_computed for part in parts):
                return PendingTensor(_arranged(name, tuple(part.pending for part in parts), arguments))
    return NotImplemented


def _arranged(name: str, parts: tuple[Pending, ...], arguments: tuple[Any, ...]) -> Pending:
    first = parts[0]
    if not isinstance(first, Arranged) or not first.name == name == "permute":
        return Arranged(name, parts, arguments)
    back = [first.arguments[dim] for dim in arguments] == [*range(len(arguments))]  # such as [H, W, C] to an image
    return first.parts[0] if back else Arranged(name, parts, arguments)


def _as_image(tensor: Any, cls: Any) -> Any:
    """``tv_tensors.Image(tensor)`` of a tensor as the script opened it."""
    step = tensor.pending
    is_image = getattr(cls, "__module__", "").startswith("torchvision.tv_tensors") and cls.__name__ == "Image"
    if not is_image or not isinstance(step, Step) or step.place != TO_TENSOR or step.is_computed or step.children:
        return NotImplemented
    made = copy.copy(step)
    made.place, made.places = TO_IMAGE, (*step.places[:-1], TO_IMAGE)
    step.children += 1  # what else is done to the tensor draws for itself
    return _tensor(made)


def _is_as_large(tensor: Any, *shape: Any) -> bool:
    """Whether ``view`` keeps the shape."""
    wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape
    return not tensor.pending.is_computed and tuple(wanted) == tuple(_shape(tensor.pending))


def _cast(dtype: torch.dtype | None, tensor: Any, *more: Any) -> Any:
    """Convert to a data type, as ``tensor.float()`` does. A tensor of that data type is returned itself."""
    if dtype is None:
        if len(more) != 1 or not isinstance(more[0], torch.dtype):
            return NotImplemented
        (dtype,) = more
    elif more:
        return NotImplemented
    if tensor.pending.is_computed:
        return NotImplemented
    if tensor.pending.output()[1] == dtype:
        return tensor
    return PendingTensor(Arranged("to", (tensor.pending,), (dtype,)))


def _in_place(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Change the shape of a tensor in place; it stays the same object."""
    made = _carried(func, (tensor, *args), kwargs)
    if made is not NotImplemented:
        tensor.pending = made.pending
        made = tensor
    return made


def _flipped(tensor: Any, *dims: Any, **named: Any) -> Callable[[int, int], Op | None] | None:
    dims = named.get("dims", dims)
    dims = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (list, tuple)) else tuple(dims)
    axis = {(-1,): "horizontal", (2,): "horizontal", (-2,): "vertical", (1,): "vertical"}.get(dims)
    is_image = len(_shape(tensor.pending)) == 3
    return None if axis is None or not is_image else lambda height, width: Flip(np.ones(1, np.bool_), axis)  # type: ignore[arg-type]


def _window(tensor: Any, key: Any) -> Callable[[int, int], Op | None] | None:
    """Read ``tensor[:, top:bottom, left:right]``."""
    whole = slice(None)
    if type(key) is not tuple or len(key) != 3 or not (key[0] is ... or key[0] == whole):
        return None
    if len(_shape(tensor.pending)) != 3 or any(type(part) is not slice or part.step is not None for part in key[1:]):
        return None

    def op(height: int, width: int) -> Op | None:
        (top, bottom, _), (left, right, _) = key[1].indices(height), key[2].indices(width)
        at, size = (top, left), (bottom - top, right - left)
        y, x, h, w = (np.array([n], np.int32) for n in (*at, *size))
        return Crop(y, x, h, w) if min(size) > 0 else None

    return op


_MOVES: dict[Any, Callable[..., Any]] = {
    Tensor.flip: _flipped,
    torch.flip: _flipped,
    Tensor.__getitem__: _window,
}
"""Functions of tensors that an engine does, with what returns the op for an image of (height, width)."""
_COPIES = {Tensor.clone, torch.clone}
_VIEWS = {Tensor.view, Tensor.reshape, torch.reshape}
_SAME = {Tensor.detach, torch.detach, Tensor.contiguous, Tensor.cpu}
_IN_PLACE: dict[Any, Any] = {Tensor.unsqueeze_: Tensor.unsqueeze, Tensor.squeeze_: Tensor.squeeze}
_CASTS: dict[Any, torch.dtype | None] = {
    Tensor.float: torch.float32,
    Tensor.half: torch.float16,
    Tensor.double: torch.float64,
    Tensor.bfloat16: torch.bfloat16,
    Tensor.to: None,
    Tensor.type: None,
}
