"""Random functions that user code calls. While the code is observed, they return stand-ins for all possible numbers, or
given numbers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

_MOST_DRAWS = 8
_MOST_DECISIONS = 12
_MOST_CHOICES = 16


class NotUnderstood(Exception):
    """User code did something whose meaning is unknown."""


class TracedRun:
    """One run of user code along one of its paths. A draw has no value; each comparison of a draw is decided.

    Args:
        decided: results of the first comparisons; all later ones are true.
    """

    def __init__(self, decided: tuple[bool, ...] = ()):
        self.decided = decided
        self.taken: list[bool] = []
        self.others: list[tuple[bool, ...]] = []
        """Alternative decisions, each of which starts another path."""
        self.ranges: list[tuple[float, float]] = []
        """Range [low, high) of the uniform number of each draw, as the decisions restrict it."""
        self.problem = ""
        """Why the run cannot be understood. Stays set even if user code catches :class:`NotUnderstood`."""

    def draw(self) -> Draw:
        if len(self.ranges) == _MOST_DRAWS:
            self.refuse(f"it draws more than {_MOST_DRAWS} numbers")
        self.ranges.append((0.0, 1.0))
        return Draw(self, len(self.ranges) - 1, 1.0, 0.0)

    def is_below(self, k: int, limit: float) -> bool:
        """Decide whether uniform number ``k`` is below a limit, unless earlier decisions imply it."""
        low, high = self.ranges[k]
        # The number lies in [low, high), and a limit outside of this range decides nothing new.
        if not low < limit < high:
            return limit >= high
        if len(self.taken) == _MOST_DECISIONS:
            self.refuse(f"it makes more than {_MOST_DECISIONS} decisions")
        below = self.decided[len(self.taken)] if len(self.taken) < len(self.decided) else True
        if len(self.taken) >= len(self.decided):
            # Nothing decides this comparison yet: this run takes it as true, and another run takes it as false.
            self.others.append((*self.taken, False))
        self.taken.append(below)
        self.ranges[k] = (low, limit) if below else (limit, high)
        return below

    def refuse(self, why: str) -> Any:
        self.problem = self.problem or why
        raise NotUnderstood(why)


def _number(value: Any) -> float | None:
    """Return a finite number as float; ``None`` for anything else."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and np.isfinite(value)
    return float(value) if is_number else None


class Draw:
    """Stand-in for a random number: ``scale * u + shift``, with a uniform number u in [0, 1).

    Code may add to it, scale it and compare it with numbers. Anything else ends the run.
    """

    # np.float64(2) * draw then calls draw.__rmul__; otherwise numpy would try to make an array of the draw.
    __array_ufunc__ = None

    def __init__(self, run: TracedRun, k: int, scale: float, shift: float):
        self.run, self.k, self.scale, self.shift = run, k, scale, shift

    @property
    def range(self) -> tuple[float, float]:
        """Values for the uniform numbers 0 and 1."""
        return self.shift, self.scale + self.shift

    def item(self) -> Draw:
        return self

    def _with(self, other: Any, change: Callable[[float], tuple[float, float]]) -> Draw:
        number = _number(other)
        if number is None:
            self.run.refuse("it computes with what it draws")
        assert number is not None
        return Draw(self.run, self.k, *change(number))

    def __mul__(self, other: Any) -> Draw:
        return self._with(other, lambda c: (self.scale * c, self.shift * c))

    def __truediv__(self, other: Any) -> Draw:
        return self._with(other, lambda c: (self.scale / c, self.shift / c))

    def __add__(self, other: Any) -> Draw:
        return self._with(other, lambda c: (self.scale, self.shift + c))

    def __sub__(self, other: Any) -> Draw:
        return self._with(other, lambda c: (self.scale, self.shift - c))

    def __rsub__(self, other: Any) -> Draw:
        return self._with(other, lambda c: (-self.scale, c - self.shift))

    __rmul__, __radd__ = __mul__, __add__

    def _is_less(self, other: Any) -> bool:
        """Compare with a number. Equality has probability zero, so ``<`` and ``<=`` agree."""
        limit = _number(other)
        if limit is None:
            return bool(self.run.refuse("it compares what it draws with something other than a number"))
        # Multiplied by zero, it is a constant.
        if self.scale == 0:
            return self.shift < limit
        # scale * u + shift < limit means u < (limit - shift) / scale, or u > that number if scale is negative.
        below = self.run.is_below(self.k, (limit - self.shift) / self.scale)
        return below if self.scale > 0 else not below

    __lt__ = __le__ = _is_less

    def __gt__(self, other: Any) -> bool:
        return not self._is_less(other)

    __ge__ = __gt__

    def _unknown(self, *_: Any, **__: Any) -> Any:
        self.run.refuse("it uses what it draws for more than a comparison or a strength")

    __eq__ = __ne__ = __bool__ = __float__ = __int__ = __index__ = __round__ = __trunc__ = __floor__ = _unknown
    __ceil__ = __abs__ = __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = _unknown
    __rtruediv__ = __neg__ = __pos__ = __array__ = __iter__ = __len__ = __getitem__ = _unknown
    __repr__ = __str__ = __format__ = __hash__ = __complex__ = __divmod__ = __reduce_ex__ = _unknown

    def __getattr__(self, name: str) -> Any:
        self.run.refuse(f"it reads {name} of what it draws")


