"""Imports point one way, and the parts that need no torch do not load it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpupipe

PACKAGE = Path(gpupipe.__file__).resolve().parent

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "cache_folder",
        "copy_stream",
        "errors",
        "printable",
        "global_rng",
        "html",
        "imports",
        "media",
        "provided",
        "reasons",
        "rng",
        "script_warnings",
        "signal_handlers",
        "stages",
        "system",
        "types",
        "world",
    ),
    ("codecs",),
    ("sources", "targets", "transforms"),
    ("datasets",),
    ("formats", "testing"),
    ("planning", "samplers"),
    ("pack",),
    ("kernels",),
    ("reading",),
    ("engines",),
    ("translate",),
    ("live",),
    ("collate", "loader"),
    ("integrations",),
    ("memory",),
    ("parity", "bench"),
    ("demo", "show", "why"),
    ("cli", "commands"),
    ("__main__",),
)
"""From the bottom up. A part may import its own layer and those below; a module belongs to the longest name that fits.
"""
LEVEL = {tuple(part.split(".")): i for i, layer in enumerate(LAYERS) for part in layer}
NUMPY_CORE = ("errors", "reasons", "types", "rng", "codecs", "sources", "targets", "transforms", "formats", "planning")


def _level(module: tuple[str, ...]) -> int | None:
    """The layer of a module, given by its path below gpupipe."""
    return next((LEVEL[module[:n]] for n in range(len(module), 0, -1) if module[:n] in LEVEL), None)


def _is_import(node: ast.AST) -> bool:
    """Whether a node imports something: a statement, or ``import_module()`` with the name written out."""
    if isinstance(node, ast.Call):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        name = node.args[0] if node.args else None
        return (
            function in ("import_module", "__import__")
            and isinstance(name, ast.Constant)
            and isinstance(name.value, str)
        )
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _target(node: Any, module: tuple[str, ...], is_package: bool) -> list[tuple[str, ...]]:
    """The absolute modules that a node in ``module`` imports; for ``from . import x``, the names as modules."""
    if isinstance(node, ast.Call):
        name = ast.literal_eval(node.args[0])
        level = len(name) - len(name.lstrip("."))
        package = module if is_package else module[:-1]
        base = package[: len(package) - level + 1] if level else ()
        return [(*base, *name.lstrip(".").split("."))]
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
    found = []
    if _level(parts) is None:
        found.append(f"{file}: {parts[0]} is in no layer")

    def visit(node: ast.AST, lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if _is_import(child):
                for target in _target(child, module, is_package):
                    check(target, getattr(child, "lineno", 0), lazy)
            visit(child, lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    def check(target: tuple[str, ...], line: int, lazy: bool) -> None:
        name = ".".join(target)
        if target[:2] == ("nvidia", "dali") and parts[:2] != ("engines", "dali") and parts[0] != "bench":
            found.append(f"{file}:{line}: {name} outside of engines/dali")
        if target[0] == "av" and ((parts[:2] != ("codecs", "video") and parts[0] != "bench") or not lazy):
            found.append(f"{file}:{line}: {name} outside of a function of codecs/video")
        catches = lazy and parts == ("live", "functions")  # what a script has imported
        if target[0] == "torchvision" and parts[0] != "bench" and not catches:  # which compares with all three
            found.append(f"{file}:{line}: {name}; gpupipe does not need torchvision")
        if target[0] == "torch" and parts[0] in NUMPY_CORE:
            found.append(f"{file}:{line}: {name} in the numpy core")
        here, there = _level(parts), _level(target[1:]) if target[0] == "gpupipe" else None
        hands_out = str(file) == "datasets/__init__.py" and target[1:2] == ("formats",)  # lazily
        if here is not None and there is not None and there > here and not hands_out:
            found.append(f"{file}:{line}: {'.'.join(parts)} imports {name.removeprefix('gpupipe.')}, which is above it")

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
        ("rng.py", "import gpupipe.engines.base", "rng imports engines"),
        ("rng.py", "def f():\n    from gpupipe import loader", "rng imports loader"),
        ("datasets/list.py", "from ..formats.zip import Zip", "datasets.list imports formats"),
        ("datasets/__init__.py", "from ..engines import Engine", "datasets imports engines"),
        ("engines/dali/graph.py", "from ...loader import x", "engines.dali.graph imports loader"),
        ("loader/x.py", "try:\n    from nvidia import dali\nexcept ImportError:\n    pass", "outside of engines/dali"),
        ("datasets/list.py", "def f():\n    import av", "outside of a function of codecs/video"),
        ("codecs/video/decode.py", "import av", "outside of a function of codecs/video"),
        ("planning/order.py", "import torch", "torch in the numpy core"),
        ("transforms/transform.py", "def f():\n    from torch import nn", "torch.nn in the numpy core"),
        ("translate/datasets.py", "import torchvision", "does not need torchvision"),
        ("rng.py", 'import_module("gpupipe.loader")', "rng imports loader"),
        ("datasets/x.py", 'importlib.import_module("..engines.base", __name__)', "datasets.x imports engines"),
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
        ("types.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .transforms.ops import Op"),
        ("engines/dali/graph.py", "import nvidia.dali.fn\nfrom .runner import x\nfrom ...transforms import ops"),
        ("datasets/user_code.py", "import torch"),
        ("datasets/__init__.py", "def f():\n    from ..formats.zip import Zip"),
        ("codecs/video/container.py", "def f():\n    import av"),
        ("__init__.py", "from . import loader"),
    ],
)
def test_the_check_lets_pass_what_is_right(file: str, source: str) -> None:
    assert violations(source, Path(file)) == []


# ---- no circles, inside packages too


def imports_of(files: dict[str, str]) -> dict[str, set[str]]:
    """Module to the modules that it imports, anywhere in its file: at its top, in functions, for types alone.

    ``files``: path in the package to source. What a package's ``__init__`` merely hands out is imported from where it
    got it.
    """
    modules = {}
    for file in files:
        path = Path(file)
        parts = path.parent.parts if path.name == "__init__.py" else (*path.parent.parts, path.stem)
        modules[("gpupipe", *parts)] = file
    handed: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
    edges: dict[str, set[str]] = {}
    statements = {
        module: [
            target
            for node in ast.walk(ast.parse(files[file]))
            if _is_import(node)
            for target in _target(node, module, file.endswith("__init__.py"))
        ]
        for module, file in modules.items()
    }
    for module, file in modules.items():
        if file.endswith("__init__.py"):
            handed[module] = {target[-1]: target for target in statements[module]}

    def home(target: tuple[str, ...]) -> tuple[str, ...] | None:
        """The file that a target lies in."""
        for _ in range(8):
            if target in modules:
                return target
            owner, name = target[:-1], target[-1]
            if owner not in modules:
                return None
            if owner not in handed or name not in handed[owner]:
                return owner
            if handed[owner][name] == target:
                return owner
            target = handed[owner][name]
        return None

    for module, file in modules.items():
        edges[file] = set()
        for target in statements[module]:
            found = home(target)
            if found is not None and found != module:
                edges[file].add(modules[found])
    return edges


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of files that import each other (R. Tarjan, *Depth-first search and linear graph algorithms*, 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        number[file] = low[file] = len(number)
        stack.append(file)
        for other in sorted(edges.get(file, ())):
            if other not in number:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in stack:
                low[file] = min(low[file], number[other])
        if low[file] == number[file]:
            group = stack[stack.index(file) :]
            del stack[stack.index(file) :]
            if len(group) > 1:
                found.append(sorted(group))

    for file in sorted(edges):
        if file not in number:
            visit(file)
    return found


def test_no_files_import_each_other() -> None:
    files = {str(f.relative_to(PACKAGE)): f.read_text() for f in PACKAGE.rglob("*.py")}
    edges = imports_of(files)
    assert sum(map(len, edges.values())) > 300
    assert circles(edges) == []


@pytest.mark.parametrize(
    "files",
    [
        {"a/x.py": "from .y import f", "a/y.py": "from .x import g"},
        {"a/x.py": "from . import y", "a/y.py": "def f():\n    from .x import g"},
        {"a/x.py": "if T:\n    from ..b import f", "b/__init__.py": "from .z import f", "b/z.py": "import gpupipe.a.x"},
        {"a/x.py": "from . import y", "a/y.py": "def f():\n    import_module('gpupipe.a.x')"},
        {"a/x.py": "from ..b.y import f", "b/y.py": "from .z import g", "b/z.py": "from ..a.x import h"},
    ],
)  # fmt: skip
def test_the_check_finds_circles(files: dict[str, str]) -> None:
    files = {"__init__.py": "", "a/__init__.py": "", "b/__init__.py": "", **files}
    (circle,) = circles(imports_of(files))
    assert "a/x.py" in circle


def loaded_after(statement: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after a statement."""
    heavy = ("torch", "torchvision", "nvidia.dali", "av")
    code = f"{statement}\nimport sys; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.slow
