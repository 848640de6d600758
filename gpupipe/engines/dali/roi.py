"""Whether this GPU's decoder can be trusted with windows (ROI decoding).

Some versions of nvImageCodec refuse ordinary windows on some GPUs, and end the process with SIGSEGV on others
(https://github.com/NVIDIA/nvImageCodec/issues/55). So it is tried in a process of its own, once per (GPU, driver,
versions); the verdict is kept in
the cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np

from ...datasets.cache import cache_folder, make_folder, replacing

__all__ = ["roi_decoding_works", "self_test"]

log = logging.getLogger("gpupipe")

_SECONDS = 120
_PASSING = ("ImportError", "ModuleNotFoundError", "out of memory", "bad_alloc", "cannot start")
"""In a reason that has nothing to do with windows: it is not remembered."""


def roi_decoding_works(device: str) -> bool:
    """The verdict for ``device``, from the cache or from a self-test that takes some seconds."""
    identity = _identity(device)
    name = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=12).hexdigest()
    file = Path(cache_folder("roi")) / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return bool(json.loads(file.read_text())["works"])
    works, reason = _try(device)
    if not works:
        log.warning("windows decoded on %s fail their self-test (%s): decoding whole images", identity["gpu"], reason)
        if any(sign in reason for sign in _PASSING):
            return False  # and no verdict on the decoder
    with contextlib.suppress(OSError):  # without a cache it is tried again next time
        make_folder(str(file.parent))
        with replacing(str(file)) as out:
            out.write(json.dumps({"works": works, "reason": reason, **identity}).encode())
    return works


def _identity(device: str) -> dict[str, str]:
    import torch

    properties = torch.cuda.get_device_properties(device)
    packages = sorted(
        f"{d.metadata['Name']} {d.version}"
        for d in metadata.distributions()
        if (d.metadata["Name"] or "").lower().startswith(("nvidia-dali", "nvidia-nvimgcodec", "nvidia-nvjpeg"))
    )
    driver = Path("/proc/driver/nvidia/version")
    return {
        "gpu": properties.name,
        "driver": driver.read_text().splitlines()[0] if driver.exists() else "unknown",
        "packages": ", ".join(packages),
    }


def _try(device: str) -> tuple[bool, str]:
    return _answer(f"from gpupipe.engines.dali.roi import self_test; self_test({int(device.split(':')[1])})")


def _answer(code: str) -> tuple[bool, str]:
    """Whether a process that runs ``code`` ends well, and why not. It may crash or hang."""
    # Modules are found where this process finds them, also where gpupipe is not installed.
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
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return False, f"exit status {done.returncode}: {last}"
    return True, "windows equal the same part of the whole image"


def self_test(device_id: int | None) -> None:
    """Decode windows and whole images of several kinds of JPEG and compare; raises or dies where they differ.

    ``device_id=None`` tests the CPU backend.
    """
    from nvidia.dali import Pipeline, fn, types
    from PIL import Image

    from .graph import DecoderOptions

    rng = np.random.default_rng(0)
    files, starts, shapes = [], [], []
    for i in range(32):
        h, w = int(rng.integers(40, 900)), int(rng.integers(40, 900))
        smooth = np.asarray(Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)).resize((w, h), 2))
        out = io.BytesIO()
        Image.fromarray(smooth).convert("L" if i % 8 == 7 else "RGB").save(
            out, "JPEG", quality=80 + i % 16, **({} if i % 8 == 7 else {"subsampling": i % 3}), progressive=i % 4 == 3
        )
        files.append(np.frombuffer(out.getvalue(), np.uint8))
        shape = [int(rng.integers(8, h + 1)), int(rng.integers(8, w + 1))]
        starts.append([int(rng.integers(0, h - shape[0] + 1)), int(rng.integers(0, w - shape[1] + 1))])
        shapes.append(shape)
    arguments = DecoderOptions().arguments(device_id is not None)
    pipe = Pipeline(batch_size=len(files), num_threads=2, device_id=device_id)
    with pipe:
        raw = fn.external_source(name="files", dtype=types.UINT8, ndim=1)
        start = fn.external_source(name="start", dtype=types.INT32, ndim=1)
        shape_node = fn.external_source(name="shape", dtype=types.INT32, ndim=1)
        whole = fn.slice(fn.decoders.image(raw, **arguments), start=start, shape=shape_node, axes=[0, 1])
        window = fn.decoders.image_slice(raw, start=start, shape=shape_node, axes=[0, 1], **arguments)
        pipe.set_outputs(whole, window)
    pipe.build()
    for _ in range(4):
        pipe.feed_input("files", files)
        pipe.feed_input("start", np.array(starts, np.int32))
        pipe.feed_input("shape", np.array(shapes, np.int32))
        pipe._run_once()
    for _ in range(4):
        whole_out, window_out = (o.as_cpu() for o in pipe.outputs())
        for i in range(len(files)):
            a, b = np.asarray(whole_out[i]).astype(int), np.asarray(window_out[i]).astype(int)
            worst = int(np.abs(a - b).max())
            # Where chroma is subsampled, a window may be upsampled differently at its own edge.
            if worst > 2 or not b.any():
                raise RuntimeError(f"window {i} differs by {worst} grey levels from the same part of the whole image")
