"""What the DALI engine leaves to torch is, on the CPU, done as the reference does it, in threads of its own."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe import transforms as T
from gpupipe.engines.host.image_threads import ImageThreads
from gpupipe.errors import PipelineError
from gpupipe.kernels.apply import apply_batch, apply_sample, apply_tail, head_and_tail
from gpupipe.kernels.stacking import stack_images
from gpupipe.testing.photos import photograph

PIXELS = np.stack([photograph(40, 56, i) for i in range(7)])
N = len(PIXELS)
FLOAT = [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]


def resolved(*transforms: Any) -> Any:
    return T.Compose(list(transforms)).resolve(0, 0, np.arange(7, dtype=np.uint64), np.tile([40, 56], (7, 1)))[0]


def mine(images: Any) -> Iterator[tuple[Any, Any]]:
    """Images that point into nothing else."""
    return ((image, None) for image in images)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
def test_it_is_the_reference_to_the_last_bit(threads: int, memory_format: str) -> None:
    ops = resolved(T.ColorJitter(hue=0.2), T.RandomGrayscale(0.5), T.RandomEqualize(), *FLOAT, T.RandomErasing(1.0))
    batch = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    head, tail = head_and_tail(ops)
    want = apply_tail(
        stack_images([apply_sample(p.copy(), head, i) for i, p in enumerate(PIXELS)]), tail, memory_format
    )
    before = batch.clone()
    pool = ImageThreads(threads)
    (got,) = pool.start(N, mine(PIXELS), ops, memory_format).result()
    pool.close()
    assert torch.equal(got, want) and got.is_contiguous(memory_format=getattr(torch, memory_format))
    assert torch.equal(batch, before)


def test_colors_one_after_another_are_the_same_as_each_by_itself() -> None:
    """Between them they stay floats, of whole numbers as bytes have them."""
    ops = resolved(T.ColorJitter(0.4, 0.4, 0.4), T.RandomAdjustSharpness(1.7), T.ColorJitter(0.4, 0.4, 0.4))
    for row, pixels in enumerate(PIXELS):
        before, want = pixels.copy(), pixels
        for op in ops:
            want = apply_sample(want, [op], row)
        assert np.array_equal(apply_sample(pixels, ops, row), want)
        assert not np.array_equal(want, pixels) and np.array_equal(pixels, before)


def test_blur_goes_along_one_axis_after_the_other_and_stays_within_a_level() -> None:
    ops = resolved(T.GaussianBlur((9, 5), (0.5, 2.0)))
    batch = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    pool = ImageThreads(2)
    got = pool.start(N, mine(PIXELS), ops).result()[0].int()
    pool.close()
    apart = (got - apply_batch(batch, ops).int()).abs()
    assert apart.max() <= 1 and apart.float().mean() < 0.001
    assert (got - batch.int()).abs().float().mean() > 1


@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
def test_memory_is_used_again_when_nobody_has_the_batch_and_not_before(memory_format: str) -> None:
    ops = resolved(T.RandomHorizontalFlip(0.5), *FLOAT)
    pool = ImageThreads(2, keep=1)

    def batch() -> torch.Tensor:
        return pool.start(N, mine(PIXELS), ops, memory_format).result()[0]

    first = batch()
    want, view, place = first.clone(), first[3, 1], first.data_ptr()
    del first
    second = batch()
    assert second.data_ptr() != place and torch.equal(view, want[3, 1])
    del view
    third = batch()
    assert third.data_ptr() == place and torch.equal(third, want) and torch.equal(second, want)
    pool.close()


def test_user_code_runs_with_one_thread_of_torch() -> None:
    before, inside = torch.get_num_threads(), []

    def look(image: Any) -> Any:
        inside.append((threading.current_thread(), torch.get_num_threads()))
        return image

    torch.set_num_threads(3)
    try:
        pool = ImageThreads(2)
        pool.start(N, mine(PIXELS), resolved(T.Lambda(look))).result()
        pool.close()
        assert inside == [(threading.current_thread(), 1)] * N and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_of_views_only_user_code_runs_in_the_thread_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[str] = []

    def noted(image: Any, ops: Any, *rest: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            here.extend(type(op).__name__ for op in ops)
        return apply_sample(image, ops, *rest)

    monkeypatch.setattr("gpupipe.engines.host.image_threads.apply_sample", noted)
    one = T.Compose([T.RandomEqualize(1.0), T.Lambda(lambda image: image)])
    ops, pool = resolved(T.MultiView([one, T.Compose([T.RandomInvert(1.0)])])), ImageThreads(2)
    views = pool.start(N, mine(PIXELS), ops).result()
    pool.close()
    assert here == ["Call"] * N
    for i, wanted in enumerate(apply_sample(image, ops, i) for i, image in enumerate(PIXELS)):
        assert all(np.array_equal(v[i].permute(1, 2, 0), w) for v, w in zip(views, wanted, strict=True))


def test_torchs_own_threads_stay_as_many_as_they_were_everywhere_else() -> None:
    before, others = torch.get_num_threads(), set(threading.enumerate())
    torch.set_num_threads(3)
    try:
        pool = ImageThreads(2)
        pool.start(N, mine(PIXELS), resolved(T.RandomEqualize(1.0))).result()
        inside = list(pool._threads().map(lambda _: torch.get_num_threads(), range(4)))
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert torch.get_num_threads() == 3 and later == [3] and set(inside) == {1}
        assert any(t.name.startswith("gpupipe-images") for t in set(threading.enumerate()) - others)
        pool.close()
        assert not any(t.name.startswith("gpupipe-images") for t in set(threading.enumerate()) - others)
    finally:
        torch.set_num_threads(before)


def test_an_error_is_raised_and_leaves_no_circle() -> None:
    """Such a circle would hold DALI's pipeline, and a forked process that collects it would wait for ever."""
    pool = ImageThreads(2)
    for transforms in ([T.Lambda(lambda image: 1 / 0), T.RandomInvert(1.0)], [T.RandomInvert(1.0)]):
        ops = resolved(*transforms)
        images: list[Any] = [*PIXELS[:6], PIXELS[6] if len(ops) == 2 else object()]
        gc.collect()
        gc.disable()
        try:
            making = pool.start(N, mine(images), ops)
            there = weakref.ref(making)
            with pytest.raises((PipelineError, IndexError)):
                making.result()
            pool.close()  # the threads let go of what they did last
            del making
            assert there() is None
        finally:
            gc.enable()


