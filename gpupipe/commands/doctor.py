"""``gpupipe doctor``: report what is installed, what will be used, and what is wrong."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from PIL import features
from rich.filesize import decimal
from rich.text import Text

from ..bench import machine
from ..cache_folder import cache_folder, make_folder
from ..reading.kept import ram_budget
from .answer import tell
from .console import console, pairs
from .findings import Finding, Installed, examine
from .selfcheck import self_check

_DALI_WHEELS = ("nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-dali-cuda110")


def run() -> int:
    screen = console()
    with screen.status("looking around"):
        found = look()
        screen.print(pairs(_software(found), title="installed"))
        screen.print(pairs(_hardware(found), title="\nthis machine"))
    findings = examine(found)
    lines, broken = [("left out", "it needs a folder for temporary files")], list[Finding]()
    if found.temp_error is None:
        with screen.status("running every engine on a small JPEG"):
            lines, broken = self_check(bool(found.gpus), found.dali is not None)
    screen.print(pairs(lines, title="\nself-check"))
    findings += broken
    tell(installed=found, self_check=dict(lines), findings=findings)
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
    """Collect everything that can be known without running an engine."""
    import torch

    versions = machine.versions()
    dali, dali_error = _dali_version()
    return Installed(
        wheels=tuple(name for name in versions if name in _DALI_WHEELS),
        dali=dali,
        dali_error=dali_error,
        driver=machine.driver(),
        torch_cuda=torch.version.cuda,
        gpus=tuple(machine.gpus()),
        shm_bytes=shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
        cores=machine.cores(),
        quota=_quota(),
        cache_error=_write_error(_cache),
        temp_error=_write_error(tempfile.gettempdir),
    )


def _dali_version() -> tuple[str | None, str | None]:
    """Return (version, None), (None, reason of a failed import), or (None, None) if DALI is not installed."""
    from ..engines.dali import installed

    if not installed():
        return None, None
    try:
        importlib.import_module("gpupipe.engines.dali.engine")  # only this package may import DALI
    except Exception as e:  # broken installations raise anything, such as OSError for a missing library
        return None, f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
    versions = machine.versions()
    return next((versions[name] for name in _DALI_WHEELS if name in versions), "unknown version"), None


def _quota() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _cache() -> str:
    make_folder(cache_folder("index"))
    return cache_folder("index")


def _write_error(folder: Callable[[], str]) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder()) as file:
            file.write(b"\0" * 4096)
            return None
    except OSError as e:
        return e.strerror or str(e)


def _software(found: Installed) -> list[tuple[str, str]]:
    versions = machine.versions()
    cuda = f"for CUDA {found.torch_cuda}" if found.torch_cuda else "for the CPU only"
    rows = [
        ("gpupipe", versions.get("gpupipe-loader", "from a folder, not installed")),
        ("python", platform.python_version()),
        ("torch", f"{versions.get('torch', '?')}, built {cuda}"),
        ("DALI", found.dali or (f"cannot be imported: {found.dali_error}" if found.dali_error else "not installed")),
        ("pillow", f"{versions.get('pillow', '?')}, libjpeg-turbo {features.version_feature('libjpeg_turbo')}"),
        ("numpy", versions.get("numpy", "?")),
        ("torchvision", versions.get("torchvision", "not installed; not needed")),
        ("video", _video()),
    ]
    return rows + [(name, version) for name, version in versions.items() if name.startswith("nvidia-")]


def _video() -> str:
    try:
        version = metadata.version("av")
    except metadata.PackageNotFoundError:
        return "PyAV is not installed; for clips: pip install 'gpupipe-loader[video]'"
    return f"PyAV {version} decodes clips for every engine, in num_workers threads or processes"


def _hardware(found: Installed) -> list[tuple[str, str]]:
    quota = f", limited to {found.quota:g}" if found.quota is not None and found.quota < found.cores else ""
    return [
        ("CPU", f"{machine.cpu_model()}, {found.cores} cores usable{quota}"),
        ("memory", decimal(machine.memory_bytes())),
        ("/dev/shm", "missing" if found.shm_bytes is None else decimal(found.shm_bytes)),
        ('cache="ram"', f"would keep {decimal(ram_budget())} of decoded images: half of the memory that is free"),
        ("GPU", "; ".join(found.gpus) or "none"),
        ("driver", found.driver or "none"),
        ("cache", os.path.dirname(cache_folder("index"))),
    ]
