"""What a script is told by ``warnings``: codes, places, filters and words."""

from __future__ import annotations

import ast
import functools
import re
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support import warned
from torch.utils.data import BatchSampler

import gpupipe
from gpupipe import DataLoader, FallbackWarning, GpupipeWarning
from gpupipe.errors import ConfigError, TranslationError
from gpupipe.interop import translate_dataset
from gpupipe.interop.same_names import UnsupportedError
from gpupipe.loader.resolve import NotNative
from gpupipe.reasons import ADVICE, Reason, sentence

PACKAGE = Path(gpupipe.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs" / "warnings.md"
CODE_AT = {"UnsupportedError": 1, "Reason": 1, "_refuse": 2}
"""By the name of what is called: the argument that is a code."""


# ---- the table of codes


def test_the_page_has_the_codes_of_the_table() -> None:
    found = re.findall(r"^### (\S+)\n\S", PAGE.read_text(), re.M)
    assert sorted(found) == sorted(ADVICE) == list(ADVICE)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in ADVICE)
    assert not any(advice[0].isupper() or advice.endswith(".") for advice in ADVICE.values())


def codes(source: str) -> Iterator[tuple[int, str]]:
    """(line, code) of each reason in a source; the code is empty if there is none."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in CODE_AT:
            at = CODE_AT[call.func.id]
            code = call.args[at] if at < len(call.args) else ast.Constant("")
            if isinstance(code, ast.Constant):
                yield call.lineno, str(code.value)
            elif "code" not in ast.unparse(code):
                yield call.lineno, ""


def test_every_reason_has_a_code_of_the_table() -> None:
    files = [
        file for room in ("datasets/index", "engines", "interop", "loader") for file in (PACKAGE / room).rglob("*.py")
    ]
    found = [(file.name, *reason) for file in files for reason in codes(file.read_text())]
    assert len(found) > 80
    assert not [it for it in found if it[-1] not in ADVICE or it[-1] == "other"]
    unused = ADVICE.keys() - {it[-1] for it in found} - {"other"}
    assert not unused


def test_a_reason_without_a_code_is_seen() -> None:
    source = "raise UnsupportedError('why')\nReason('why', 'views')\nReason('why', e.code)\nReason('a', b)"
    assert list(codes(source)) == [
        (1, ""), (2, "views"), (4, ""),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="'vews' is not a code"):
        Reason("why", "vews")
    assert (
        UnsupportedError("why").code == "other" and NotNative(["why"]).code == TranslationError("why").code == "other"
    )


def test_reasons_of_one_code_are_one_part() -> None:
    text = sentence([Reason("a", "empty"), Reason("b", "stream"), Reason("c", "empty")])
    assert text == f"(1) {ADVICE['empty']}, because a and c [empty]; (2) {ADVICE['stream']}, because b [stream]"


# ---- filters and places


class Rows(torch.utils.data.Dataset[Any]):
    """Nothing that gpupipe's engines could run."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return torch.full((2,), i)


def made(**arguments: Any) -> DataLoader:
    return DataLoader(Rows(), device="cpu", **arguments)


def test_it_says_the_code_and_points_at_the_script() -> None:
    with pytest.warns(GpupipeWarning, match=r"^DataLoader runs on torch's own loader, .*\[own-pixels\]; see") as seen:
        DataLoader(Rows(), device="cpu")
    (one,) = seen
    line = Path(__file__).read_text().splitlines()[one.lineno - 1]
    assert one.filename == __file__ and line.strip() == 'DataLoader(Rows(), device="cpu")'
    assert isinstance(one.message, FallbackWarning) and one.message.code == "own-pixels"


def test_code_of_frameworks_is_passed_over() -> None:
    """A loader that a framework makes is made at the script's line that calls the framework."""
    framework = types.ModuleType("lightning.pytorch.trainer")
    exec(compile("def fit(make):\n    return make()", "/elsewhere/trainer.py", "exec"), vars(framework))
    with pytest.warns(FallbackWarning) as seen:
        framework.fit(functools.partial(DataLoader, Rows(), device="cpu"))
    assert [one.filename for one in seen] == [__file__]


def test_an_error_if_that_is_asked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", GpupipeWarning)
        for _ in range(2):  # also the second time
            with pytest.raises(FallbackWarning, match="own-pixels"):
                made()


def test_once_for_each_place_and_reason() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default", GpupipeWarning)
        for _ in range(3):
            made()
            with warnings.catch_warnings():  # after which Python itself has forgotten what it showed
                warnings.simplefilter("ignore", DeprecationWarning)
        assert len(seen) == 1
        for batch_size in (2, None):
            DataLoader(Rows(), batch_size, device="cpu")
        assert [one.message.code for one in seen] == ["own-pixels"] * 3  # type: ignore[union-attr]
        assert "single-samples" in str(seen[2].message)


def test_nothing_if_that_is_asked_for() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore", GpupipeWarning)
        made()
        warnings.filterwarnings("ignore", r".*\[own-pixels\]", FallbackWarning)
        made()
    assert not seen


def test_every_warning_if_that_is_asked_for() -> None:
    with warned() as texts:
        for _ in range(2):
            made()
    assert len(texts) == 2


# ---- words


class Holding(torch.utils.data.Dataset[Any]):
    def __init__(self, transform: Any):
        self.transform = transform

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return self.transform(Image.new("RGB", (40, 30), (60 * i, 9, 9)))


class Both:
    """Does more than to call what it holds, and what it does needs a tensor."""

    def __init__(self, then: Any):
        from torchvision.transforms import ToTensor

        self.first, self.then = ToTensor(), then

    def __call__(self, image: Any) -> Any:
        return self.then(self.first(image))


class Batches(BatchSampler):
    pass


def _looks(x: Any) -> Any:
    return x.nonexistent


def _fails(x: Any) -> Any:
    raise ValueError(f"{object()} is no image")


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Holding(Both(torch.flatten)), device="cpu"),
        lambda: DataLoader(Holding(Both(lambda x: torch.nn.functional.pad(x, (1, 1)).sqrt())), device="cpu"),
        lambda: DataLoader(Holding(lambda image: object()), collate_fn=list, device="cpu"),
        lambda: DataLoader(Holding(Both(_looks)), device="cpu"),
        lambda: DataLoader(Holding(Both(_fails)), device="cpu"),
        lambda: DataLoader(Rows(), batch_sampler=Batches(range(4), 2, False), device="cpu"),
        lambda: DataLoader(Rows(), worker_init_fn=lambda i: None, timeout=1, num_workers=1, device="cpu"),
    ],
)
def test_no_addresses_and_nothing_from_inside(make: Any) -> None:
    pytest.importorskip("torchvision")
    with warned() as texts:
        make().close()
    (text,) = texts
    assert not re.search(r"0x[0-9a-f]{4}|StandIn|Standing|Pending|Unread|Traced|Looked|InspectionError|__main__", text)
    assert "\n" not in text


def test_errors_have_codes() -> None:
    with pytest.raises(TranslationError) as e:
        translate_dataset(Rows())
    assert e.value.code == "own-pixels" and [reason.code for reason in e.value.reasons] == ["own-pixels"]
    with pytest.raises(ConfigError, match=r"\[single-samples\]"):
        DataLoader(gpupipe.datasets.Arrays(torch.zeros(4, 8, 8, 3, dtype=torch.uint8).numpy()), None, device="cpu")
