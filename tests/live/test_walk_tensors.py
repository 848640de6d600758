"""Walks all of torch: whatever is called on a tensor that waits comes to what it comes to on a true one."""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.overrides import get_overridable_functions, get_testing_overrides, resolve_name
from torchvision.transforms import functional as F

from gpupipe.live.switch import switched
from gpupipe.live.tensors import KNOWN

from .beside import jpeg, outcome, twice, waits

pytestmark = pytest.mark.filterwarnings("ignore")


def opened(seed: int = 1) -> Image.Image:
    return Image.open(io.BytesIO(jpeg(seed, 5, 5)))


def an_image() -> list[Tensor]:
    """A tensor, and its relatives, of which some share its memory."""
    return [F.to_tensor(opened())]


def a_view() -> list[Tensor]:
    base = F.to_tensor(opened())
    return [base.permute(0, 2, 1), base, base[:, 1:], base.clone()]


def a_base() -> list[Tensor]:
    base = F.to_tensor(opened())
    return [base, base.unsqueeze(0), base.detach(), base * 2]


def a_batch() -> list[Tensor]:
    one = F.to_tensor(opened())
    return [torch.stack([one, F.to_tensor(opened(2))]), one]


def some_bytes() -> list[Tensor]:
    x = F.pil_to_tensor(opened())
    return [x, x.float()]


FAMILIES = [an_image, a_view, a_base, a_batch, some_bytes]


