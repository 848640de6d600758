"""The rules of ``conftest.py`` itself: a GPU test that cannot run must not look like one that passed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from interpreter import Interpreter
from PIL import Image

from gpupipe.testing.photos import make_photos

TESTS = Path(__file__).resolve().parents[1]


def run_pytest(warm: Interpreter, *arguments: object, env: dict[str, str], cwd: Path) -> CompletedProcess[str]:
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    return warm.run("-p", "no:cacheprovider", "-p", "no:xdist", *arguments, code=code, env=env, cwd=cwd)


def run_gpu_tests(warm: Interpreter, folder: Path, require: str | None) -> str:
    """What pytest says of two tests on a machine without a GPU: one for every device, one that is marked."""
    for name in ("conftest.py", "interpreter.py", "torchvision_ops.py"):
        shutil.copy(TESTS / name, folder / name)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a CUDA device\n")
    (folder / "test_tiny.py").write_text(
        "import pytest\n"
        "def test_on(device):\n    assert device == 'cpu'\n"
        "@pytest.mark.gpu\ndef test_marked():\n    raise AssertionError\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "GPUPIPE"))}
    env["CUDA_VISIBLE_DEVICES"] = ""  # the same answer on a machine that has one
    if require is not None:
        env["GPUPIPE_REQUIRE_CUDA"] = require
    done = run_pytest(warm, "-ra", folder, env=env, cwd=folder)
    assert done.returncode == int(require == "1"), done.stdout + done.stderr
    return done.stdout


def test_without_a_gpu_tests_run_on_the_cpu_and_those_for_a_gpu_are_skipped_by_name(
    warm: Interpreter, tmp_path: Path
) -> None:
    said = run_gpu_tests(warm, tmp_path, "0")
    assert "1 passed, 1 skipped" in said and "needs a CUDA device" in said


def test_a_required_gpu_makes_them_fail(warm: Interpreter, tmp_path: Path) -> None:
    said = run_gpu_tests(warm, tmp_path, "1")
    assert "1 passed, 2 errors" in said and "GPUPIPE_REQUIRE_CUDA=1" in said


@pytest.mark.thorough
def test_what_became_of_gpu_tests_is_written_as_they_run(warm: Interpreter, tmp_path: Path) -> None:
    """Skipped ones with their reason, those that had no time by name; and what the file has of others stays."""
    file = tmp_path / "gpu_tests.json"
    file.write_text(json.dumps({"measured": {"before": 1}, "outcomes": {"tests/gpu/test_other.py::test_a": "passed"}}))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "GPUPIPE"))}
    env |= {
        "CUDA_VISIBLE_DEVICES": "",
        "GPUPIPE_MEASURED": str(file),
        "GPUPIPE_TEST_SECONDS": "0",
        "GPUPIPE_DRY_RUN": "0",
    }
    done = run_pytest(warm, "-q", "tests/gpu/test_gpu_recovery.py", env=env, cwd=TESTS.parent)
    assert done.returncode == 2, done.stdout + done.stderr
    found = json.loads(file.read_text())
    outcomes = found["outcomes"]
    assert outcomes.pop("tests/gpu/test_other.py::test_a") == "passed" and found["measured"] == {"before": 1}
    assert found["machine"]["gpus"] == [] and len(outcomes) > 20
    first, *rest = outcomes.values()
    assert first == "skipped: Skipped: needs a CUDA device" and set(rest) == {"not run"}


@pytest.mark.slow
def test_pipelines_are_found_without_installing(tmp_path: Path) -> None:
    """With the checkout on PYTHONPATH and nothing installed, as on a borrowed machine."""
    code = (
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'ditable' not in repr(f)]\n"
        "import gpupipe, importlib.util\n"
        "assert importlib.util.find_spec('gpupipe.pipelines') is None\n"
        "import conftest\n"
        "from gpupipe.pipelines import imagenet\n"
        "import gpupipe.pipelines as p\n"
        "assert p is gpupipe.pipelines and imagenet.train(8).output.size == (8, 8)\n"
        "conftest.alias_pipelines()\n"
        "assert gpupipe.pipelines is p\n"
        "print(p.__file__)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(TESTS.parent / "pipelines" / "__init__.py")


def test_photos_are_a_function_of_their_arguments(tmp_path: Path) -> None:
    a = make_photos(tmp_path / "a", classes=2, per_class=12, sizes=((40, 50), (30, 20)))
    b = make_photos(tmp_path / "b", classes=2, per_class=12, sizes=((40, 50), (30, 20)))
    other = make_photos(tmp_path / "c", classes=2, per_class=12, seed=1, sizes=((40, 50), (30, 20)))
    files = sorted(p.relative_to(a) for p in a.rglob("*.jpg"))
    assert len(files) == 24
    assert all((a / f).read_bytes() == (b / f).read_bytes() for f in files)
    assert all((a / f).read_bytes() != (other / f).read_bytes() for f in files)
    images = [Image.open(a / f) for f in files]
    assert {im.mode for im in images} == {"RGB", "L"}
    assert {im.size for im in images} == {(50, 40), (20, 30)}
    for im in images:
        im.close()
