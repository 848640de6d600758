"""``gpupipe doctor``: problems of an installation, and their solutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rich.filesize import decimal

from ..cache_folder import cache_folder

Level = Literal["wrong", "note"]


@dataclass(frozen=True)
class Finding:
    """One finding: ``wrong`` means that something does not work, ``note`` that it could work better."""

    level: Level
    what: str
    do: str


@dataclass(frozen=True)
class Installed:
    """Facts about an installation, which tests can make up."""

    wheels: tuple[str, ...]
    """Names of installed DALI packages."""
    dali: str | None
    """Version of DALI, or ``None`` if it cannot be imported."""
    dali_error: str | None
    """Reason why an installed DALI cannot be imported."""
    driver: str | None
    torch_cuda: str | None
    """CUDA version that torch was built for."""
    gpus: tuple[str, ...]
    shm_bytes: int | None
    cores: int
    quota: float | None
    """Number of cores' worth of time that the container may use."""
    cache_error: str | None
    temp_error: str | None = None
    """Reason why the folder for temporary files is not writable."""


def examine(found: Installed) -> list[Finding]:
    """Return everything that is wrong or could be better."""
    return [Finding(*each) for each in (*_libraries(found), *_resources(found))]


def _libraries(found: Installed) -> Iterator[tuple[Level, str, str]]:
    if len(found.wheels) > 1:
        # Both work with any build of torch, but a common CUDA version loads fewer libraries.
        new = (found.torch_cuda or "").startswith("13") and "nvidia-dali-cuda130" in found.wheels
        names, one = " and ".join(found.wheels), "nvidia-dali-cuda130" if new else found.wheels[0]
        what = f"{names} are installed at once; they share one folder, and the later one overwrote the other"
        yield "wrong", what, f"pip uninstall -y {' '.join(found.wheels)} && pip install {one}"
    if found.dali_error is not None:
        wheel = found.wheels[0] if found.wheels else "nvidia-dali-cuda120"
        what = f"DALI is installed but cannot be imported: {found.dali_error}"
        yield "wrong", what, f"pip install --force-reinstall {wheel}"
    elif found.dali is None:
        yield "note", "DALI is not installed; the reference engine runs instead", "pip install nvidia-dali-cuda120"
    elif _older(found.dali, (2, 4)):
        yield "wrong", f"DALI {found.dali} is older than 2.4", f"pip install -U {found.wheels[0]}"
    if found.driver and found.torch_cuda is None:
        what = f"there is an NVIDIA driver ({found.driver}), but this torch is built for the CPU only"
        yield "wrong", what, "install torch for CUDA: https://pytorch.org/get-started/locally"
    elif found.driver and not found.gpus:
        what = f"there is an NVIDIA driver ({found.driver}), but torch for CUDA {found.torch_cuda} sees no GPU"
        do = "check CUDA_VISIBLE_DEVICES, and in a container --gpus all; an old driver needs an older torch"
        yield "wrong", what, do
    elif not found.gpus:
        yield "note", "there is no GPU; DALI uses its CPU backend", "nothing: the same code runs, slower"


def _resources(found: Installed) -> Iterator[tuple[Level, str, str]]:
    if found.quota is not None and found.quota < found.cores - 0.5:
        what = f"{found.cores} cores are visible, but this container may use only {found.quota:g} of them"
        yield "note", what, f"num_workers={max(1, round(found.quota))}"
    if found.temp_error is not None:
        what = f"no folder for temporary files is writable: {found.temp_error}"
        yield "wrong", what, "set TMPDIR to a writable folder with enough space"
    if found.shm_bytes is not None and found.shm_bytes < 1 << 30:
        what = f"/dev/shm has {decimal(found.shm_bytes)}; worker processes exchange batches through it"
        yield "note", what, "docker run --shm-size=8g, or --ipc=host"
    if found.cache_error is not None:
        folder = f"the cache folder {cache_folder('index')}"
        what = f"{folder} is not writable: {found.cache_error}; every run builds its indexes again"
        yield "note", what, "set GPUPIPE_CACHE to a writable folder"


def _older(version: str, than: tuple[int, int]) -> bool:
    try:
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) < than
    except ValueError:
        return False
