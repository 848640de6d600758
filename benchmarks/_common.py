"""What every benchmark needs: the checkout on the path, pictures, facts, memory and CPU time of a process tree, JSON.

Importing this module makes ``import gpupipe.pipelines`` work from a checkout that is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "results"
"""Results in the repository."""
RESULTS = Path(os.environ.get("GPUPIPE_BENCH_RESULTS", KEPT))
IMAGES = ROOT.parent / "shared" / "data" / "images"


def _use_checkout() -> None:
    if importlib.util.find_spec("gpupipe") is None:
        sys.path.insert(0, str(ROOT))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    if importlib.util.find_spec("gpupipe.pipelines") is None:
        # pipelines/ becomes gpupipe.pipelines when it is installed, and only then.
        folder = ROOT / "pipelines"
        spec = importlib.util.spec_from_file_location(
            "gpupipe.pipelines", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["gpupipe.pipelines"] = module
        spec.loader.exec_module(module)
        sys.modules["gpupipe"].pipelines = module  # type: ignore[attr-defined]
    sys.path.append(str(ROOT / "tests"))  # with the writers and cases that tests and benchmarks share


_use_checkout()


def import_torchvision() -> Any:
    """torchvision, also if its compiled operators are for another build of torch."""
    from torchvision_ops import define_missing_operators

    define_missing_operators()
    return importlib.import_module("torchvision")


# ---- pictures


_SIZES = (*[(375, 500)] * 4, (333, 500), (500, 375), (500, 333), (768, 1024))
"""(height, width). The large one makes the average that of ImageNet."""


def _some_photos(arguments: tuple[str, int]) -> None:
    from PIL import Image

    from gpupipe.testing.photos import photograph

    folder, seed = arguments
    for i in range(32):
        kind, (height, width) = i % 4, _SIZES[i % 8]
        path = Path(folder, f"class{kind:02d}", f"photo{i:04d}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        chroma = "4:2:0" if i // 8 == 3 else "4:4:4"
        Image.fromarray(photograph(height, width, 32 * seed + i, kind=kind)).save(path, quality=94, subsampling=chroma)


def generate_photos(root: Path, count: int) -> Path:
    """About ``count`` photographs like ImageNet's under ``root``, made with all cores.

    They have 0.26 megapixels and 120 kB on average, and three of four have full color resolution (4:4:4).
    """
    jobs = [(str(root / f"part{i:03d}"), i) for i in range(-(-count // 32))]
    with multiprocessing.get_context("spawn").Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        pool.map(_some_photos, jobs)
    return root


@contextlib.contextmanager
def photographs(folder: Path | None, *, count: int, ram: bool = False) -> Iterator[list[str]]:
    """Paths of the JPEG files in ``folder``, or of generated ones where it is ``None``; they are removed at the end.

    ``ram`` copies them to /dev/shm first, so that no disk is measured.
    """
    shm = "/dev/shm" if ram and os.path.isdir("/dev/shm") else None
    made: Path | None = None
    try:
        if folder is None:
            made = Path(tempfile.mkdtemp(prefix="gpupipe-bench-", dir=shm))
            folder = generate_photos(made, count)
        elif shm is not None:
            made = Path(tempfile.mkdtemp(prefix="gpupipe-bench-", dir=shm))
            shutil.copytree(folder, made / "copy")
            folder = made / "copy"
        paths = sorted(str(p) for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
        if not paths:
            raise SystemExit(f"{folder} has no .jpg or .jpeg files")
        yield paths
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)  # a folder of our own, made above


def _recode(arguments: tuple[str, str, str]) -> None:
    from PIL import Image

    source, target, chroma = arguments
    with Image.open(source) as image:
        image.convert("RGB").save(target, quality=90, subsampling=chroma)


@contextlib.contextmanager
def recoded(paths: Sequence[str], chroma: Sequence[str], *, ram: bool = False) -> Iterator[dict[str, tuple[str, ...]]]:
    """Copy photographs as color JPEGs of quality 90, once for each subsampling of chroma (``"4:2:0"``), until the
    end."""
    made = tempfile.mkdtemp(prefix="gpupipe-bench-", dir="/dev/shm" if ram and os.path.isdir("/dev/shm") else None)
    try:
        found: dict[str, tuple[str, ...]] = {}
        jobs: list[tuple[str, str, str]] = []
        for kind in chroma:
            folder = Path(made, kind.replace(":", ""))
            folder.mkdir()
            found[kind] = tuple(str(folder / f"{i:06d}.jpg") for i in range(len(paths)))
            jobs += zip(paths, found[kind], [kind] * len(paths), strict=True)
        with multiprocessing.get_context("spawn").Pool(min(16, os.cpu_count() or 1)) as pool:
            pool.map(_recode, jobs)
        yield found
    finally:
        shutil.rmtree(made, ignore_errors=True)  # a folder of our own, made above


def describe_files(paths: Sequence[str]) -> dict[str, Any]:
    """Return the number of files, and sizes, pixels and structures of the first thousand.

    The JPEG engines of a GPU decode baseline files alone, and their speed depends on the subsampling.
    """
    from PIL import Image, JpegImagePlugin

    some = sorted(set(paths))[:1000]
    pixels, structures = [], Counter[str]()
    for path in some:
        with Image.open(path) as image:
            pixels.append(image.size[0] * image.size[1])
            if isinstance(image, JpegImagePlugin.JpegImageFile):
                chroma = "gray" if image.mode == "L" else _CHROMA.get(JpegImagePlugin.get_sampling(image), "other")
                structures[f"{'progressive' if 'progressive' in image.info else 'baseline'} {chroma}"] += 1
    return {
        "files": len(set(paths)),
        "mean_kilobytes": sum(map(os.path.getsize, some)) / len(some) / 1e3,
        "mean_megapixels": sum(pixels) / len(some) / 1e6,
        "structures": dict(structures),
    }


_CHROMA = {0: "4:4:4", 1: "4:2:2", 2: "4:2:0"}
"""Pillow's numbers of subsamplings."""


