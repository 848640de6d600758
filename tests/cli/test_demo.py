"""``gpupipe demo``: what it shows, and that it fails if something is not as promised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import error, gpupipe

from gpupipe import DataLoader
from gpupipe.datasets import ImageFolder
from gpupipe.demo import checks as demo_checks, run as demo_module
from gpupipe.demo.run import photographs
from gpupipe.testing.photos import make_photos


@pytest.mark.slow
def test_demo_trains_twice_and_reports(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    text = gpupipe("demo", photos, "--epochs", 2, "--out", out, "--device", "cpu").stdout
    assert "29 images of 3 classes to train, 7 held out" in text and "the two losses differ by at most" in text
    assert "cut_off.jpg is reported as truncated" in text and "bit-identical" in text and "times as fast" in text
    assert f"gpupipe bench imagenet.train {photos}" in " ".join(text.split())
    page = (out / "index.html").read_text()
    assert "<svg" in page and "data:image/png;base64," in page and "held out" in page and "bit-identical" in page
    assert "http://" not in page and "https://" not in page and "<script" not in page
    result = json.loads((out / "result.json").read_text())
    dali, reference = result["training"]["dali"], result["training"]["torch"]
    assert len(dali) == len(reference) == 2
    assert dali[0]["losses"][0] == pytest.approx(reference[0]["losses"][0], abs=0.02)
    assert result["pixels"]["ok"] is True
    assert result["bad_file"]["kind"] == "truncated" and result["bad_file"]["replaced"] is True
    assert result["resume"]["equal"] is True and result["resume"]["step"] < result["resume"]["steps"]
    assert "memory gb" in page and "memory_gb" not in page and "the two losses differ by at most" in page
    assert page.count('class="whole"') <= 1
    assert set(result["speed"]["candidates"]) == {"dali", result["speed"]["baseline"]}


@pytest.mark.thorough
def test_demo_without_dali_runs_the_reference_alone(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_module, "installed", lambda: False)
    monkeypatch.setattr(demo_checks, "_SECONDS", 0.01)
    text = gpupipe("demo", photos, "--epochs", 1, "--out", tmp_path / "report", "--device", "cpu").stdout
    assert "DALI is not installed, so the reference ran alone" in text
    assert "DALI is not installed, so there is nothing to compare" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.thorough
def test_demo_fails_if_a_resumed_epoch_has_other_bits(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_module, "installed", lambda: False)
    monkeypatch.setattr(demo_checks, "_SECONDS", 0.01)
    monkeypatch.setattr(DataLoader, "load_state_dict", lambda self, state: None)
    text = gpupipe("demo", photos, "--epochs", 1, "--out", tmp_path / "report", "--device", "cpu", code=1).stdout
    assert "✗ resume" in text and "with other bits" in text
    assert "with other bits" in (tmp_path / "report" / "index.html").read_text()


def test_demo_makes_its_photographs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path))
    said: list[str] = []
    folder = photographs(2, 0, said.append, ((20, 30),))
    made = ImageFolder(folder)
    assert len(made.classes) == 4 and len(made) == 8 and not made.bad(range(8))
    assert photographs(2, 0, said.append, ((20, 30),)) == folder and len(said) == 1
    assert photographs(2, 1, said.append, ((20, 30),)) != folder and len(said) == 2


def test_demo_says_what_is_wrong_with_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert "this is a file; name a folder" in error("demo", "--out", tmp_path / "file")
    with monkeypatch.context() as patch:
        patch.setattr("gpupipe.commands.demo.run_demo", lambda *_, **__: pytest.fail("it has begun"))
        assert "its folder cannot be created" in error("demo", "--out", tmp_path / "file" / "report")
    make_photos(tmp_path / "few", classes=2, per_class=1, sizes=((20, 20),))
    assert "needs at least 5" in error("demo", tmp_path / "few", "--out", tmp_path / "report")