# ---- the functions

_Uniform = Callable[[], Any]
"""Returns a uniform number, or a stand-in for one."""


def _between(low: Any, high: Any, u: Any) -> Any:
    return low + (high - low) * u


def _one_of(values: Any, uniform: _Uniform) -> Any:
    n = len(values)
    if not 1 <= n <= _MOST_CHOICES:
        raise NotUnderstood(f"it chooses among {n} values")
    # n - 1 comparisons with the same number give a traced run one path for each value.
    u = uniform()
    return values[next((i for i in range(n - 1) if u < (i + 1) / n), n - 1)]


def _scalar(size: Any) -> None:
    if size is not None:
        raise NotUnderstood("it draws many numbers at once")


def _random(uniform: _Uniform) -> Any:
    return uniform()


def _uniform(uniform: _Uniform, a: Any, b: Any) -> Any:
    return _between(a, b, uniform())


def _choice(uniform: _Uniform, seq: Any) -> Any:
    return _one_of(seq, uniform)


def _randint(uniform: _Uniform, a: Any, b: Any) -> Any:
    return _one_of(range(a, b + 1), uniform)


def _randrange(uniform: _Uniform, *limits: Any) -> Any:
    return _one_of(range(*limits), uniform)


def _np_random(uniform: _Uniform, size: Any = None) -> Any:
    _scalar(size)
    return uniform()


def _np_uniform(uniform: _Uniform, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
    _scalar(size)
    return _between(low, high, uniform())


def _np_randint(uniform: _Uniform, low: Any, high: Any = None, size: Any = None) -> Any:
    _scalar(size)
    return _one_of(range(low) if high is None else range(low, high), uniform)


def _np_choice(uniform: _Uniform, a: Any, size: Any = None) -> Any:
    _scalar(size)
    return _one_of(np.arange(a) if isinstance(a, int) else np.asarray(a), uniform)


def _np_rand(uniform: _Uniform, *size: Any) -> Any:
    _scalar(size or None)
    return uniform()


def _torch_rand(uniform: _Uniform, *size: Any, **named: Any) -> Any:
    if named or size not in ((), (1,), ((),), ((1,),), ([1],), (torch.Size([1]),)):
        raise NotUnderstood("it draws many numbers at once")
    u = uniform()
    return u if isinstance(u, Draw) else torch.tensor(u if size in ((), ((),)) else [u])


FUNCTIONS: dict[tuple[Any, str], Callable[..., Any]] = {
    (random, "random"): _random,
    (random, "uniform"): _uniform,
    (random, "choice"): _choice,
    (random, "randint"): _randint,
    (random, "randrange"): _randrange,
    (np.random, "rand"): _np_rand,
    (np.random, "random"): _np_random,
    (np.random, "random_sample"): _np_random,
    (np.random, "uniform"): _np_uniform,
    (np.random, "randint"): _np_randint,
    (np.random, "choice"): _np_choice,
    (torch, "rand"): _torch_rand,
}
"""Each random function, by module and name, with a source of uniform numbers as its first argument. Each call takes
one number. Code that draws in another way is detected by the states of the generators."""


def functions_from(uniform: _Uniform) -> dict[tuple[Any, str], Any]:
    """Return all random functions, which take their numbers from ``uniform``."""
    return {place: partial(function, uniform) for place, function in FUNCTIONS.items()}


@contextmanager
def replaced(changes: Mapping[tuple[Any, str], Any], namespaces: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Replace functions of modules for this thread, also where namespaces of user code hold them by another name."""
    mine = threading.get_ident()

    def instead(original: Any, other: Any) -> Any:
        def function(*given: Any, **named: Any) -> Any:
            return (other if threading.get_ident() == mine else original)(*given, **named)

        return function

    made = {(module, name): instead(getattr(module, name), other) for (module, name), other in changes.items()}
    places = [(vars(module), name, function) for (module, name), function in made.items()]
    # After `from random import random`, a module of the script holds the same function under a name of its own.
    by_identity = {id(getattr(module, name)): function for (module, name), function in made.items()}
    for namespace in namespaces:
        places += [(namespace, name, by_identity[id(v)]) for name, v in namespace.items() if id(v) in by_identity]
    before = [(names, name, names[name]) for names, name, _ in places]
    try:
        for names, name, function in places:
            names[name] = function
        yield
    finally:
        for names, name, original in before:
            names[name] = original


@contextmanager
def replayed(numbers: Iterable[float], namespaces: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Make the random functions return these uniform numbers, one per call. Raise :class:`NotUnderstood` if some are
    left."""
    left = list(numbers)

    def uniform() -> float:
        if not left:
            raise NotUnderstood("it draws more numbers than before")
        return left.pop(0)

    with replaced(functions_from(uniform), namespaces):
        yield
    if left:
        raise NotUnderstood("it draws fewer numbers than before")
