"""``gpupipe doctor``: what is installed, what will be used, and what is wrong."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.text import Text

from ..bench import machine
from ..datasets.cache import cache_folder, make_folder
from .console import console, pairs, size

__all__ = ["Finding", "examine", "run"]

_DALI_WHEELS = ("nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-dali-cuda110")


@dataclass(frozen=True)
class Finding:
    """``wrong``: something does not work. ``note``: it works, and could work better."""

    level: Literal["wrong", "note"]
    what: str
    do: str


@dataclass(frozen=True)
class Installed:
    """What the checks judge; a test can make one up."""

    wheels: tuple[str, ...]
    """Names of the installed DALI packages."""
    dali: str | None
    """Version of DALI as imported, or ``None``."""
    dali_error: str | None
    """Why it cannot be imported though it is installed."""
    driver: str | None
    torch_cuda: str | None
    """CUDA that torch was built for."""
    gpus: tuple[str, ...]
    turbo: str | None
    shm_bytes: int | None
    cores: int
    quota: float | None
    """Cores' worth of time that the container allows."""
    cache_error: str | None


def run() -> int:
    screen = console()
    with screen.status("looking around"):
        found = look()
        screen.print(pairs(_software(found), title="installed"))
        screen.print(pairs(_hardware(found), title="\nthis machine"))
    findings = examine(found)
    with screen.status("running every engine on a small JPEG"):
        lines, broken = self_check(bool(found.gpus))
    screen.print(pairs(lines, title="\nself-check"))
    findings += broken
    wrong = [f for f in findings if f.level == "wrong"]
    screen.print("\n[bold]what is wrong, and what to do[/bold]" if findings else "\n[bold green]nothing is wrong[/]")
    for f in sorted(findings, key=lambda f: f.level != "wrong"):
        text = Text()
        text.append("  wrong  " if f.level == "wrong" else "  note   ", "bold red" if f.level == "wrong" else "yellow")
        text.append(f"{f.what}\n")
        text.append(f"         {f.do}", "cyan")
        screen.print(text, soft_wrap=True)
    if findings and not wrong:
        screen.print("\n[green]nothing is wrong[/green]; the notes are advice")
    return 1 if wrong else 0


def look() -> Installed:
    """Everything that can be known without running an engine."""
    from PIL import features

    versions = machine.versions()
    dali, dali_error = _dali_version()
    return Installed(
        wheels=tuple(name for name in versions if name in _DALI_WHEELS),
        dali=dali,
        dali_error=dali_error,
        driver=machine.driver(),
        torch_cuda=_torch_cuda(),
        gpus=tuple(machine.gpus()),
        turbo=features.version_feature("libjpeg_turbo"),
        shm_bytes=shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
        cores=machine.cores(),
        quota=_quota(),
        cache_error=_cache_error(),
    )


def _torch_cuda() -> str | None:
    import torch

    return torch.version.cuda


def _dali_version() -> tuple[str | None, str | None]:
    """(version, None), (None, why it cannot be imported), or (None, None) where it is not installed."""
    from ..engines.dali import installed

    if not installed():
        return None, None
    try:
        # By way of our own package, which alone may import DALI.
        importlib.import_module("gpupipe.engines.dali.engine")
    except Exception as e:  # broken installations raise anything, from ImportError to OSError of a missing library
        return None, f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
    versions = machine.versions()
    return next((versions[name] for name in _DALI_WHEELS if name in versions), "unknown version"), None


def _quota() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _cache_error() -> str | None:
    folder = cache_folder("index")
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as e:
        return e.strerror or str(e)


def examine(found: Installed) -> list[Finding]:
    """What is wrong with it."""
    findings: list[Finding] = []

    def add(level: Literal["wrong", "note"], what: str, do: str) -> None:
        findings.append(Finding(level, what, do))

    if len(found.wheels) > 1:
        keep = found.wheels[0]
        add(
            "wrong",
            f"{' and '.join(found.wheels)} are installed at once; they share one folder, and the later one overwrote "
            "the other",
            f"pip uninstall -y {' '.join(found.wheels)} && pip install {keep}",
        )
    if found.dali_error is not None:
        add(
            "wrong",
            f"DALI is installed and cannot be imported: {found.dali_error}",
            f"pip install --force-reinstall {found.wheels[0] if found.wheels else 'nvidia-dali-cuda120'}",
        )
    elif found.dali is None:
        add(
            "note",
            "DALI is not installed; the reference engine does the work",
            "pip install nvidia-dali-cuda120",
        )
    elif _older(found.dali, (2, 4)):
        add("wrong", f"DALI {found.dali} is older than 2.4", f"pip install -U {found.wheels[0]}")
    if found.driver and found.torch_cuda is None:
        add(
            "wrong",
            f"there is an NVIDIA driver ({found.driver}), and this torch is built for the CPU only",
            "install torch for CUDA: https://pytorch.org/get-started/locally",
        )
    elif found.driver and not found.gpus:
        add(
            "wrong",
            f"there is an NVIDIA driver ({found.driver}), and torch for CUDA {found.torch_cuda} sees no GPU",
            "check CUDA_VISIBLE_DEVICES, and in a container --gpus all; an old driver needs an older torch",
        )
    elif not found.gpus:
        add("note", "there is no GPU; DALI uses its CPU backend", "nothing: the same code runs, slower")
    if found.turbo is None:
        add(
            "note",
            "this Pillow has no libjpeg-turbo: the reference decodes slowly",
            "pip install --force-reinstall pillow",
        )
    if found.shm_bytes is not None and found.shm_bytes < 1 << 30:
        add(
            "note",
            f"/dev/shm has {size(found.shm_bytes)}; worker processes of the reference exchange batches through it",
            "docker run --shm-size=8g, or --ipc=host",
        )
    if found.quota is not None and found.quota < found.cores - 0.5:
        add(
            "note",
            f"{found.cores} cores are visible, and this container may use {found.quota:g} of them",
            f"num_workers={max(1, round(found.quota))}",
        )
    if found.cache_error is not None:
        add(
            "note",
            f"the cache folder {cache_folder('index')} cannot be written: {found.cache_error}; indexes are built anew "
            "by every run",
            "set GPUPIPE_CACHE to a folder that can be written",
        )
    return findings


