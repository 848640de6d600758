"""What a script is told by ``warnings``: codes, places, filters and words."""

from __future__ import annotations

import ast
import functools
import re
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import warned

import gpupipe
from gpupipe import DataLoader, GpupipeWarning, Shard, datasets
from gpupipe.reasons import ADVICE, Reason, sentence

PACKAGE = Path(gpupipe.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs" / "warnings.md"
# ---- the table of codes


def test_the_page_has_the_codes_of_the_table() -> None:
    found = re.findall(r"^### (\S+)\n\S", PAGE.read_text(), re.M)
    assert sorted(found) == sorted(ADVICE) == list(ADVICE)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in ADVICE)
    assert not any(advice[0].isupper() or advice.endswith(".") for advice in ADVICE.values())


def test_every_code_is_used() -> None:
    calls = [
        ast.unparse(call.args[-1])
        for room in ("datasets/index", "engines", "loader")
        for file in (PACKAGE / room).rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Reason"
    ]
    assert {ast.literal_eval(code) for code in calls} == ADVICE.keys() - {"other"}


def test_a_reason_has_a_code_of_the_table() -> None:
    with pytest.raises(ValueError, match="'vews' is not a code"):
        Reason("why", "vews")


def test_reasons_of_one_code_are_one_part() -> None:
    text = sentence([Reason("a", "engine"), Reason("b", "read-by-torch"), Reason("c", "engine")])
    assert (
        text
        == f"(1) {ADVICE['engine']}, because a and c [engine]; (2) {ADVICE['read-by-torch']}, because b [read-by-torch]"
    )


# ---- filters and places


PIXELS = datasets.Arrays(np.zeros((4, 8, 8, 3), np.uint8))
UNEVEN: dict[str, Any] = {"device": "cpu", "global_batch_size": 3, "shard": Shard(0, 2)}


def made() -> DataLoader:
    return DataLoader(PIXELS, **UNEVEN)


def test_it_says_the_code_and_points_at_the_script() -> None:
    with pytest.warns(GpupipeWarning, match=r"^some samples count more than others: .*\[uneven-ranks\]$") as seen:
        DataLoader(PIXELS, **UNEVEN)
    (one,) = seen
    line = Path(__file__).read_text().splitlines()[one.lineno - 1]
    assert one.filename == __file__ and line.strip() == "DataLoader(PIXELS, **UNEVEN)"
    assert isinstance(one.message, GpupipeWarning) and one.message.code == "uneven-ranks"


def test_code_of_frameworks_is_passed_over() -> None:
    """A loader that a framework makes is made at the script's line that calls the framework."""
    framework = types.ModuleType("lightning.pytorch.trainer")
    exec(compile("def fit(make):\n    return make()", "/elsewhere/trainer.py", "exec"), vars(framework))
    with pytest.warns(GpupipeWarning) as seen:
        framework.fit(functools.partial(DataLoader, PIXELS, **UNEVEN))
    assert [one.filename for one in seen] == [__file__]


def test_an_error_if_that_is_asked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", GpupipeWarning)
        for _ in range(2):  # also the second time
            with pytest.raises(GpupipeWarning, match="uneven-ranks"):
                made()


def test_once_for_each_place_and_reason() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default", GpupipeWarning)
        for _ in range(3):
            made()
            with warnings.catch_warnings():  # after which Python itself has forgotten what it showed
                warnings.simplefilter("ignore", DeprecationWarning)
        assert len(seen) == 1
        DataLoader(PIXELS, **{**UNEVEN, "global_batch_size": 5, "shard": Shard(0, 3)})
        assert [one.message.code for one in seen] == ["uneven-ranks"] * 2  # type: ignore[union-attr]


def test_nothing_if_that_is_asked_for() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore", GpupipeWarning)
        made()
        warnings.filterwarnings("ignore", r".*\[uneven-ranks\]", GpupipeWarning)
        made()
    assert not seen


def test_every_warning_if_that_is_asked_for() -> None:
    with warned() as texts:
        for _ in range(2):
            made()
    assert len(texts) == 2
