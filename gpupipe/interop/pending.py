"""Results of a script's transforms that an engine computes later, and that are there as soon as code looks at them.

While a script's ``__getitem__`` runs, its transforms are replaced by objects that note what they are given. What they
return is a :class:`PendingTensor`, which is a ``torch.Tensor``, or a :class:`PendingImage`, which is a PIL image. Both
answer questions about size and type without any pixels. Code that asks for values gets them: the reference computes the
sample with the numbers of the plan. So user code never sees that anything is missing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor
from torch.utils import _pytree

from ..codecs.unread import close_with
from ..datasets.arrangements import ARRANGEMENTS
from ..datasets.sample_form import kept
from ..errors import TranslationError

__all__ = [
    "TO_ARRAY",
    "Arranged",
    "Computes",
    "Copied",
    "OneOf",
    "Pending",
    "PendingImage",
    "PendingTensor",
    "Run",
    "Source",
    "Step",
    "called",
    "noted",
    "noted_array",
    "rest_of",
    "running",
    "settled",
]  # fmt: skip


TO_ARRAY = -1
"""The place of ``np.array()``, which makes an array of an image."""


class Computes(Protocol):
    """What knows the script's transforms, by their places."""

    def place(self, place: int) -> int:
        """The first place with the same transform."""

    def rest(self, place: int, begun: int) -> int:
        """The place of what is left of a container behind its first ``begun`` transforms."""

    def kind(self, places: tuple[int, ...]) -> str:
        """What they make of a PIL image: ``"pil"``, ``"tensor"``, or ``"image"`` for torchvision's ``Image``."""

    def tree(self, places: tuple[int, ...]) -> Any:
        """How several results stand in what they return, as :class:`~gpupipe.datasets.sample_form.View`; ``None`` if
        they return one."""

    def outputs(self, step: Step) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each result; of an image [C, H, W]."""

    def values(self, step: Step) -> list[Any]:
        """The results."""


@dataclass(eq=False)
class Run:
    """One call of ``__getitem__``.

    Args:
        computes: of the dataset.
        seed, epoch, key: what the random numbers of this sample are drawn with; see :func:`gpupipe.rng.uniforms`.
    """

    computes: Computes
    seed: int
    epoch: int
    key: int
    notice: Callable[[], Any] | None = None
    """Asked for something where a transform is called, which is kept."""
    noticed: list[Any] = field(default_factory=list)
    looks: list[str] = field(default_factory=list)
    """What asked for values."""
    failure: TranslationError | None = None
    """Why a transform has no gpupipe form, which was called instead."""
    hint: str = ""
    """What a transform was given that it was called for."""
    sources: list[Source] = field(default_factory=list)
    """The images that were given to transforms."""
    begun: int = 0
    """Sequences of draws that began."""

    def restart(self) -> None:
        """The same call again, from its beginning."""
        self.noticed, self.looks, self.sources, self.begun = [], [], [], 0
        self.failure, self.hint = None, ""


class Pending:
    """A value that is not computed yet."""

    run: Run
    _value: Any = None

    def value(self, asked: str) -> Any:
        """The value, computed when it is first asked for. ``asked`` says what for."""
        if self._value is None:
            self.run.looks.append(asked)
            self._value = self.compute()
        return self._value

    @property
    def is_computed(self) -> bool:
        return self._value is not None

    def compute(self) -> Any:
        raise NotImplementedError

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and type."""
        raise NotImplementedError


@dataclass(eq=False)
class Source:
    """An image as the script opened it."""

    image: Any