def _older(version: str, than: tuple[int, int]) -> bool:
    try:
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) < than
    except ValueError:
        return False


def _software(found: Installed) -> list[tuple[str, str]]:
    versions = machine.versions()
    cuda = f"for CUDA {found.torch_cuda}" if found.torch_cuda else "for the CPU only"
    rows = [
        ("gpupipe", versions.get("gpupipe", "from a folder, not installed")),
        ("python", platform.python_version()),
        ("torch", f"{versions.get('torch', '?')}, built {cuda}"),
        ("DALI", found.dali or (f"cannot be imported: {found.dali_error}" if found.dali_error else "not installed")),
        ("pillow", f"{versions.get('pillow', '?')}, libjpeg-turbo {found.turbo or 'missing'}"),
        ("numpy", versions.get("numpy", "?")),
        ("torchvision", versions.get("torchvision", "not installed; not needed")),
    ]
    return rows + [(name, version) for name, version in versions.items() if name.startswith("nvidia-")]


def _hardware(found: Installed) -> list[tuple[str, str]]:
    quota = f", limited to {found.quota:g}" if found.quota is not None and found.quota < found.cores else ""
    return [
        ("CPU", f"{machine.cpu_model()}, {found.cores} cores usable{quota}"),
        ("memory", size(machine.memory_bytes())),
        ("/dev/shm", "missing" if found.shm_bytes is None else size(found.shm_bytes)),
        ("GPU", "; ".join(found.gpus) or "none"),
        ("driver", found.driver or "none"),
        ("cache", os.path.dirname(cache_folder("index"))),
    ]


def self_check(cuda: bool) -> tuple[list[tuple[str, str]], list[Finding]]:
    """Decode and resize one JPEG in every engine: (what to print, what is broken)."""
    from PIL import Image

    from ..bench.compare import compare
    from ..bench.photos import photograph
    from ..datasets import ImageList
    from ..loader import DataLoader
    from ..transforms import CenterCrop, Compose, Resize, ToImage

    device: Literal["cpu", "cuda"] = "cuda" if cuda else "cpu"
    lines: list[tuple[str, str]] = []
    broken: list[Finding] = []

    def attempt(name: str, work: Callable[[], str]) -> None:
        try:
            lines.append((name, work()))
        except Exception as e:  # whatever an engine dies of is what the doctor is asked for
            why = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
            lines.append((name, f"fails: {why}"))
            do = "see the lines above; if they do not say why, report it with this output"
            broken.append(Finding("wrong", f"{name}: {why}", do))

    with tempfile.TemporaryDirectory(prefix="gpupipe-doctor-") as folder:
        file = Path(folder) / "photograph.jpg"
        Image.fromarray(photograph(150, 200, 0)).save(file, quality=90)
        dataset = ImageList([file], [0], transform=Compose([Resize(96), CenterCrop(64), ToImage()]))

        def auto() -> str:
            with DataLoader(dataset, device=device) as loader:
                next(iter(loader))
                return next(x for x in repr(loader).splitlines() if "engine:" in x).partition("engine:")[2].strip()

        def reference() -> str:
            with DataLoader(dataset, engine="torch", device=device) as loader:
                images, _ = next(iter(loader))
                return f"works: {tuple(images.shape)} on {images.device}"

        def dali() -> str:
            step = compare(dataset, dataset.transform, samples=1, device=device, num_workers=1).steps[-1]
            d = step.difference
            if step.broken:
                raise RuntimeError(step.broken[0])
            promise = "as promised" if step.promised else "no promise on a GPU yet"
            return f"works: at most {d.max:g} grey levels from the reference, mean {d.mean:.2g} ({promise})"

        attempt("engine=auto", auto)
        attempt("reference", reference)
        if _dali_version()[0] is not None:
            attempt("DALI", dali)
        if cuda and _dali_version()[0] is not None:
            attempt("windows on the GPU", lambda: _windows(device))
    return lines, broken


def _windows(device: str) -> str:
    from ..engines.dali.roi import roi_decoding_works

    if roi_decoding_works(f"{device}:0"):
        return "the decoder is right about them: only windows are decoded"
    return "the decoder fails its self-test: whole images are decoded"
