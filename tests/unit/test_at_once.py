"""What one call makes of an image is, bit by bit, what the forms make one after another."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe import transforms as T
from gpupipe.codecs.pillow import quiet
from gpupipe.engines.host.image_batch import ImageBatch
from gpupipe.kernels import at_once
from gpupipe.kernels.apply import apply_batch, apply_sample, head_and_tail
from gpupipe.kernels.at_once import AtOnce, Steps
from gpupipe.kernels.dtype import normalize
from gpupipe.kernels.picture import chw
from gpupipe.kernels.registry import FAST_FORMS, FORMS
from gpupipe.reading.buffers import BatchPool
from gpupipe.testing.photos import photograph
from gpupipe.transforms.ops import Crop, Normalize
from gpupipe.transforms.ops.structure import by_view

N = 9
SIZE = (60, 84)
PIXELS = [photograph(*SIZE, i) for i in range(N)]
SCALE: list[Any] = [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
CHAINS: dict[str, list[Any]] = {
    "train": [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), *SCALE],
    "val": [T.Resize(40), T.CenterCrop(32), *SCALE],
    "bicubic": [T.RandomResizedCrop(32, interpolation="bicubic"), T.RandomVerticalFlip(), *SCALE],
    "enlarged": [T.CenterCrop(24), T.Resize((90, 70)), T.RandomHorizontalFlip(), T.RandomVerticalFlip(), *SCALE],
    "as tensors": [T.ToImage(), T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)],
    "bytes": [T.RandomCrop(32), T.RandomHorizontalFlip(), T.ToImage()],
    "scaled": [T.RandomCrop(32), T.ToTensor()],
    "nothing": [T.ToImage()],
    "the same size": [T.Resize(SIZE), T.CenterCrop(SIZE), *SCALE],
    "colors": [T.RandomResizedCrop(32), T.ColorJitter(0.8, 0.8, 0.8, 0.3), T.RandomGrayscale(0.3), *SCALE],
    "blurred": [
        T.RandomResizedCrop(32),
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
        T.RandomApply([T.GaussianBlur((9, 5), (0.1, 2.0))], 0.5),
        T.RandomSolarize(128, 0.5),
        T.RandomHorizontalFlip(),
        *SCALE,
    ],
    "color bytes": [T.GaussianBlur(3, 0.2), T.ColorJitter(0.4, 0.4, 0.2, 0.1), T.CenterCrop(24), T.PILToTensor()],
    "solarized hues": [T.RandomSolarize(90, 1.0), T.ColorJitter(hue=0.5), T.RandomSolarize(300, 1.0), *SCALE],
    "enhanced": [
        T.RandomResizedCrop(32),
        T.RandomPosterize(3, 0.5),
        T.RandomAdjustSharpness(1.7, 0.7),
        T.RandomInvert(0.5),
        T.RandomEqualize(0.3),
        T.RandomPosterize(2, 0.5),
        T.RandomAdjustSharpness(0.2, 0.7),
        *SCALE,
    ],
    "colors first": [T.ColorJitter(0.4, 0.4), T.RandomResizedCrop(32), *SCALE],
    "colors last": [T.RandomResizedCrop(32), T.ColorJitter(0.4, 0.4), *SCALE],
    "erased": [T.RandomResizedCrop(32), *SCALE, T.RandomErasing(0.5, value="random")],
    "float16": [T.RandomResizedCrop(32), *SCALE, T.ToDtype("float16")],
    "bfloat16": [T.RandomResizedCrop(32), *SCALE, T.ToDtype("bfloat16")],
    "in float16": [T.RandomResizedCrop(32), T.ToImage(), T.ToDtype("float16", scale=True), SCALE[1]],
    "scaled float16": [T.RandomCrop(32), T.ToImage(), T.ToDtype("float16", scale=True)],
    "padded": [T.RandomCrop(64, padding=8, fill=(10, 20, 30)), T.RandomHorizontalFlip(), *SCALE],
    "one mean": [T.RandomResizedCrop(32), T.ToTensor(), T.Normalize(0.5, 0.3)],
    "gray": [T.Grayscale(), T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(0.5, 0.5)],
}
IN_SEVERAL_CALLS = {"erased", "in float16", "padded", "scaled float16", "gray"}
LAYOUTS = ["contiguous_format", "channels_last"]


def resolved(chain: str) -> Any:
    sizes = np.tile(SIZE, (N, 1))
    return T.Compose(CHAINS[chain]).resolve(3, 1, np.arange(N, dtype=np.uint64), sizes)[0]


def one_after_another(ops: Any, memory_format: str) -> torch.Tensor:
    head, tail = head_and_tail(ops)
    forms = {**FORMS, **FAST_FORMS}
    made = []
    for i, pixels in enumerate(PIXELS):
        image = chw(apply_sample(pixels.copy(), head, i, forms))[None]  # type: ignore[arg-type]
        made.append(apply_batch(image, [op.take(slice(i, i + 1)) if op.rows else op for op in tail], memory_format))
    return torch.cat(made).contiguous(memory_format=getattr(torch, memory_format))


def batch_of(ops: Any, memory_format: str, images: Any = PIXELS) -> torch.Tensor:
    batch = ImageBatch(N, ops, BatchPool(keep=1), memory_format)
    for row, pixels in enumerate(images):
        batch.put(pixels, row)
    (made,) = batch.tensors
    return made


def _gone(function: Any) -> Any:
    raise RuntimeError("TorchScript is not there any more")


def _without_source(function: Any) -> Any:
    raise OSError("could not get source code")


def _deprecated(function: Any, **options: Any) -> Any:
    warnings.warn("torch.jit.script is deprecated", FutureWarning, stacklevel=1)
    return SCRIPT(function, **options)


SCRIPT = torch.jit.script
WAYS = {"compiled": None, "deprecated": _deprecated, "without TorchScript": _gone, "without source": _without_source}


@pytest.fixture(params=list(WAYS))
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[list[float]]]]:
    """The steps of every image of every call."""
    if instead := WAYS[request.param]:
        monkeypatch.setattr(torch.jit, "script", instead)
    at_once._compiled.cache_clear()
    seen, put = list[list[list[float]]](), AtOnce.put

    def watched(self: AtOnce, images: Any, numbers: list[list[float]], steps: Steps, outs: list[torch.Tensor]) -> None:
        seen.append(numbers)
        put(self, images, numbers, steps, outs)

    monkeypatch.setattr(AtOnce, "put", watched)
    yield seen
    at_once._compiled.cache_clear()


@pytest.mark.parametrize("memory_format", LAYOUTS)
@pytest.mark.parametrize("chain", list(CHAINS))
def test_it_is_one_after_another_bit_by_bit(chain: str, memory_format: str, calls: list[list[list[float]]]) -> None:
    ops = resolved(chain)
    before = [pixels.copy() for pixels in PIXELS]
    got = batch_of(ops, memory_format)
    want = one_after_another(ops, memory_format)
    assert got.dtype == want.dtype and torch.equal(got, want)
    assert got.is_contiguous(memory_format=getattr(torch, memory_format))
    assert all(np.array_equal(a, b) for a, b in zip(PIXELS, before, strict=True))
    if chain not in IN_SEVERAL_CALLS:
        assert len(calls) == N and any(map(any, calls)) == (chain not in {"nothing", "the same size"})


def test_only_what_a_pipeline_needs_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colors take longer to compile."""
    at_once._compiled.cache_clear()
    compiled: list[Any] = []
    monkeypatch.setattr(torch.jit, "script", lambda function: compiled.append(function) or function)
    try:
        batch_of(resolved("colors"), "contiguous_format")
        assert compiled == [at_once._put_colored]
        batch_of(resolved("train"), "contiguous_format")
        assert compiled == [at_once._put_colored, at_once._put]
    finally:
        at_once._compiled.cache_clear()