def test_after_an_error_no_other_image_is_asked_for() -> None:
    asked: list[int] = []

    def images() -> Iterator[tuple[Any, Any]]:
        for i in range(3000):
            asked.append(i)
            yield (object() if i == 0 else PIXELS[0]), None

    pool = ImageThreads(2)
    with pytest.raises(IndexError):
        pool.start(N, images(), resolved(T.RandomInvert(1.0))).result()
    pool.close()
    assert len(asked) < 3000


def test_an_error_of_the_images_is_raised() -> None:
    def images() -> Iterator[tuple[Any, Any]]:
        yield PIXELS[0], None
        raise OSError("the rest is gone")

    pool = ImageThreads(2)
    for ops in (resolved(T.RandomInvert(1.0)), resolved(T.Lambda(lambda image: image))):
        with pytest.raises(OSError, match="the rest is gone"):
            pool.start(N, images(), ops).result()
    pool.close()


def test_for_a_gpu_bytes_are_left_as_they_lie_and_the_arithmetic_to_the_batch() -> None:
    ops = resolved(T.RandomEqualize(), *FLOAT, T.RandomErasing(1.0))
    pool = ImageThreads(2)
    making = pool.start(N, mine(PIXELS), ops, "channels_last", whole=False)
    (batch,), (rest,) = making.result(), making.rest
    (want,) = pool.start(N, mine(PIXELS), ops).result()
    pool.close()
    assert batch.dtype == torch.uint8 and batch.is_contiguous(memory_format=torch.channels_last)
    assert [type(op).__name__ for op in rest] == ["ToDtype", "Normalize", "Erase"]
    assert torch.equal(apply_batch(batch, rest, "contiguous_format"), want)
