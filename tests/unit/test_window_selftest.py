"""The self-test of windows: its process may crash, hang, find wrong pixels or not start, and the loader goes on."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvidia.dali")

from gpupipe.engines.dali import roi

ENDS = {
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "exit status -11", True),
    "hang": ("import time; time.sleep(60)", "no answer within 1 s", True),
    "wrong pixels": ("raise RuntimeError('window 3 differs by 90 grey levels')", "differs by 90", True),
    "no module": ("import gpupipe_is_not_there", "ModuleNotFoundError", False),
    "no memory": ("raise RuntimeError('CUDA error: out of memory')", "out of memory", False),
}
"""What the process runs, what is said of it, and whether that is a verdict for good."""


@pytest.fixture
def on_some_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roi, "_identity", lambda device: {"gpu": "some GPU", "driver": "1", "packages": ""})


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.usefixtures("on_some_gpu")
def test_a_process_that_fails_means_whole_images(
    end: str, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code, said, remembered = ENDS[end]
    monkeypatch.setattr(roi, "_SECONDS", 1 if end == "hang" else 60)
    asked: list[str] = []

    def attempt(device: str) -> tuple[bool, str]:
        asked.append(device)
        return roi._answer(code)

    monkeypatch.setattr(roi, "_try", attempt)
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert roi.roi_decoding_works("cuda:0") is False
        assert roi.roi_decoding_works("cuda:0") is False
    assert said in caplog.text and "decoding whole images" in caplog.text
    assert len(asked) == (1 if remembered else 2)
    assert len(list(cache.rglob("*.json"))) == remembered


@pytest.mark.usefixtures("on_some_gpu")
def test_a_process_that_ends_well_is_asked_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roi, "_try", lambda device: roi._answer("import gpupipe.engines.dali.roi"))
    assert roi.roi_decoding_works("cuda:0") is True
    monkeypatch.setattr(roi, "_try", lambda device: (False, "asked again"))
    assert roi.roi_decoding_works("cuda:0") is True
    (file,) = cache.rglob("*.json")
    assert json.loads(file.read_text())["gpu"] == "some GPU"


def test_the_self_test_passes_on_the_cpu_and_notices_wrong_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no GPU to be right itself: the CPU's windows are exact, and a window moved by a pixel is not."""
    from nvidia.dali import fn, math

    roi.self_test(None)
    plain = fn.decoders.image_slice

    def moved(encoded: Any, *, start: Any, shape: Any, **arguments: Any) -> Any:
        return plain(encoded, start=math.max(start - 9, 0), shape=shape, **arguments)

    monkeypatch.setattr(fn.decoders, "image_slice", moved)
    with pytest.raises(RuntimeError, match="differs by"):
        roi.self_test(None)