def like(*shape: int, kind: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    return lambda: torch.arange(torch.Size(shape).numel(), dtype=kind).reshape(shape)


SELF: Any = object()
"""Stands for the tensor itself."""
VALUES: dict[str, list[Any]] = {
    "_fn": [lambda x: x], "activation": ["relu"], "aggr": ["sum"], "alpha": [2.0], "anchor": [SELF], "arg": [SELF],
    "array": [SELF], "atol": [0.1], "axis": [1], "axis0": [1], "axis1": [2], "b": [SELF, 2], "benchmark": [False],
    "bias": [like(3), like(5)], "bins": [4], "blank": [0], "callable": [lambda x, *_: x], "chunks": [2],
    "condition": [lambda: torch.ones(5, dtype=torch.bool)], "count": [2], "data": [SELF], "decimals": [1],
    "dim": [1, 0, -1], "dim0": [1], "dim1": [2], "dimension": [1], "dims": [(1, 2), 1], "dtype": [torch.float64],
    "dst": [0], "end": [2], "end_dim": [2], "eps": [1e-3], "equation": ["i...->..."], "exponent": [2],
    "fill_value": [3], "full": [True], "group_name": ["g"], "groups": [1], "grid": [like(1, 2, 2, 2)],
    "high": [5], "hidden_size": [3], "hook": [lambda *a: None], "index": [
        0, slice(1, 3), lambda: torch.tensor([0, 2]), None, (..., slice(1, 3)), lambda: torch.ones(5, 5) > 0],
    "indices": [lambda: torch.tensor([0, 2])], "indices_or_sections": [1], "input": [SELF], "inputs": [SELF],
    "input1": [SELF], "input2": [SELF], "k": [1], "keepdim": [True], "kernel_size": [2, 3], "key": [SELF],
    "key_padding_mask": [None], "lambd": [0.5], "length": [2], "lengths": [lambda: torch.tensor([2, 1])],
    "mask": [lambda: torch.arange(25).reshape(5, 5) % 2 == 0], "mat": [SELF], "mat1": [SELF], "mat2": [SELF],
    "max": [0.6], "max_norm": [1.0], "maxnorm": [1.0], "mean": [like(3), 0.5], "min": [0.2],
    "memory_format": [torch.contiguous_format], "mode": ["constant"], "momentum": [0.1], "n": [2], "name": ["n"],
    "names": [("a", "b", "c")], "negative": [SELF], "norm_type": [2], "normalized_shape": [(5,)], "num_groups": [3],
    "num_classes": [300], "num_samples": [2], "obj": [SELF], "offset": [1], "other": [SELF, 2, like(5, 5), 0.5],
    "output_size": [3, (2, 2)], "p": [2, 0.5], "pad": [(1, 1)], "padding": [1, 0], "padding_mode": [0], "parts": [1],
    "permutation": [(1, 0, 2)], "pivots": [None], "positive": [SELF], "q": [0.5], "quantile": [0.5],
    "query": [SELF], "r": [1], "reduce": ["sum"], "repeats": [2], "rcond": [0.1], "requires_grad": [True],
    "running_mean": [like(3)], "running_var": [like(3)], "scale": [0.1], "scale_factor": [2], "scalar": [2],
    "sections": [1], "self": [SELF], "set": [SELF], "shape": [(-1, 5)], "shifts": [1], "sizes": [(3, -1)],
    "size": [(75,), (-1, 5), (3, 1, 5, 5)], "source": [SELF, like(3, 5, 5)], "sorted_sequence": [SELF],
    "split_size_or_sections": [1, [1, 2]], "src": [SELF, like(3, 5, 5)], "start": [0], "step": [1], "start_dim": [1],
    "storage_offset": [0], "stride": [(25, 5, 1), 1], "target": [SELF, like(3, kind=torch.long)], "tensor": [SELF],
    "tensor1": [SELF], "tensor2": [SELF], "tensors": [(SELF, SELF), [SELF, like(3, 5, 5)]], "test_elements": [SELF],
    "threshold": [0.5], "train": [False], "training": [False], "upscale_factor": [1], "downscale_factor": [1],
    "v": [SELF], "val": [SELF], "value": [2, SELF], "values": [1, SELF], "vec": [like(5)], "vec1": [like(5)],
    "vec2": [like(5)], "weight": [like(3, 3, 2, 2), like(3), like(2, 5), SELF], "window_length": [5], "wrap": [True],
    "x": [SELF], "x1": [SELF], "x2": [SELF], "y": [SELF], "A": [SELF], "B": [SELF], "LU_data": [SELF],
    "batch1": [SELF], "batch2": [SELF], "a": [SELF], "self_": [SELF], "out": [SELF], "nonzero": [True],
}  # fmt: skip
"""Values of parameters by their names."""

UNWRITTEN = {"empty_like", "empty", "new_empty", "new_empty_strided", "resize_", "resize_as_", "empty_strided"}
"""Their results have values that nobody wrote."""
ADDRESSES = {"data_ptr", "const_data_ptr", "__hash__", "_cdata", "storage", "untyped_storage", "_typed_storage"}
NEVER_CALLED = {
    "torch.lobpcg": "takes seconds",
    "torch.fbgemm_pack_gemm_matrix_fp16": "returns addresses",
    "torch.native_batch_norm": "reads memory that nobody wrote",
    "torch.Tensor.to_mkldnn": "torch destroys memory when something writes to the result for bytes",
    "torch.linalg.lstsq": "its last bit depends on where the memory lies",
    # Known differences. Nothing knows the order of values in memory while a tensor waits.
    "torch.Tensor.contiguous": "returns another object on the same memory",
    "torch.Tensor.view": "raises later for a permuted tensor",
    "torch.zeros_like": "orders values in memory in another way for a permuted tensor",
    "torch.ones_like": "the same",
    "torch.full_like": "the same",
    "torch.Tensor.set_": "the tensor keeps its class",
}


def functions() -> dict[str, Any]:
    """All functions that a class of tensors can override, by name."""
    found = {}
    for of, several in get_overridable_functions().items():
        for function in several:
            found.setdefault(resolve_name(function) or f"{of}.{function}", function)
    return {name: function for name, function in found.items() if name not in NEVER_CALLED}


def argument_lists(function: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield values of the parameters that a function needs, and variants in which one of them differs."""
    stand_in = get_testing_overrides().get(function)
    parameters = [] if stand_in is None else list(inspect.signature(stand_in).parameters.values())
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    first: list[Any] = [VALUES.get(p.name, [1])[0] for p in needed]
    if first:
        first[0] = (SELF, SELF) if needed[0].name == "tensors" else SELF
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        first += [SELF] if not first else [(1,)]
    named = {p.name: first.pop() for p in needed if p.kind is p.KEYWORD_ONLY}
    yield first, named
    if len(first) == len(needed) - len(named):
        yield [], {**named, **{p.name: value for p, value in zip(needed, first, strict=False)}}
    for k, p in enumerate(needed[: len(first)]):
        for value in VALUES.get(p.name, [])[1:]:
            yield [*first[:k], value, *first[k + 1 :]], named
    if "out" in (p.name for p in parameters):
        yield first, {**named, "out": like(3, 5, 5)}


def filled(value: Any, tensor: Tensor) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(filled(part, tensor) for part in value)
    if value is SELF:
        return tensor
    return value() if inspect.isfunction(value) and not inspect.signature(value).parameters else value


def told(name: str, family: Callable[[], list[Tensor]], function: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return all that can be told after a call: of the result, of the tensor and its relatives, before and after
    something else writes to them."""
    tensor, *relatives = family()
    last = name.removesuffix(".__get__").rpartition(".")[2]
    seen: list[Any] = []
    result: Any = None

    def called() -> Any:
        nonlocal result
        result = function(*filled(args, tensor), **{key: filled(value, tensor) for key, value in kwargs.items()})
        if last in UNWRITTEN:
            return tuple(result.shape), result.dtype
        return None if last in ADDRESSES or family in WRITES else result

    def look() -> None:
        seen.extend(outcome(lambda x=x: x) for x in (result, tensor, *relatives))

    seen.append(outcome(called))
    if last in UNWRITTEN | ADDRESSES:
        return seen
    if family not in WRITES:
        look()
    for x in result if isinstance(result, (list, tuple)) else [result]:
        if isinstance(x, Tensor) and x is not tensor:
            seen.append(outcome(WRITES.get(family, overwrite), x))
            look()
    return seen


def overwrite(x: Tensor) -> None:
    with torch.no_grad():
        x.zero_()


def double(x: Tensor) -> None:
    x.mul_(2)


def write_row(x: Tensor) -> None:
    x[..., -1:, :] = 3


WRITES: dict[Any, Callable[[Tensor], None]] = {a_view: double, a_base: write_row}
"""What writes to results before anything has looked at them, by kind of tensor."""


def compared(name: str, family: Any, function: Any, args: Any, kwargs: Any) -> tuple[bool, bool]:
    """Return whether the call comes to the same on tensors that wait, and whether a true one can be called so."""
    ours, theirs = twice(lambda: told(name, family, function, args, kwargs))
    # Some read memory that nobody wrote.
    equal = ours == theirs or theirs != twice(lambda: told(name, family, function, args, kwargs))[1]
    return equal, theirs[0][0] != "raises"


@pytest.mark.part(of=5)
@pytest.mark.parametrize("family", [an_image, a_view, a_base, a_batch, some_bytes])
def test_all_functions_that_can_be_overridden(family: Callable[[], list[Tensor]]) -> None:
    with switched(True):
        assert all(map(waits, family()))
    differ, worked = [], set()
    for name, function in functions().items():
        for number, (args, kwargs) in enumerate(argument_lists(function)):
            equal, works = compared(name, family, function, args, kwargs)
            if works:
                worked.add(name)
            if not equal:
                differ.append(f"{name}, call {number}")
    assert differ == []
    assert len(worked) > (700 if family is some_bytes else 950)  # of 1,373; the others raise the same


def test_calls_can_travel() -> None:
    """Workers send them to the loader's process."""
    with switched(True):
        made = [F.to_tensor(opened()) ** 2, F.to_tensor(opened()).data]
    known: list[Any] = [f for f in KNOWN if f is not Tensor.__pow__ and f.__name__ != "__get__"]
    for function in [*known, *(vars(x)["step"].function for x in made)]:
        assert pickle.loads(pickle.dumps(function)) == function
