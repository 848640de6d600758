"""``gpupipe doctor``: from what is installed to what is wrong, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.filesize import decimal

from ..cache_folder import cache_folder
from ..engines.dali.decoder import FANCY_WINDOWS

__all__ = ["Finding", "Installed", "examine"]


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
    nvjpeg: tuple[int, int] | None
    """Version of the nvJPEG that DALI finds."""
    gpus: tuple[str, ...]
    turbo: str | None
    shm_bytes: int | None
    cores: int
    quota: float | None
    """Cores' worth of time that the container allows."""
    cache_error: str | None
    temp_error: str | None = None
    """Why the folder for temporary files cannot be written."""
    torchvision_error: str | None = None
    """Why torchvision cannot be imported though it is installed."""


def examine(found: Installed) -> list[Finding]:
    """What is wrong with it."""
    findings: list[Finding] = []

    def add(level: Literal["wrong", "note"], what: str, do: str) -> None:
        findings.append(Finding(level, what, do))

    if len(found.wheels) > 1:
        # Either runs beside either build of torch; one CUDA for both loads fewer libraries.
        new = (found.torch_cuda or "").startswith("13") and "nvidia-dali-cuda130" in found.wheels
        keep = "nvidia-dali-cuda130" if new else found.wheels[0]
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
    if found.gpus and found.dali is not None and (found.nvjpeg or (0, 0)) < FANCY_WINDOWS:
        findings.append(_old_nvjpeg(found))
    if found.torchvision_error is not None:
        add(
            "wrong",
            f"torchvision is installed and cannot be imported: {found.torchvision_error}; gpupipe does not need it, "
            "timm, Lightning's torchmetrics and most training scripts do",
            "install the torchvision that belongs to this torch: https://pytorch.org/get-started/locally",
        )
    if found.turbo is None:
        add(
            "note",
            "this Pillow has no libjpeg-turbo: the reference decodes slowly",
            "pip install --force-reinstall pillow",
        )
    if found.quota is not None and found.quota < found.cores - 0.5:
        add(
            "note",
            f"{found.cores} cores are visible, and this container may use {found.quota:g} of them",
            f"num_workers={max(1, round(found.quota))}",
        )
    return findings + _folders(found)


def _folders(found: Installed) -> list[Finding]:
    findings = []
    if found.temp_error is not None:
        findings.append(
            Finding(
                "wrong",
                f"no folder for temporary files can be written: {found.temp_error}",
                "set TMPDIR to a folder that can be written and has space",
            )
        )
    if found.shm_bytes is not None and found.shm_bytes < 1 << 30:
        findings.append(
            Finding(
                "note",
                f"/dev/shm has {decimal(found.shm_bytes)}; worker processes of the reference exchange batches "
                "through it",
                "docker run --shm-size=8g, or --ipc=host",
            )
        )
    if found.cache_error is not None:
        findings.append(
            Finding(
                "note",
                f"the cache folder {cache_folder('index')} cannot be written: {found.cache_error}; indexes are built "
                "anew by every run",
                "set GPUPIPE_CACHE to a folder that can be written",
            )
        )
    return findings


def _old_nvjpeg(found: Installed) -> Finding:
    wanted = ".".join(map(str, FANCY_WINDOWS))
    have = f"nvJPEG is {'.'.join(map(str, found.nvjpeg))}" if found.nvjpeg else "nvJPEG is not found"
    what = (
        f"{have}: windows of JPEGs need {wanted} to be decoded on the GPU with Pillow's upsampling of colour, so "
        "whole images are decoded"
    )
    plain = "engines.Dali(jpeg_fancy_upsampling=False) is faster, and differs at edges of colour"
    if not (found.torch_cuda or "").startswith("13"):
        return Finding("note", what, f"{plain}; with a torch for CUDA 13, nvidia-dali-cuda130 brings a newer nvJPEG")
    if "nvidia-dali-cuda130" in found.wheels:
        return Finding("note", what, f"pip install -U 'nvidia-nvjpeg>={wanted}'")
    swap = f"pip uninstall -y {' '.join(found.wheels)} && pip install nvidia-dali-cuda130 'nvidia-nvjpeg>={wanted}'"
    return Finding("note", what, f"this torch is for CUDA 13: {swap}; or {plain}")


def _older(version: str, than: tuple[int, int]) -> bool:
    try:
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) < than
    except ValueError:
        return False