def test_all_views_of_an_image_are_one_call(calls: list[list[list[float]]]) -> None:
    pipeline = T.Compose([T.RandomHorizontalFlip(), T.MultiView([CHAINS["blurred"], CHAINS["colors"]])])
    ops = pipeline.resolve(3, 1, np.arange(N, dtype=np.uint64), np.tile(SIZE, (N, 1)))[0]
    batch = ImageBatch(N, ops, BatchPool(keep=2))
    for row, pixels in enumerate(PIXELS):
        batch.put(pixels, row)
    assert len(batch.tensors) == 2 and [len(call) for call in calls] == [2] * N
    for got, own in zip(batch.tensors, by_view(ops), strict=True):
        assert torch.equal(got, one_after_another(own, "contiguous_format"))


def test_views_with_different_arithmetic_are_two_calls(calls: list[list[list[float]]]) -> None:
    branches = [[*CHAINS["train"][:-1], T.Normalize(mean, 0.5)] for mean in (0.25, 0.5)]
    ops = T.Compose([T.MultiView(branches)]).resolve(3, 1, np.arange(N, dtype=np.uint64), np.tile(SIZE, (N, 1)))[0]
    batch = ImageBatch(N, ops, BatchPool(keep=2))
    batch.put_several(PIXELS, range(N))
    assert [len(call) for call in calls] == [N, N]
    for got, own in zip(batch.tensors, by_view(ops), strict=True):
        assert torch.equal(got, one_after_another(own, "contiguous_format"))


