"""What is installed from a wheel works as what is installed for development does."""

from __future__ import annotations

import configparser
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gpupipe

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (REPOSITORY / "pyproject.toml").exists(), reason="needs the checkout that the package is built from"
)


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd="/", env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because building writes beside the sources."""
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("build")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    kinds = ["gpupipe", "pipelines", "*.md", "LICENSE", "*.toml"]
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *kinds]
    files = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    if files.returncode:
        pytest.skip("needs a git checkout")
    for name in files.stdout.splitlines():
        if (REPOSITORY / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((REPOSITORY / name).read_bytes())
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source))
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package in it, as pip makes it."""
    target = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--disable-pip-version-check",
        "--root-user-action", "ignore", "--target", str(target), str(wheel))  # fmt: skip
    return target


def inside(installed: Path, code: str) -> str:
    """Runs code that sees the installed package, and not the checkout."""
    # -P: not the current folder. What is on PYTHONPATH goes before an editable install's own path hook.
    guard = f"import gpupipe, sys; assert gpupipe.__file__.startswith({str(installed)!r}), gpupipe.__file__\n"
    return run(sys.executable, "-P", "-W", "error", "-c", guard + code, PYTHONPATH=str(installed))


@pytest.mark.slow
def test_the_wheel_has_pipelines_inside_the_package_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"gpupipe"}
    assert "gpupipe/pipelines/imagenet.py" in names
    assert "gpupipe/py.typed" in names
    assert not any(name.startswith(("tests/", "gpupipe/tests/")) or name.endswith(".pyc") for name in names)


@pytest.mark.slow
def test_every_package_of_the_checkout_is_in_the_wheel(wheel: Path) -> None:
    """The list of packages in pyproject.toml is written by hand."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, prefix in ((REPOSITORY / "gpupipe", "gpupipe"), (REPOSITORY / "pipelines", "gpupipe/pipelines")):
        for file in folder.rglob("*.py"):
            assert f"{prefix}/{file.relative_to(folder)}" in names


@pytest.mark.slow
def test_metadata_names_the_license_the_command_and_the_version(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    name = next(n for n in archive.namelist() if n.endswith("METADATA"))
    metadata = archive.read(name).decode()
    assert f"\nVersion: {gpupipe.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "Typing :: Typed" in metadata
    assert any(n.endswith("licenses/LICENSE") for n in archive.namelist())
    scripts = configparser.ConfigParser()
    scripts.read_string(archive.read(name.replace("METADATA", "entry_points.txt")).decode())
    assert dict(scripts["console_scripts"]) == {"gpupipe": "gpupipe.cli:main"}


@pytest.mark.slow
def test_the_installed_package_works(installed: Path) -> None:
    out = inside(
        installed,
        "from gpupipe.pipelines import imagenet\n"
        "import importlib.resources as r\n"
        "assert r.files('gpupipe').joinpath('py.typed').is_file()\n"
        "for name in gpupipe.__all__: getattr(gpupipe, name)\n"
        "print(imagenet.train(64).output, len(gpupipe.__all__))",
    )
    assert out.strip() == f"Output(size=(64, 64), channels=3, dtype='float32') {len(gpupipe.__all__)}"
    assert not (installed / "pipelines").exists()


def test_extras_are_quoted_as_shells_need_it() -> None:
    """zsh takes the brackets of ``pip install gpupipe-loader[video]`` for a pattern."""
    root = Path(gpupipe.__file__).parents[1]
    files = [*root.glob("*.md"), *(root / "gpupipe").rglob("*.py"), *(root / "examples").rglob("*.py")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    commands = [line for line in lines if re.search(r"install.*gpupipe-loader\[", line)]
    assert commands
    unquoted = [line for line in commands if not re.search(r"""install.*['"][\w.-]+\[\w+(,\w+)*\]['"]""", line)]
    assert not unquoted


def test_every_module_can_be_imported_and_exports_what_it_says() -> None:
    modules = [m.name for m in pkgutil.walk_packages(gpupipe.__path__, "gpupipe.") if not m.name.endswith("__main__")]
    assert len(modules) > 30
    if importlib.util.find_spec("transformers") is None:
        modules.remove("gpupipe.integrations.transformers")  # whose callback is a subclass of its own
    for name in [*modules, "gpupipe.pipelines", "gpupipe.pipelines.imagenet"]:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            assert hasattr(module, public), f"{name}.{public}"
