"""Every op has all that an op must have, or says why not; and every transform has its namesake in torchvision."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("nvidia.dali")

from parity_cases import CASES, FINISH, PAGE
from parity_measure import apart, arrays, batches

from gpupipe import transforms as T
from gpupipe.engines.dali import Dali
from gpupipe.engines.dali.lowering import LOWERINGS
from gpupipe.engines.mixing import MIXES
from gpupipe.kernels import ARITHMETIC, BATCH_FORMS, FORMS
from gpupipe.kernels.apply import apply_sample, apply_tail, head_and_tail
from gpupipe.kernels.registry import FAST_FORMS
from gpupipe.parity.tolerances import TABLE, check
from gpupipe.testing.photos import photograph
from gpupipe.transforms import ops as O
from gpupipe.transforms.ops import Op
from gpupipe.transforms.ops.mixing import Mixing
from gpupipe.translate.transforms import pipeline_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
_torchvision = pytest.importorskip("_torchvision")
sys.path.pop(0)

WITHOUT: dict[str, dict[type[Op], str]] = {
    "form": {O.Views: "its branches have theirs"},
    "lowering or form for a batch": {
        O.Call: "functions take one image",
        O.Replay: "functions take one image",
        O.Views: "its branches have theirs",
    },
    "promise": {
        O.Call: "only the user knows what a function makes of a difference",
        O.Replay: "only the script knows what its calls make of a difference",
        O.Views: "its branches have theirs",
    },
    "case": {O.Call: "a function may do anything", O.Replay: "of live loaders, in tests/live"},
    "function of torchvision's": {
        O.BoxBlur: "timm's, in test_timm.py",
        O.Call: "a function may do anything",
        O.CutMix: "of whole batches, in test_batch_transforms.py",
        O.Mix: "its branches have theirs, in test_policy_parity.py",
        O.MixUp: "of whole batches, in test_batch_transforms.py",
        O.Replay: "it calls them",
        O.SolarizeAdd: "timm's, in test_timm.py",
        O.Views: "its branches have theirs",
    },
}
"""What some ops do not have, and why, or where it is instead."""


def within(ops: Any) -> Iterator[type[Op]]:
    """The ops of a pipeline, those within others too."""
    for op in ops:
        yield type(op)
        for branch in op.branches:
            yield from within(branch)


@cache
def ops_of(case: str) -> tuple[type[Op], ...]:
    made = CASES[case]()
    return tuple(within((*made.skeleton, *made.mixing)))


def in_cases(op: type[Op]) -> list[str]:
    """The cases of parity that an op is in."""
    return [case for case in CASES if op in ops_of(case)]


def has(op: type[Op]) -> dict[str, bool]:
    mixed = op in MIXES
    return {
        "form": mixed or op in FORMS or op in BATCH_FORMS or op in ARITHMETIC,
        "lowering or form for a batch": mixed or op in LOWERINGS or op in BATCH_FORMS,
        "promise": bool(op.PROMISES) and all(TABLE[row.key] is row for row in op.PROMISES),
        "case": bool(in_cases(op)),
        "function of torchvision's": op in _torchvision.FUNCTIONS,
    }


def wrong(op: type[Op]) -> list[str]:
    """What an op lacks without a reason, or has though it has a reason to lack it."""
    return [f"{op.__name__}: {what}" for what, there in has(op).items() if there == (op in WITHOUT[what])]


@pytest.mark.parametrize("op", O.OPS)
def test_every_op_is_complete(op: type[Op]) -> None:
    assert wrong(op) == []


@pytest.mark.parametrize(
    ("what", "registries"),
    [
        ("form", [FORMS, BATCH_FORMS]),
        ("lowering or form for a batch", [LOWERINGS, BATCH_FORMS]),
        ("case", [CASES]),
        ("function of torchvision's", [_torchvision.FUNCTIONS]),
    ],
)
def test_what_is_taken_out_is_missed(what: str, registries: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong(O.Flip) == []
    for registry in registries:
        for key in in_cases(O.Flip) if registry is CASES else [O.Flip]:
            monkeypatch.delitem(registry, key)
    assert wrong(O.Flip) == [f"Flip: {what}"]


def test_a_missing_promise_and_a_reason_that_is_none_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(O.Invert, "PROMISES", ())
    assert wrong(O.Invert) == ["Invert: promise"]
    monkeypatch.setitem(WITHOUT["form"], O.Flip, "it has one")
    assert wrong(O.Flip) == ["Flip: form"]


def test_nothing_is_registered_that_is_no_op() -> None:
    assert {*FORMS, *BATCH_FORMS, *ARITHMETIC, *FAST_FORMS, *LOWERINGS, *MIXES, *_torchvision.FUNCTIONS} <= {*O.OPS}
    assert len({op.__name__ for op in O.OPS}) == len(O.OPS)
    assert {op for op in O.OPS if issubclass(op, Mixing)} == {*MIXES}


def test_what_moves_pixels_says_so() -> None:
    moves = {op.__name__ for op in O.OPS if op.geometric is True}  # type: ignore[comparison-overlap]
    assert moves == {"Crop", "Resize", "Flip", "Warp", "Perspective", "Call", "Replay"}
    (mix,) = T.Compose([T.AugMix()]).skeleton
    (views,) = T.Compose([T.MultiView(T.CenterCrop(9), 2)]).skeleton
    (bright,) = T.Compose([T.ColorJitter(0.3)]).skeleton
    assert mix.geometric and views.geometric and not bright.geometric
    assert bright.sendable and not T.Compose([lambda image: image]).skeleton[0].sendable


# ---- transforms

NAMES = [name for name in T.__all__ if issubclass(getattr(T, name), T.Transform) and name != "Transform"]
OURS_ALONE = {
    "FixedSizeCrop": "torchvision's detection reference has it",
    "MultiView": "torchvision has no form for several views of one image; recipes write it anew",
    "PILGaussianBlur": "scripts call Pillow for it",
    "ResizeToBucket": "torchvision has no batches of different shapes",
    "ResizeToPatches": "timm's NaFlex has the size",
    "SmartResize": "Qwen2-VL has it",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_transform_has_its_namesake_in_torchvision(name: str) -> None:
    v1, v2 = (pytest.importorskip(f"torchvision.transforms{which}") for which in ("", ".v2"))
    assert (hasattr(v1, name) or hasattr(v2, name)) != (name in OURS_ALONE)


def theirs(ours: T.Transform) -> Any:
    """torchvision's transform with the values of ours, by name."""
    v2 = pytest.importorskip("torchvision.transforms.v2")
    cls = getattr(v2, type(ours).__name__)
    values = {name: getattr(ours, name) for name in inspect.signature(cls).parameters if hasattr(ours, name)}
    if "policy" in values:
        values["policy"] = v2.AutoAugmentPolicy(values["policy"])
    if "interpolation" in values:  # only the newest torchvision takes texts
        values["interpolation"] = v2.InterpolationMode(values["interpolation"])
    if "dtype" in values:
        values["dtype"] = getattr(torch, values["dtype"])
    return cls(**values)