@pytest.mark.parametrize("memory_format", LAYOUTS)
@pytest.mark.parametrize("chain", CHAINS)
def test_several_images_are_put_like_one_after_another(chain: str, memory_format: str) -> None:
    ops = resolved(chain)
    batch = ImageBatch(N, ops, BatchPool(keep=1), memory_format)
    for rows in np.array_split(np.arange(N)[::-1], 3):
        batch.put_several([PIXELS[row] for row in rows], rows.tolist())
    assert torch.equal(batch.tensors[0], one_after_another(ops, memory_format))


@pytest.mark.parametrize("memory_format", LAYOUTS)
def test_of_images_that_lie_oddly_in_memory(memory_format: str, calls: list[list[list[float]]]) -> None:
    """Windows of larger images, and images that may not be written to."""
    ops = resolved("train")
    wide = [np.pad(pixels, ((3, 2), (5, 4), (0, 0)))[3:-2, 5:-4] for pixels in PIXELS]
    mirrored = [np.ascontiguousarray(pixels[:, ::-1])[:, ::-1] for pixels in PIXELS]
    read_only = [pixels.copy() for pixels in PIXELS]
    for pixels in read_only:
        pixels.flags.writeable = False
    want = one_after_another(ops, memory_format)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for images in (wide, mirrored, read_only):
            assert torch.equal(batch_of(ops, memory_format, images), want)
    assert len(calls) == 3 * N


def test_what_is_not_bytes_or_reaches_beyond_the_image_is_left_to_the_forms() -> None:
    ops = resolved("padded")
    head, _ = head_and_tail(ops)
    found = [Steps(head, N).of(pixels, row) for row, pixels in enumerate(PIXELS)]
    outside = [
        min(op.top[i], op.left[i]) < 0 or op.top[i] + op.height[i] > SIZE[0] or op.left[i] + op.width[i] > SIZE[1]
        for op in head
        for i in range(N)
        if isinstance(op, Crop)
    ]
    assert all(outside) and found == [None] * N
    inside = Steps(head_and_tail(resolved("train"))[0], N)
    assert inside.of(PIXELS[0], 0) is not None
    assert inside.of(PIXELS[0].astype(np.float32), 0) is None
    assert inside.of(PIXELS[0][:, :, 0], 0) is None


