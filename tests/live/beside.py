"""What the tests of live sessions share: images that wait beside real ones, and loaders beside torch's."""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.transforms.v2
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader

import gpupipe
from gpupipe.live import functions
from gpupipe.live.images import step_of
from gpupipe.live.switch import switched
from gpupipe.live.tensors import WaitingTensor
from gpupipe.testing.photos import photograph

assert torchvision.transforms.v2  # functions of libraries that are imported are caught
functions.install()


@cache
def jpeg(seed: int, height: int = 20, width: int = 24, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(photograph(height, width, seed)).convert(mode).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def write_jpegs(root: Path, count: int = 12) -> Path:
    """Photographs of three sizes. Every fifth is gray."""
    root.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        size = ((20, 24), (26, 22), (32, 40))[k % 3]
        (root / f"{k:02}.jpg").write_bytes(jpeg(k, *size, mode="L" if k % 5 == 4 else "RGB"))
    return root


def waits(value: Any) -> bool:
    return isinstance(value, WaitingTensor) or step_of(value) is not None


def by_channels(x: Tensor) -> Any:
    """As scripts normalized before torchvision did."""
    window = x[:, 2:]
    for channel, mean, std in zip(x, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), strict=True):
        channel.sub_(mean).div_(std)
    return x, window, x.clone()


# ---- what can be told of a value


def form(value: Any, depth: int = 6) -> Any:
    """Return all that can be told of a value, so that ``==`` compares it."""
    if isinstance(value, Image.Image):
        palette = None if value.palette is None else value.getpalette()
        return ("image", type(value).__name__, value.mode, value.size, form(value.info), palette, value.tobytes())
    if isinstance(value, Tensor):
        return _form_of_tensor(value)
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, value.strides, value.flags.writeable, value.tobytes())
    if isinstance(value, (str, bytes, int, complex, type(None), type, torch.dtype)):
        return (type(value), value)
    if isinstance(value, float):
        return ("float", repr(value))  # nan is equal to itself here
    if isinstance(value, Mapping):
        return (type(value).__name__, [(form(k, depth - 1), form(v, depth - 1)) for k, v in value.items()])
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, value)
    if isinstance(value, (list, tuple)) or (isinstance(value, Iterator) and depth == 6):
        return (type(value).__name__, [form(v, depth - 1) for v in value])
    return type(value).__name__


def _form_of_tensor(tensor: Tensor) -> Any:
    value = tensor.detach()
    value._is_view()  # looks at it
    about = type(tensor).__name__, value.dtype, tuple(value.shape), tensor.requires_grad, value.layout, value.device
    if value.layout != torch.strided or value.is_meta or value.is_quantized or value.is_nested:
        return (*about, repr(value))
    value = value.resolve_conj().resolve_neg()
    stride = tensor.stride() if value.numel() else None
    return (*about, stride, value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    """Return the form of what a call returns, or the type of the exception that it raises."""
    try:
        return form(call(*args))
    except Exception as e:
        return ("raises", type(e))


def seeded(seed: int = 0) -> None:
    # torch.manual_seed() takes twenty times as long without a GPU.
    random.seed(seed), np.random.seed(seed), torch.default_generator.manual_seed(seed)  # noqa: NPY002


def twice(script: Callable[[], Any]) -> tuple[Any, Any]:
    """Run a script with images that wait, and with real ones. Return what both return."""
    found = []
    for on in (True, False):
        seeded()
        with switched(on), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(script())
    return found[0], found[1]


# ---- exact engines


# ---- loaders


def global_states() -> Any:
    """Return what Python, numpy and torch would draw next."""
    return random.random(), np.random.random(), torch.rand(1).item()  # noqa: NPY002


def played(script: Callable[[Any], Any], Loader: Any, *, epochs: int = 2, seed: int = 0) -> Any:
    """Return the batches of some epochs of the loader that a script makes, and what is drawn afterwards."""
    seeded(seed)
    made: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = script(Loader)
        for _ in range(epochs):
            made.append([])
            try:
                for batch in loader:
                    made[-1].append(form(batch, 8))
            except Exception as e:
                made[-1].append(("raises", type(e)))
            made[-1].append(global_states())
    return made


def same_batches(script: Callable[[Any], Any], *, epochs: int = 2, seed: int = 0) -> Any:
    """Assert that a script's loader gives what torch's gives: batches, errors, and states of the global generators.

    Returns what torch's gives.
    """
    ours: list[Any] = []

    def Ours(*args: Any, **kwargs: Any) -> Any:
        ours.append(gpupipe.DataLoader(*args, device="cpu", engine="dali", **kwargs))
        return ours[-1]

    theirs = played(script, TorchLoader, epochs=epochs, seed=seed)
    got = played(script, Ours, epochs=epochs, seed=seed)
    for loader in ours:
        loader.close()
    assert got == theirs
    return theirs
