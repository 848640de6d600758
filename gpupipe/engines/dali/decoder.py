"""Self-tests of a GPU's JPEG decoder: whether it can decode windows, and with which chroma upsampling.

nvImageCodec, the library that DALI decodes with, has two known problems, which are checked here:

- Some versions reject ordinary windows on some GPUs, and crash with SIGSEGV on others
  (https://github.com/NVIDIA/nvImageCodec/issues/55). Windows are therefore tried in a separate process, once per (GPU,
  driver, versions); the cache folder keeps the verdict.
- With fancy chroma upsampling, as in libjpeg and Pillow, it decodes windows on the GPU only with nvJPEG 13.2 or newer.
  With an older one, such as every nvJPEG for CUDA 12, each window of a JPEG with subsampled chroma goes to
  libjpeg-turbo on the CPU: correctly, slowly, and without an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...cache_folder import cache_folder, make_folder, replacing
from .messages import clean

log = logging.getLogger("gpupipe")

FANCY_WINDOWS = (13, 2)
"""First version of nvJPEG with which nvImageCodec decodes windows with fancy upsampling on the GPU."""

_SECONDS = 120
_LONGEST = 1000
"""Maximum number of characters of an error to show."""
_PASSING = (
    *("ImportError", "ModuleNotFoundError", "cannot start", "out of memory", "bad_alloc", "busy or unavailable"),
    *("driver version is insufficient", "CUDA is not available"),
)
"""Parts of errors unrelated to windows. They give no verdict, and are not remembered."""

_verdicts: dict[str, bool] = {}
"""Verdicts of this process, by the name of their file."""


# ---- nvJPEG


def nvjpeg_version() -> tuple[int, int] | None:
    """Return major and minor version of the nvJPEG that DALI uses, or ``None`` if there is none. Needs no GPU and no
    driver.

    This is the library loaded by the process, or the one that nvImageCodec would find.
    """
    for path in (*_loaded(), *_findable()):
        with contextlib.suppress(OSError, AttributeError):
            # Libraries are loaded only once.
            ask, value, found = ctypes.CDLL(path).nvjpegGetProperty, ctypes.c_int(), []
            for which in (0, 1):  # MAJOR_VERSION, MINOR_VERSION of libraryPropertyType
                if ask(which, ctypes.byref(value)):
                    break
                found.append(value.value)
            else:
                return found[0], found[1]
    return None


def _loaded() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.split(maxsplit=5)[-1]
            if "/libnvjpeg.so" in path:
                yield path
                return


def _findable() -> Iterator[str]:
    """Yield candidates in the order of nvImageCodec's own search path: LD_LIBRARY_PATH, wheels, then a toolkit.

    A library for a different CUDA than DALI's has another name, and is not loaded.
    """
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(p) for p in (spec.submodule_search_locations or ())] if spec is not None else []
    given = [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    folders = [*given, *(w / "nvjpeg/lib" for w in wheels), *(lib for w in wheels for lib in sorted(w.glob("cu*/lib")))]
    name = f"libnvjpeg.so.{_cuda_of_dali() or '*'}"
    for folder in (*folders, Path("/usr/local/cuda/lib64")):
        yield from sorted(map(str, folder.glob(name)), reverse=True)


def _cuda_of_dali() -> int | None:
    """Return the major version of CUDA that DALI was built for, without importing it."""
    if (dali := sys.modules.get("nvidia.dali")) is not None:
        return int(dali.__cuda_version__) // 1000
    for major in range(12, 20):
        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.version(f"nvidia-dali-cuda{major}0")
            return major
    return None


def fancy_windows() -> bool:
    """Return whether windows with fancy upsampling are decoded on the GPU."""
    version = nvjpeg_version()
    return version is not None and version >= FANCY_WINDOWS


# ---- windows


def windows_work(device: str, *, fancy: bool) -> bool:
    """Return whether the decoder of ``device`` (``"cuda:0"``) decodes windows correctly.

    The answer comes from this process's memory, from the cache, or from a self-test that takes some seconds.
    """
    identity = _identity(device, fancy)
    name = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=12).hexdigest()
    file = Path(cache_folder("roi")) / f"{name}.json"
    if name not in _verdicts:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            _verdicts[name] = bool(json.loads(file.read_text())["works"])
    if name in _verdicts:
        return _verdicts[name]
    works, reason = _try(device, fancy)
    if not works:
        log.warning("windows decoded on %s fail their self-test (%s): decoding whole images", identity["gpu"], reason)
        if any(sign in reason for sign in _PASSING):
            return False  # no verdict on the decoder
    _verdicts[name] = works
    with contextlib.suppress(OSError):  # without a cache the next process tries it again
        make_folder(str(file.parent))
        with replacing(str(file)) as out:
            out.write(json.dumps({"works": works, "reason": reason, **identity}).encode())
    return works


def _identity(device: str, fancy: bool) -> dict[str, str]:
    import torch

    properties = torch.cuda.get_device_properties(device)
    packages = sorted(
        f"{d.metadata['Name']} {d.version}"
        for d in metadata.distributions()
        if (d.metadata["Name"] or "").lower().startswith(("nvidia-dali", "nvidia-nvimgcodec", "nvidia-nvjpeg"))
    )
    driver = Path("/proc/driver/nvidia/version")
    return {
        "test": "2",  # of this file
        "gpu": properties.name,
        "driver": driver.read_text().splitlines()[0] if driver.exists() else "unknown",
        "packages": ", ".join(packages),
        "nvjpeg": str(nvjpeg_version()),
        "upsampling": "fancy" if fancy else "plain",
    }


def _try(device: str, fancy: bool) -> tuple[bool, str]:
    number = int(device.split(":")[1])
    return _answer(f"from gpupipe.engines.dali.decoder import self_test; self_test({number}, fancy={fancy})")


def _answer(code: str) -> tuple[bool, str]:
    """Return whether a process that runs ``code`` succeeds, and why not. It may crash or hang."""
    # Use this process's module path, in case gpupipe is not installed.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, timeout=_SECONDS, env=environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"no answer within {_SECONDS} s"
    except OSError as e:
        return False, f"cannot start a process: {e}"
    if done.returncode:
        # DALI's errors have many lines, and the last one does not name the cause.
        cause = clean(done.stderr.strip().rpartition("Traceback (most recent call last):")[2])[-_LONGEST:]
        others = [sign for sign in _PASSING if sign in done.stderr and sign not in cause]
        return False, f"exit status {done.returncode}: {'; '.join([cause, *others])}"
    return True, "windows equal the same part of the whole image"


def self_test(device_id: int | None, *, fancy: bool = True) -> None:
    """Decode windows and whole images of several kinds of JPEG and compare them. Raises or crashes if they differ.

    A window and a whole image may come from different decoders of one GPU, which differ by a few levels, and more at
    color edges. :func:`judge` therefore does not require equality.

    Args:
        device_id: index of the GPU; ``None`` tests the CPU backend.
        fancy: chroma upsampling.
    """
    from nvidia.dali import fn, types

    from .graph import DecoderOptions, new_pipeline

    nvjpeg_version()  # loads the library that loaders have, which is the first that this finds
    files, starts, shapes = _jpegs()
    arguments = DecoderOptions(jpeg_fancy_upsampling=fancy).arguments(device_id is not None)
    pipe = new_pipeline(batch_size=len(files), num_threads=2, device_id=device_id, prefetch=2)
    with pipe:
        raw = fn.external_source(name="files", dtype=types.UINT8, ndim=1)
        start = fn.external_source(name="start", dtype=types.INT32, ndim=1)
        shape = fn.external_source(name="shape", dtype=types.INT32, ndim=1)
        pipe.set_outputs(
            fn.decoders.image(raw, **arguments),
            fn.decoders.image_slice(raw, start=start, shape=shape, axes=[0, 1], **arguments),
        )
    pipe.build()
    for _ in range(4):
        pipe.feed_input("files", files)
        pipe.feed_input("start", starts)
        pipe.feed_input("shape", shapes)
        pipe._run_once()
    for _ in range(4):
        whole, window = (o.as_cpu() for o in pipe.outputs())
        for i in range(len(files)):
            wrong = judge(np.asarray(whole[i]), np.asarray(window[i]), starts[i])
            if wrong is not None:
                raise RuntimeError(f"window {i} {wrong}")


def _jpegs() -> tuple[list[npt.NDArray[np.uint8]], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return (encoded files, starts of windows, sizes of windows). The files have all chroma subsamplings; some are
    gray or progressive."""
    from PIL import Image

    rng = np.random.default_rng(0)
    files, starts, shapes = [], [], []
    for i in range(32):
        size = rng.integers(60, 400, 2)
        # Detail at several scales, as in photographs, so that a window displaced by one pixel shows.
        detail = [rng.integers(0, 256, (*(size // step + 1), 3), np.uint8) for step in (64, 16, 4)]
        layers = [np.asarray(Image.fromarray(d).resize((size[1], size[0]), 2), np.float32) for d in detail]
        picture = np.average(layers, axis=0, weights=(4, 2, 1)).astype(np.uint8)
        gray = i % 8 == 7
        subsampling: dict[str, Any] = {} if gray else {"subsampling": i % 3}
        out = io.BytesIO()
        image = Image.fromarray(picture).convert("L" if gray else "RGB")
        image.save(out, "JPEG", quality=80 + i % 16, progressive=i % 4 == 3, **subsampling)
        files.append(np.frombuffer(out.getvalue(), np.uint8))
        shapes.append(rng.integers(24, size + 1))
        starts.append(rng.integers(0, size - shapes[-1] + 1))
    return files, np.array(starts, np.int32), np.array(shapes, np.int32)


def judge(whole: npt.NDArray[np.uint8], window: npt.NDArray[np.uint8], start: npt.NDArray[np.int32]) -> str | None:
    """Return what is wrong with a window u8[h, w, 3] at ``start`` of an image u8[H, W, 3], or ``None``.

    Pixels of two decoders are similar, and more similar at the correct position than one pixel beside it.
    """
    (top, left), (height, width) = start.tolist(), window.shape[:2]

    def apart(down: int, right: int) -> npt.NDArray[np.int64]:
        """Return differences from the part of the image displaced by this much, for pixels inside all of these
        parts."""
        y, x = np.arange(1, height - 1), np.arange(1, width - 1)
        rows, columns = top + y + down, left + x + right
        rows, columns = np.clip(rows, 0, len(whole) - 1), np.clip(columns, 0, whole.shape[1] - 1)
        return np.asarray(np.abs(whole[rows[:, None], columns].astype(np.int64) - window[1:-1, 1:-1]))

    if not window.any():
        return "is black"
    here = np.abs(whole[top : top + height, left : left + width].astype(np.int64) - window)
    if here.max() > 40 or here.mean() > 1 or (here > 8).mean() > 0.01:
        return (
            f"differs by up to {here.max()} gray levels, {here.mean():.2f} on average, from the same part of the image"
        )
    inside = apart(0, 0).mean()
    beside = min(apart(*by).mean() for by in ((-1, 0), (1, 0), (0, -1), (0, 1)))
    return None if inside < beside else "also matches a window shifted by one pixel"