def test_a_forked_child_waits_for_no_lock_of_torchscript() -> None:
    """A thread of the parent may have held one; then of 150 children one waits for ever."""
    ops, done = resolved("train"), threading.Event()
    want = batch_of(ops, "contiguous_format")

    def works() -> None:
        while not done.is_set():
            batch_of(ops, "contiguous_format")

    threads = [threading.Thread(target=works) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        child = os.fork()
        if not child:
            same = False
            try:
                plain = at_once._compiled(at_once._put) is at_once._put
                same = plain and torch.equal(batch_of(ops, "contiguous_format"), want)
            finally:
                os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_ops_that_are_given_are_done_in_the_place_of_the_others() -> None:
    batch = ImageBatch(N, resolved("train"), BatchPool(keep=1))
    for row, pixels in enumerate(PIXELS):
        batch.put(pixels, row, ())
    assert torch.equal(batch.tensors[0], one_after_another(resolved("train")[-2:], "contiguous_format"))


def test_different_sizes_are_an_error_as_without_it(calls: list[list[list[float]]]) -> None:
    batch = ImageBatch(N, resolved("nothing"), BatchPool(keep=1))
    batch.put(PIXELS[0], 0)
    with pytest.raises(ValueError, match="different sizes"):
        batch.put(PIXELS[0][:10], 1)


def test_with_functions_of_the_script_pillow_resizes() -> None:
    """Then all is to the reference's last bit."""
    ops = T.Compose([T.Lambda(lambda image: image), T.Resize((20, 30)), *SCALE]).resolve(
        0, 0, np.arange(N, dtype=np.uint64), np.tile(SIZE, (N, 1))
    )[0]
    batch = ImageBatch(N, ops, BatchPool(keep=1))
    assert batch.forms is FORMS
    for row, pixels in enumerate(PIXELS):
        batch.put(pixels, row)
    head, tail = head_and_tail(ops)
    want = torch.cat([apply_batch(chw(apply_sample(p, head, i))[None], tail) for i, p in enumerate(PIXELS)])  # type: ignore[arg-type]
    assert torch.equal(batch.tensors[0], want)
    assert not torch.equal(one_after_another(ops, "contiguous_format"), want)  # torch resizes a little differently


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("memory_format", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 1, 5, 7), (2, 1, 5, 1), (2, 3, 1, 1), (1, 3, 5, 1), (3, 4, 1, 7)])
def test_normalized_batches_have_the_bits_and_strides_of_torchs(
    shape: tuple[int, ...], memory_format: str, inplace: bool
) -> None:
    layout = getattr(torch, memory_format)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=layout)
    for values in ((0.3,), tuple(0.1 * k for k in range(1, shape[1] + 1))):
        one = torch.tensor(values).view(-1, 1, 1)
        want = x.clone().sub_(one).div_(one)
        got = normalize(x.clone(), Normalize(values, values), layout, inplace)
        assert torch.equal(got, want) and got.stride() == want.stride()


def test_only_the_first_calls_are_not_optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_once, "_FIRST", 2)
    seen: list[bool] = []

    def put(*arguments: Any) -> None:
        seen.append(torch._C._get_graph_executor_optimize())

    monkeypatch.setattr(at_once, "_compiled", lambda function: put)
    ops = resolved("train")
    at_once._at_once.cache_clear()
    try:
        batch_of(ops, "contiguous_format", PIXELS[:4])
    finally:
        at_once._at_once.cache_clear()
    assert seen == [False, False, True, True] and torch._C._get_graph_executor_optimize()


def test_compiling_is_quiet_while_another_thread_stops_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both silence warnings, whose filters belong to the process."""
    stop, inside = threading.Event(), threading.Event()

    def decode() -> None:
        with quiet():
            inside.set()
            stop.wait(60)

    def compile_it(function: Any) -> Any:
        stop.set()
        thread.join()
        warnings.warn("TorchScript is deprecated", DeprecationWarning, stacklevel=2)
        return function

    def put() -> None: ...

    thread = threading.Thread(target=decode)
    before = list(warnings.filters)
    thread.start()
    inside.wait(60)
    monkeypatch.setattr(torch.jit, "script", compile_it)
    assert at_once._compiled(put) is put
    assert warnings.filters == before
