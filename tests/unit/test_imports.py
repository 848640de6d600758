"""Imports point one way, and the parts that need no torch do not load it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gpupipe

PACKAGE = Path(gpupipe.__file__).resolve().parent

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "host", "types"),
    ("rng", "order", "transforms"),
    ("datasets", "planning", "policy"),
    ("engines", "staging"),
    ("loader", "arguments", "budget", "iteration", "memory", "report", "state"),
    ("interop", "bench"),
    ("cli", "commands"),
)
"""From the bottom up. A part may import its own layer and those below."""
LAZY = {("loader", "interop"), ("arguments", "interop")}
"""What may be imported the other way, inside a function: a drop-in loader translates torchvision's datasets."""
LEVEL = {part: i for i, layer in enumerate(LAYERS) for part in layer}


def _target(node: ast.Import | ast.ImportFrom, module: tuple[str, ...], is_package: bool) -> list[tuple[str, ...]]:
    """The absolute modules of an import statement in ``module``; of ``from . import x`` the names as modules."""
    if isinstance(node, ast.Import):
        return [tuple(alias.name.split(".")) for alias in node.names]
    if node.level == 0:
        base = tuple((node.module or "").split("."))
    else:
        package = module if is_package else module[:-1]
        base = package[: len(package) - node.level + 1] + tuple((node.module or "").split(".") if node.module else ())
    return [(*base, alias.name) for alias in node.names]


def violations(source: str, file: Path) -> list[str]:
    """What a file, given by its path in the package, imports against the rules."""
    is_package = file.name == "__init__.py"
    parts = file.parent.parts if is_package else (*file.parent.parts, file.stem)
    module = ("gpupipe", *parts)
    if len(module) == 1:
        return []  # gpupipe/__init__.py hands out every part, lazily
    part = parts[0]
    found = []
    if part not in LEVEL:
        found.append(f"{file}: {part} is in no layer")

    def visit(node: ast.AST, lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                for target in _target(child, module, is_package):
                    check(target, child.lineno, lazy)
            visit(child, lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    def check(target: tuple[str, ...], line: int, lazy: bool) -> None:
        name = ".".join(target)
        if target[:2] == ("nvidia", "dali") and parts[:2] != ("engines", "dali"):
            found.append(f"{file}:{line}: {name} outside of engines/dali")
        if target[0] == "av" and (parts[:2] != ("datasets", "video") or not lazy):
            found.append(f"{file}:{line}: {name} outside of a function of datasets/video")
        if target[0] == "torchvision":
            found.append(f"{file}:{line}: {name}; gpupipe does not need torchvision")
        if target[0] == "torch" and part in ("errors", "types", "rng", "order", "transforms", "planning"):
            found.append(f"{file}:{line}: {name} in the numpy core")
        if target[0] == "gpupipe" and len(target) > 1 and target[1] in LEVEL and part in LEVEL:
            allowed = lazy and (part, target[1]) in LAZY
            if LEVEL[target[1]] > LEVEL[part] and not allowed:
                found.append(f"{file}:{line}: {part} imports {target[1]}, which is above it")

    visit(ast.parse(source), lazy=False)
    return found


def test_imports_point_one_way() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 20
    found = [v for f in files for v in violations(f.read_text(), f.relative_to(PACKAGE))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("rng.py", "from .loader import DataLoader", "rng imports loader"),
        ("rng.py", "from . import loader", "rng imports loader"),
        ("rng.py", "import gpupipe.engines.base", "rng imports engines"),
        ("rng.py", "def f():\n    from gpupipe import loader", "rng imports loader"),
        ("datasets/list.py", "from ..engines.base import Engine", "datasets imports engines"),
        ("datasets/__init__.py", "from ..engines import Engine", "datasets imports engines"),
        ("engines/dali/graph.py", "from ...loader import x", "engines imports loader"),
        ("loader.py", "from .interop import x", "loader imports interop"),
        ("loader.py", "def f():\n    from .bench import x", "loader imports bench"),
        ("state.py", "def f():\n    from .interop import x", "state imports interop"),
        ("loader.py", "try:\n    from nvidia import dali\nexcept ImportError:\n    pass", "outside of engines/dali"),
        ("engines/torch/apply.py", "def f():\n    import nvidia.dali.fn as fn", "outside of engines/dali"),
        ("datasets/list.py", "def f():\n    import av", "outside of a function of datasets/video"),
        ("datasets/video/decode.py", "import av", "outside of a function of datasets/video"),
        ("order.py", "import torch", "torch in the numpy core"),
        ("transforms/base.py", "def f():\n    from torch import nn", "torch.nn in the numpy core"),
        ("interop/datasets.py", "import torchvision", "does not need torchvision"),
        ("thing.py", "", "thing is in no layer"),
    ],
)
def test_the_check_finds_violations(file: str, source: str, message: str) -> None:
    found = violations(source, Path(file))
    assert len(found) == 1 and message in found[0], found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("rng.py", "import numpy\nfrom .errors import ConfigError"),
        ("loader.py", "def f():\n    from .interop import translate_dataset"),
        ("types.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .transforms.ops import Op"),
        ("engines/dali/graph.py", "import nvidia.dali.fn\nfrom .lower import x\nfrom ...transforms import ops"),
        ("cli.py", "from . import loader, bench, interop"),
        ("datasets/torch.py", "import torch"),
        ("datasets/video/container.py", "def f():\n    import av"),
        ("__init__.py", "from . import loader"),
    ],
)
def test_the_check_lets_pass_what_is_right(file: str, source: str) -> None:
    assert violations(source, Path(file)) == []


def loaded_after(statement: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after a statement."""
    heavy = ("torch", "torchvision", "nvidia.dali", "av")
    code = f"{statement}; import sys; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import gpupipe",
        "import gpupipe.rng, gpupipe.order, gpupipe.planning, gpupipe.types, gpupipe.errors, gpupipe.transforms",
        "import gpupipe.datasets",
        "import gpupipe.datasets.video.decode, gpupipe.datasets.video.sampling, gpupipe.datasets.video.probe",
        "import gpupipe.bench.photos",
    ],
)
def test_the_numpy_core_loads_neither_torch_nor_dali(statement: str) -> None:
    assert loaded_after(statement) == set()


def test_interop_does_not_load_torchvision_or_dali() -> None:
    assert loaded_after("import gpupipe.interop") <= {"torch"}


def test_the_subprocess_check_can_fail() -> None:
    assert loaded_after("import torch") == {"torch"}


def test_public_names() -> None:
    assert gpupipe.__all__ == sorted(gpupipe.__all__)
    for name in gpupipe.__all__:
        assert getattr(gpupipe, name) is not None
    assert set(gpupipe.__all__) <= set(dir(gpupipe))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gpupipe.nothing
