"""The witness is alive: plans are those of its file, and it tells a change from a renaming."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import witness
from witness_parts.compare import differences
from witness_parts.file import Record, merged, read, written
from witness_parts.marks import batch_marks, form_of, plan_marks

import gpupipe
from gpupipe import Plan

SUBSET = ("recipe/", "plan/", "transform/R", "medium/[!t]", "order/", "ranks/", "bad/skip", "bad/replace")
"""Of the null engine: plans, which are the same on every machine."""


@pytest.fixture(scope="module")
def file() -> Record:
    return read(witness.FILE)


@pytest.mark.slow
@pytest.mark.part(of=4)
@pytest.mark.parametrize("only", SUBSET)
def test_plans_are_those_of_the_file(only: str, file: Record, tmp_path: Path) -> None:
    now = witness.look(tmp_path, only, {"null"})
    assert not now["skipped"]
    assert sum("null" in seen for seen in now["cases"].values()) >= 3
    lines, _ = differences(file, now, only)
    assert not lines, "\n".join(["python tests/witness.py says more:", *lines])


def test_only_what_users_call_is_called() -> None:
    """Or the witness could not stay as it is while the inside is moved."""
    allowed = {f"gpupipe.{name}" for name in gpupipe.__all__} | {"gpupipe"}
    taken = set()
    for path in [witness.FILE.with_suffix(".py"), *(witness.FILE.parent / "witness_parts").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                taken |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                taken |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name for name in taken if name.partition(".")[0] == "gpupipe"}
    assert len(ours) > 5
    assert {name for name in ours - allowed if not name.startswith("gpupipe.pipelines.")} == set()


# ---- what a checksum notices


@dataclass(frozen=True, eq=False)
class Turn:
    mask: Any
    angle: Any
    mode: str = "nearest"
    branches: tuple[Any, ...] = ()


MASK = np.array([True, False])
ANGLE = np.array([0.1, 0.2])
PLAN = Plan(3, 0, 1, np.arange(2), np.arange(2, dtype=np.uint64), 2, 2, np.full((2, 2), 9, np.int32), ())


def marks(*ops: Any) -> dict[str, str]:
    return plan_marks(replace(PLAN, ops=ops))


def changed(*ops: Any) -> set[str]:
    """The parts that differ from those of one ``Turn``."""
    was, now = marks(Turn(MASK, ANGLE)), marks(*ops)
    return {part for part in was if was[part] != now[part]}


def test_values_count_each_in_its_part() -> None:
    assert changed(Turn(MASK, ANGLE, "bilinear")) == {"settings"}
    assert changed(Turn(~MASK, ANGLE)) == {"numbers", "bits"}
    assert changed(Turn(MASK, ANGLE + 1e-5)) == {"numbers", "bits"}
    assert changed(Turn(MASK, np.nextafter(ANGLE, 1))) == {"bits"}
    assert changed(Turn(MASK, ANGLE.astype(np.float32))) == {"numbers", "bits"}
    assert changed(Turn(MASK, ANGLE), Turn(MASK, ANGLE)) == {"numbers", "settings", "bits"}
    assert changed(Turn(MASK, ANGLE, branches=((Turn(MASK, ANGLE),),))) == {"numbers", "settings", "bits"}
    outer, inner = Turn(MASK, ANGLE), Turn(~MASK, ANGLE)
    assert marks(outer, inner) != marks(inner, outer)
    assert marks(replace(outer, branches=((inner,),))) != marks(replace(inner, branches=((outer,),)))


def test_columns_of_a_plan_count() -> None:
    was = plan_marks(PLAN)
    other: dict[str, dict[str, Any]] = {
        "order": {"keys": np.arange(1, 3, dtype=np.uint64)},
        "sizes": {"sizes": np.full((2, 2), 8, np.int32)},
        "frames": {"frames": np.zeros((2, 3), np.int64)},
    }
    for part, columns in other.items():
        now = plan_marks(replace(PLAN, **columns))
        assert {k for k in was if was[k] != now[k]} == {part}
    numbers: list[dict[str, Any]] = [{"seed": 7}, {"epoch": 7}, {"step": 7}, {"consumed": 7}, {"valid": 1}]
    for columns in numbers:
        assert plan_marks(replace(PLAN, **columns))["order"] != was["order"]


def test_bytes_and_forms_of_batches() -> None:
    x = torch.arange(24.0).reshape(2, 3, 2, 2)
    nhwc = x.contiguous(memory_format=torch.channels_last)
    assert batch_marks([x]) == batch_marks((nhwc,)) != batch_marks(x + 1)
    assert form_of([x, nhwc.half()], 2) == "list(f32[B,3,2,2], f16[B,3,2,2] channels_last)"
    assert form_of((x, x)) == "tuple(f32[2,3,2,2] × 2)"
    assert form_of({"b": x[:, :, 0], "a": 3}, 2) == "{a: int, b: f32[B,3,2] strides 12,4,1}"
    assert batch_marks({"a": x, "b": "1"}) != batch_marks({"a": x, "b": "2"})
    assert batch_marks(x.bfloat16()) != batch_marks(x)


# ---- what a comparison says


def record(**engines: dict[str, str]) -> Record:
    return {"machine": {"cpu": "x"}, "fields": {}, "skipped": {}, "engines": None, "cases": {"some": engines}}


def test_what_differs_is_named() -> None:
    was = record(null={"numbers": "aa bb / cc dd"}, dali={"images": "ee ff / gg hh", "state": "epoch=1"})
    now = copy.deepcopy(was)
    assert differences(was, now) == ([], [])
    now["cases"]["some"] = {
        "null": {"numbers": "aa xx / cc dd"},
        "dali": {"images": "ee ff / gg", "state": "epoch=2"},
        "torch": {"images": "ee"},
    }
    now["cases"]["other"] = {}
    assert differences(was, now)[0] == [
        "some, null: epoch 0: numbers of step 1",
        "some, dali: epoch 1: images of steps none (2 steps, now 1)",
        "some, dali: state was 'epoch=1', is 'epoch=2'",
        "some, torch: is new; write it down with --write --only",
        "other: is new; write it down with --write --only",
    ]
    gone = record(null=was["cases"]["some"]["null"])
    assert differences(was, gone)[0] == ["some, dali: is not looked at any more"]
    assert differences(was, {**gone, "engines": {"null"}})[0] == []
    assert differences(was, {**now, "cases": {}})[0] == ["some: is not looked at any more"]
    failed = record(null={"failed": "KeyError: 3"}, dali={"refused": "PipelineError"})
    assert differences(was, failed)[0] == ["some, null: failed KeyError: 3", "some, dali: refused PipelineError"]


def test_pixels_of_another_machine_are_not_compared_and_plans_are() -> None:
    was = record(null={"numbers": "aa", "bits": "bb"}, dali={"images": "ee", "target": "tt", "form": "f"})
    now = record(null={"numbers": "aa", "bits": "cc"}, dali={"images": "xx", "target": "tt", "form": "f"})
    assert len(differences(was, now)[0]) == 2
    now["machine"] = {"cpu": "y"}
    lines, notes = differences(was, now)
    assert lines == []
    assert "not comparable: pixels" in notes[0] and "cpu: x there, y here" in notes[1] and "1 of 3" in notes[2]
    now["cases"]["some"]["null"]["numbers"] = "zz"
    assert differences(was, now)[0] == ["some, null: epoch 0: numbers of step 0"]


def test_the_file_can_be_read_again_and_written_in_parts(tmp_path: Path, file: Record) -> None:
    path = tmp_path / "witness.json"
    path.write_text(written(file))
    assert read(path) == file
    assert path.read_text() == witness.FILE.read_text()
    name = next(iter(file["cases"]))
    now = {**file, "cases": {name: {"null": {"numbers": "aa"}}}}
    both = merged(file, now, file["cases"])
    assert list(both["cases"]) == list(file["cases"]) and both["cases"][name] == {"null": {"numbers": "aa"}}
    assert set(merged(file, now, [name])["cases"]) == {name}