@pytest.mark.parametrize("name", PAGE)
def test_there_and_back_again(name: str) -> None:
    """Ours, as torchvision's, as ours."""
    assert list(pipeline_of([theirs(t) for t in PAGE[name]])) == list(PAGE[name])


# ---- what they do


@pytest.mark.part(of=3)
@pytest.mark.parametrize("kind", ["pil", "tensor"])
@pytest.mark.parametrize("name", PAGE)
def test_the_reference_does_what_torchvision_does(name: str, kind: str) -> None:
    """Every transform of the page with the numbers of a plan, against torchvision's functions, in every bit."""
    steps = PAGE[name]
    on_tensors = steps[: len(FINISH)] == FINISH
    if on_tensors and kind == "pil":
        pytest.skip("it takes tensors")
    pictures = [photograph(240, 260, i) for i in range(2)]
    pipeline = T.Compose(steps if on_tensors or kind == "pil" else [T.ToImage(), *steps])
    sizes = np.array([p.shape[:2] for p in pictures])
    ops = pipeline.resolve(1, 0, np.arange(2, dtype=np.uint64), sizes).ops
    head, tail = head_and_tail(ops)
    for i, picture in enumerate(pictures):
        given = torch.from_numpy(picture.copy()).permute(2, 0, 1) if kind == "tensor" else Image.fromarray(picture)
        try:
            want = _torchvision.apply(given, ops, i)
        except _torchvision.Unknown as e:
            pytest.skip(f"torchvision has no function that takes the numbers of {e}")
        mine = tuple(op.take(slice(i, i + 1)) for op in tail)
        made = np.array(apply_sample(Image.fromarray(picture), head, i))
        got = apply_tail(torch.from_numpy(made)[None], mine)[0]
        want = want if isinstance(want, torch.Tensor) else torch.from_numpy(np.array(want)).permute(2, 0, 1)
        assert torch.equal(got, want.as_subclass(torch.Tensor)), i


@pytest.mark.part(of=3)
@pytest.mark.parametrize("op", [op for op in O.OPS if op not in WITHOUT["case"]])
def test_dali_keeps_the_promise_of_every_op(op: type[Op]) -> None:
    """One case of it each; its numbers are those of the CPU, in gray levels."""
    case = min(in_cases(op), key=lambda name: len(ops_of(name)))
    dataset = arrays("photographs", CASES[case], 6)
    want = batches(dataset, "torch", "cpu")
    for engine, where in (("dali", "cpu"), (Dali(graph="whole"), "graph")):
        found = apart(dataset, batches(dataset, engine, "cpu"), want)
        assert found.images >= 6
        if not any(isinstance(o, O.Views) for o in dataset.transform.skeleton):
            assert check("dali/torch", dataset.transform, found, where) == []
