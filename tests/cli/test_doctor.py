"""What the doctor says of installations that work, and of made-up ones that do not."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpupipe.cli import app
from gpupipe.commands import doctor
from gpupipe.commands.findings import Installed, examine
from gpupipe.commands.selfcheck import self_check

HEALTHY = Installed(
    wheels=("nvidia-dali-cuda130",),
    dali="2.4.0",
    dali_error=None,
    driver="580.10",
    torch_cuda="13.0",
    gpus=("NVIDIA H200, 139 GiB",),
    shm_bytes=8 << 30,
    cores=16,
    quota=None,
    cache_error=None,
)


def test_a_healthy_machine_has_no_findings() -> None:
    assert examine(HEALTHY) == []
    assert examine(replace(HEALTHY, quota=15.75)) == [], "a part of a core is left to others"


@pytest.mark.parametrize(
    ("changes", "level", "what", "do"),
    [
        (
            {"wheels": ("nvidia-dali-cuda120", "nvidia-dali-cuda130")},
            "wrong",
            "installed at once",
            "pip uninstall -y nvidia-dali-cuda120 nvidia-dali-cuda130 && pip install nvidia-dali-cuda130",
        ),
        (
            {"wheels": ("nvidia-dali-cuda120", "nvidia-dali-cuda130"), "torch_cuda": "12.8"},
            "wrong",
            "installed at once",
            "&& pip install nvidia-dali-cuda120",
        ),
        ({"dali": None, "dali_error": "OSError: libcuda"}, "wrong", "cannot be imported: OSError", "--force-reinstall"),
        ({"dali": "1.50.0"}, "wrong", "older than 2.4", "pip install -U nvidia-dali-cuda130"),
        ({"dali": None, "wheels": ()}, "note", "DALI is not installed", "pip install nvidia-dali-cuda120"),
        ({"torch_cuda": None, "gpus": ()}, "wrong", "built for the CPU only", "install torch for CUDA"),
        ({"gpus": ()}, "wrong", "sees no GPU", "CUDA_VISIBLE_DEVICES"),
        ({"gpus": (), "driver": None}, "note", "there is no GPU", "nothing"),
        ({"shm_bytes": 64 << 20}, "note", "/dev/shm has 67.1 MB", "--shm-size"),
        ({"quota": 4.0}, "note", "may use only 4 of them", "num_workers=4"),
        ({"temp_error": "No space left on device"}, "wrong", "No space left on device", "TMPDIR"),
        ({"cache_error": "Permission denied"}, "note", "is not writable: Permission denied", "GPUPIPE_CACHE"),
    ],
)
def test_every_finding_says_what_to_do(changes: dict[str, object], level: str, what: str, do: str) -> None:
    (found,) = examine(replace(HEALTHY, **changes))  # type: ignore[arg-type]
    assert found.level == level and what in found.what and do in found.do


def test_without_a_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor"])
    assert result.exit_code == 1, result.output
    assert "no folder for temporary files is writable: No such file" in result.output
    assert "left out" in result.output


def test_the_installed_version_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The distribution has another name than the package."""
    (tmp_path / "METADATA").write_text("Name: gpupipe-loader\nVersion: 1.2.3\n")
    monkeypatch.setattr(metadata, "distributions", lambda: [metadata.PathDistribution(tmp_path)])
    assert dict(doctor._software(HEALTHY))["gpupipe"] == "1.2.3"


def test_this_machine() -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    for text in ("torch", "DALI", "libjpeg-turbo", "cores usable", "/dev/shm", "engine=auto", "works: "):
        assert text in result.output


def test_what_is_wrong_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = replace(HEALTHY, wheels=("nvidia-dali-cuda120", "nvidia-dali-cuda130"))
    monkeypatch.setattr(doctor, "look", lambda: twice)
    monkeypatch.setattr(doctor, "self_check", lambda cuda, dali_works: ([], []))
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "wrong" in result.output and "pip uninstall -y" in result.output


def test_an_engine_that_dies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpupipe.parity import compare

    def dies(*arguments: object, **options: object) -> None:
        raise OSError("libnvjpeg.so: not found")

    monkeypatch.setattr(compare, "compare", dies)
    lines, broken = self_check(cuda=False, dali_works=True)
    assert dict(lines)["DALI"] == "fails: OSError: libnvjpeg.so: not found"
    assert [f.level for f in broken] == ["wrong"]