class Step(Pending):
    """What a transform makes of an image, or of what another one made of it.

    Attributes:
        source: the image that the first transform was given.
        before: the result that the transform was given; ``None`` if that is the image.
        place: of the transform among those that the dataset holds.
        seed: what its random numbers are drawn with. Of several transforms of one image, or of one result, each draws
            for itself.
    """

    def __init__(self, run: Run, source: Source, before: Step | None, place: int):
        self.run, self.source, self.before, self.place = run, source, before, place
        self.places: tuple[int, ...] = (*(before.places if before is not None else ()), place)
        self.children = 0
        self._values: list[Any] | None = None
        self._outputs: list[tuple[tuple[int, ...], torch.dtype]] | None = None
        if before is None:
            self.seed = (run.seed + run.begun) % 2**64
            run.begun += 1
        else:
            self.seed = before.seed if not before.children else (run.seed + run.begun) % 2**64
            run.begun += bool(before.children)
            before.children += 1

    @property
    def chain(self) -> tuple[Step, ...]:
        """From the first transform to this one."""
        return (*(self.before.chain if self.before is not None else ()), self)

    @property
    def kind(self) -> str:
        return self.run.computes.kind(self.places)

    def values(self) -> list[Any]:
        """All results of a transform that makes several; of others one."""
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


class OneOf(Pending):
    """One result of a transform that makes several."""

    def __init__(self, step: Step, number: int):
        self.run, self.step, self.number = step.run, step, number

    def compute(self) -> Any:
        return self.step.values()[self.number]

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        return self.step.outputs()[self.number]


class Copied(Pending):
    """A copy, which a script may write to and keep what it was made of."""

    def __init__(self, of: Pending):
        self.run, self.of = of.run, of

    def compute(self) -> Any:
        return self.of.value("clone").clone()

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        return self.of.output()


class Arranged(Pending):
    """What torch makes of results without looking at them, such as ``torch.stack``.

    Attributes:
        name: in :data:`~gpupipe.datasets.sample_form.ARRANGEMENTS`.
        parts: what is arranged.
        arguments: the others.
    """

    def __init__(self, name: str, parts: tuple[Pending, ...], arguments: tuple[Any, ...]):
        self.run = parts[0].run
        self.name, self.parts, self.arguments = name, parts, arguments

    def compute(self) -> Any:
        return ARRANGEMENTS[self.name].sample([part.value(self.name) for part in self.parts], *self.arguments)

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        empty = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in (p.output() for p in self.parts)]
        made = ARRANGEMENTS[self.name].sample(empty, *self.arguments)
        return tuple(made.shape), made.dtype


_here = threading.local()


@contextmanager
def running(run: Run) -> Iterator[Run]:
    """Within it, in this thread, what the dataset's transforms return is pending."""
    outer, _here.run = getattr(_here, "run", None), run
    try:
        yield run
    finally:
        _here.run = outer


def noted(place: int, given: Any) -> Any:
    """What the transform at ``place`` returns for an image, or for a result that is pending; ``NotImplemented`` if it
    has to be called."""
    run: Run | None = getattr(_here, "run", None)
    if run is None:
        return NotImplemented
    if isinstance(given, (PendingImage, PendingTensor)):
        pending = given.pending
        while isinstance(pending, Copied) and not pending.is_computed:
            pending = pending.of
        # What was computed may have been changed in place since.
        if not isinstance(pending, Step) or pending.is_computed or pending.run is not run:
            return NotImplemented
        return shown(run, pending.source, pending, place)
    return shown(run, _source(run, given), None, place)


def noted_array(place: int, image: Any) -> Any:
    """What the transform at ``place`` returns for an array uint8[H, W, 3], in albumentations within a dictionary; see
    :func:`noted`."""
    run: Run | None = getattr(_here, "run", None)
    if run is None:
        return NotImplemented
    source = _source(run, image)
    return shown(run, source, Step(run, source, None, TO_ARRAY), place)


def rest_of(place: int, begun: int) -> int | None:
    """The place of what is left of a container behind its first ``begun`` transforms; ``None`` if nothing is noted."""
    run: Run | None = getattr(_here, "run", None)
    return None if run is None else run.computes.rest(place, begun)


def called(hint: str) -> None:
    """A transform is called, because it is given something that is not understood."""
    run: Run | None = getattr(_here, "run", None)
    if run is not None:
        run.hint = run.hint or hint


