"""Imports point one way, and the parts that need no torch do not load it."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
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
"""From the bottom up. A part may import its own layer and those below."""
NUMPY_CORE = {"errors", "reasons", "types", "rng", "codecs", "sources", "targets", "transforms", "formats", "planning"}
ALLOWED = {
    "av": {"codecs"},
    "nvidia": {"bench", "engines"},
    "torch": {part for layer in LAYERS for part in layer} - NUMPY_CORE,
    "torchvision": {"bench", "live"},
}
"""Packages, and the parts that may import them."""


def imports_of(*, types: bool) -> list[tuple[str, str]]:
    """Pairs of modules, of which one imports the other anywhere in its file. ``types``: also for types alone."""
    graph = grimp.build_graph("gpupipe", include_external_packages=True, exclude_type_checking_imports=not types)
    modules = sorted(m for m in graph.modules if m.startswith("gpupipe."))
    return [(m, n) for m in modules for n in sorted(graph.find_modules_directly_imported_by(m)) if n != "gpupipe"]


def violations(imports: list[tuple[str, str]]) -> list[str]:
    level = {part: number for number, layer in enumerate(LAYERS) for part in layer}
    found = []
    for module, target in imports:
        part, (package, *rest) = module.split(".")[1], target.split(".")
        if package == "gpupipe" and level[rest[0]] > level[part]:
            found.append(f"{module} imports {target}, which is above it")
        if part not in ALLOWED.get(package, level):
            found.append(f"{module} may not import {target}")
    return found


HANDS_OUT = {("gpupipe.datasets", "gpupipe.formats")}
"""Parts that hand out, lazily, what lies above them."""


def test_imports_point_one_way() -> None:
    imports = [(m, n) for m, n in imports_of(types=False) if (m, n.rpartition(".")[0]) not in HANDS_OUT]
    assert len(imports) > 1000
    assert violations(imports) == []


@pytest.mark.parametrize(
    ("module", "target", "message"),
    [
        ("rng", "gpupipe.loader.dataloader", "above"),
        ("datasets.image_list", "gpupipe.formats.zip", "above"),
        ("loader.dataloader", "nvidia", "may not"),
        ("planning.order", "torch", "may not"),
        ("translate.datasets", "torchvision", "may not"),
        ("planning.order", "numpy", ""),
        ("live.functions", "torchvision", ""),
    ],
)
def test_the_check_finds_violations(module: str, target: str, message: str) -> None:
    found = violations([(f"gpupipe.{module}", target)])
    assert len(found) == bool(message) and message in "".join(found)


def test_no_files_import_each_other() -> None:
    circles: TopologicalSorter[str] = TopologicalSorter()
    for module, target in imports_of(types=True):
        circles.add(module, target)
    circles.prepare()  # raises CycleError


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


def test_every_part_is_in_one_layer() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert sorted(part for layer in LAYERS for part in layer) == sorted(parts - {"__init__"})


def test_the_subprocess_check_can_fail() -> None:
    assert loaded_after("import sys; sys.modules['torch'] = sys") == {"torch"}


def test_public_names() -> None:
    assert gpupipe.__all__ == sorted(gpupipe.__all__)
    for name in gpupipe.__all__:
        assert getattr(gpupipe, name) is not None
    assert set(gpupipe.__all__) <= set(dir(gpupipe))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gpupipe.nothing