# ---- memory


_SHARED = "/dev/shm/"


def memory_mb(pid: int) -> dict[str, float]:
    """MB of a process tree: ``pss`` counts shared pages by share, ``uss`` only what it would give back.

    Both count the pages of library files, and change when any other process of the machine that uses the same library
    starts or ends. ``own`` leaves those out: memory that the tree filled, by share. All of them count batches in
    a queue of worker processes that lie in shared memory and that no process has mapped.
    """
    from gpupipe.system import children

    names = {
        "Pss": "pss", "Private_Clean": "uss", "Private_Dirty": "uss", "Pss_Anon": "own", "Pss_Shmem": "own",
    }  # fmt: skip
    tree = (pid, *children(pid))
    kilobytes = dict.fromkeys(("pss", "uss", "own"), _queued_kilobytes(tree))
    for one in tree:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in names:
                    kilobytes[names[name]] += int(rest.split()[0])
    return {kind: value / 1e3 for kind, value in kilobytes.items()}


def _queued_kilobytes(tree: Sequence[int]) -> int:
    """Return the bytes of shared memory that a process has open as files but not mapped."""
    mapped, opened = set[int](), dict[int, int]()
    for pid in tree:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if _SHARED in line:  # range, permissions, offset, device, inode, path
                    mapped.add(int(line.split(None, 5)[4]))
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(file).startswith(_SHARED):
                        it = file.stat()
                        opened[it.st_ino] = it.st_blocks // 2
    return sum(size for inode, size in opened.items() if inode not in mapped)


def gpu_memory_mb() -> float | None:
    """MB in use on the first GPU, by any process; ``None`` without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(0)
    return (total - free) / 1e6


# ---- results


def heading(doc: str | None, settings: argparse.Namespace | dict[str, Any]) -> dict[str, Any]:
    """Return the beginning of every result: the first line of a script's docstring, this machine, and the arguments."""
    told = settings if isinstance(settings, dict) else {k: v for k, v in vars(settings).items() if k != "folder"}
    return {"question": (doc or "").splitlines()[0], "machine": machine(), "settings": told}


def result_name(kind: str, args: argparse.Namespace) -> str:
    """``KIND_cpu`` or ``KIND_gpu``, and whether it was a dry run."""
    return f"{kind}_{'gpu' if args.device == 'cuda' else 'cpu'}" + ("_dry_run" if args.dry_run else "")


def machine() -> dict[str, Any]:
    """Facts about this machine. ``GPUPIPE_BENCH_COMMIT`` names the commit of files that are no checkout."""
    from gpupipe.bench.machine import facts

    found = facts()
    return {**found, "commit": found["commit"] or os.environ.get("GPUPIPE_BENCH_COMMIT")}


def save(name: str, result: dict[str, Any]) -> Path:
    """Write ``results/NAME.json``, never half of it.

    What only tried a script out goes to the temporary folder, and so does what was not measured on a commit, because
    nobody could repeat it.
    """
    folder = Path(tempfile.gettempdir()) if name.endswith("_dry_run") else RESULTS
    if folder == KEPT and any("+" in (facts.get("commit") or "+") for facts in (result["machine"], machine())):
        folder = Path(tempfile.gettempdir())
        print(f"{name}: not kept in results/, because there are changes that are in no commit")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(partial, path)
    return path


def load(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return result


class Table:
    """A table that is printed row by row, as the rows become known."""

    def __init__(self, *columns: str, first: int = 44):
        self._widths = [first] + [max(10, len(c)) for c in columns[1:]]
        self.row(*columns)

    def row(self, *cells: Any) -> None:
        texts = [
            c if isinstance(c, str) else "-" if c is None else f"{c:,.3g}" if c < 100 else f"{c:,.0f}" for c in cells
        ]
        line = [t.ljust(w) if i == 0 else t.rjust(w) for i, (t, w) in enumerate(zip(texts, self._widths, strict=False))]
        print("  ".join(line), flush=True)


class Budget:
    """Seconds that a script may use."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return self._end - time.monotonic()

    def enough(self, seconds: float, what: str) -> bool:
        """Whether ``what`` fits; says so where it does not."""
        if self.left() >= seconds:
            return True
        print(f"left out: {what} (about {seconds:.0f} s, {max(self.left(), 0):.0f} s left)", flush=True)
        return False