def _source(run: Run, image: Any) -> Source:
    source = next((known for known in run.sources if known.image is image), None)
    if source is None:
        run.sources.append(source := Source(image))
        close_with(image)
    return source


def shown(run: Run, source: Source, before: Step | None, place: int) -> Any:
    """What the script gets for the result of a transform, or for several; ``NotImplemented`` if the transform has to be
    called, since gpupipe has no such one."""
    if run.notice is not None:
        run.noticed.append(run.notice())
    step = Step(run, source, before, run.computes.place(place))
    try:
        tree, kind = run.computes.tree(step.places), step.kind
    except TranslationError as e:
        run.failure = run.failure or e
        return NotImplemented
    if tree is None:
        return PendingImage(step) if kind == "pil" else _tensor(step)
    return kept(lambda view: PendingTensor(OneOf(step, view.number)), tree)


def settled(tree: Any) -> Any:
    """A sample with all values computed."""

    def real(part: Any) -> Any:
        if isinstance(part, PendingTensor):
            return part.pending.value("the sample is of another form")
        if isinstance(part, PendingImage):
            part.load()
        return part

    return kept(real, tree)


# ---- PIL images


class PendingImage(Image.Image):
    """A PIL image in mode RGB or L whose pixels are computed when somebody looks at them."""

    def __init__(self, pending: Step):
        super().__init__()
        self.pending = pending

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
    """A tensor whose values are computed when somebody asks for them. Shape, type and device are known before."""

    pending: Pending

    @staticmethod
    def __new__(cls, pending: Pending) -> PendingTensor:
        # Its own size means nothing: every question goes through __torch_function__.
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

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        return self.pending.value("numpy").numpy(*args, **kwargs)


class PendingTVImage(PendingTensor):
    """Likewise, in the place of torchvision's ``Image``."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return tv_image()  # type: ignore[no-any-return]


def _tensor(step: Step) -> PendingTensor:
    return PendingTVImage(step) if step.kind == "image" else PendingTensor(step)


def _is_copy(pending: Pending, wanted: dict[str, Any]) -> bool:
    """Whether ``torch.tensor(x)`` is a copy: it takes the type of the wrapper, float32, for that of the tensor."""
    others = wanted.keys() - {"dtype", "device", "layout", "pin_memory", "non_blocking", "memory_format"}
    is_plain = not others and str(wanted.get("device", "cpu")) == "cpu" and not wanted.get("pin_memory")
    is_float = pending.output()[1] is torch.float32 and wanted.get("dtype", torch.float32) is torch.float32
    return is_plain and is_float and not pending.is_computed


def tv_image() -> Any:
    """The class of torchvision's, which who has such images has imported."""
    return sys.modules["torchvision.tv_tensors"].Image


def _shape(p: Pending) -> torch.Size:
    return torch.Size(p.output()[0])


def _item_bytes(p: Pending) -> int:
    return p.output()[1].itemsize


def _getter(name: str) -> Any:
    """What torch asks for an attribute."""
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
"""By function, what is answered without values."""


def _carried(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function of torch makes of pending results, if an engine can do it to a batch just as well; otherwise
    ``NotImplemented``."""
    if func in _SAME and len(args) == 1 and not kwargs and not args[0].pending.is_computed:
        return PendingTensor(args[0].pending)
    if func in _COPIES and len(args) == 1 and not kwargs and not args[0].pending.is_computed:
        return PendingTensor(Copied(args[0].pending))
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
                return PendingTensor(Arranged(name, tuple(part.pending for part in parts), arguments))
    return NotImplemented


def _cast(dtype: torch.dtype | None, tensor: Any, *more: Any) -> Any:
    """``tensor.float()`` and its like; of the type that it has already it is the same tensor."""
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
    """What changes the shape of a tensor; it stays the same object."""
    made = _carried(func, (tensor, *args), kwargs)
    if made is not NotImplemented:
        tensor.pending = made.pending
        made = tensor
    return made


_COPIES = {Tensor.clone, torch.clone}
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