def test_the_numpy_core_loads_neither_torch_nor_dali() -> None:
    core = (
        "gpupipe, gpupipe.rng, gpupipe.planning.order, gpupipe.planning.epoch, gpupipe.types, gpupipe.transforms",
        "gpupipe.datasets.folder, gpupipe.datasets.video.sampling, gpupipe.codecs.video.decode",
        "gpupipe.codecs.video.probe, gpupipe.testing.photos",
    )
    assert loaded_after(f"import {', '.join(core)}") == set()


@pytest.mark.slow
def test_dali_is_loaded_with_the_first_batch_that_it_makes(tmp_path: Path) -> None:
    """Neither by translating, nor by a loader, nor by batches of kept images and of images in memory. Long imports keep
    the garbage collector from older objects."""
    done = subprocess.run([sys.executable, "-c", _LOADERS, tmp_path], capture_output=True, text=True, check=False)
    frozen = "gpupipe.loader.dataloader, nvidia.dali.ops"
    assert done.stdout == f"loaded: torch\nfrozen: {frozen}; in the end: 0\n", done.stderr


_LOADERS = """
import gc, sys, torch, numpy as np
frozen = set()

def watch(phase, info):
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module in ("gpupipe.loader.dataloader", "nvidia.dali.ops") and frame.f_code.co_name == "<module>":
            assert gc.get_freeze_count() > 0
            frozen.add(module)
        frame = frame.f_back

gc.callbacks.append(watch)
from PIL import Image; Image.new("RGB", (40, 40)).save(sys.argv[1] + "/a.jpg")
import gpupipe.translate.datasets
from gpupipe import DataLoader, datasets, transforms as T
steps = [T.RandomResizedCrop(32), T.ToTensor()]
images = datasets.ImageList([sys.argv[1] + "/a.jpg"], [0], transform=steps)
arrays = datasets.Arrays(np.zeros((8, 8, 8, 3), np.uint8), range(8), transform=steps)
given = {"device": "cpu", "engine": "dali", "num_workers": 1}
for loader in (DataLoader(images, cache="ram", cache_bytes=1 << 20, **given), DataLoader(arrays, 4, **given)):
    assert len(list(loader)) == len(loader) and "engine: dali" in repr(loader)
loader = DataLoader(images, **given)
print("loaded:", *(m for m in ("torch", "torchvision", "nvidia.dali", "av") if m in sys.modules))
next(iter(loader))
print(f"frozen: {', '.join(sorted(frozen))}; in the end: {gc.get_freeze_count()}")
"""


def test_layers_are_folders_or_files() -> None:
    named = [part for layer in LAYERS for part in layer]
    assert len(named) == len(set(named))
    assert all((PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file() for part in named)


def test_the_subprocess_check_can_fail() -> None:
    assert loaded_after("import sys; sys.modules['torch'] = sys") == {"torch"}


def test_public_names() -> None:
    assert gpupipe.__all__ == sorted(gpupipe.__all__)
    for name in gpupipe.__all__:
        assert getattr(gpupipe, name) is not None
    assert set(gpupipe.__all__) <= set(dir(gpupipe))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gpupipe.nothing
