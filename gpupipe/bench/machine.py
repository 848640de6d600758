"""Facts about the machine that a result was measured on, without names of hosts, users or folders."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .. import system

_PACKAGES = ("gpupipe-loader", "torch", "torchvision", "numpy", "pillow")
_MEASURED = (":/", ":!/benchmarks/results", ":!*.md")
_DALI = ("nvidia-dali", "nvidia-nvimgcodec", "nvidia-nvjpeg")


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Return the memory of the machine, or of the container if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, system.cgroup_limit() or total)


def cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def driver() -> str | None:
    """Return the version of NVIDIA's kernel driver."""
    with contextlib.suppress(OSError, IndexError):
        words = Path("/proc/driver/nvidia/version").read_text().splitlines()[0].split()
        return next(w for w in words if w[:1].isdigit() and "." in w)
    return None


def gpus() -> list[str]:
    """Return name and memory of every GPU that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [f"{p.name}, {p.total_memory / 2**30:.0f} GiB" for p in properties]


def versions() -> dict[str, str]:
    """Return versions of installed packages that affect results or speed."""
    found: dict[str, str] = {}
    for d in importlib.metadata.distributions():
        name = (d.metadata["Name"] or "").lower()
        if name in _PACKAGES or name.startswith(_DALI):
            found[name] = d.version
    return dict(sorted(found.items()))


def _commit() -> str | None:
    """Return the commit of the checkout that gpupipe runs from, with a plus if there are changes.

    Results and pages may change, because measuring writes them.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "-uno", "--", *_MEASURED)
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def facts() -> dict[str, Any]:
    """Return the facts to store with every result: strings, numbers and lists only."""
    import torch
    from PIL import features

    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_gb": round(memory_bytes() / 1e9, 1),
        "gpus": gpus(),
        "driver": driver(),
        "cuda": torch.version.cuda,
        "platform": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions(),
        "libjpeg_turbo": features.version_feature("libjpeg_turbo"),
        "commit": _commit(),
    }
