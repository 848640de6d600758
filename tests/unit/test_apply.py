"""The torch form of every op, decoding, jobs in workers, and the engine around them."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import children

from gpupipe import transforms as T
from gpupipe.codecs.decode import decode
from gpupipe.codecs.files import Place, Undecodable
from gpupipe.codecs.limits import Limits
from gpupipe.codecs.probe import KINDS, probe_bytes
from gpupipe.datasets.dataset import Dataset
from gpupipe.engines.null import Null
from gpupipe.engines.torch import Torch
from gpupipe.engines.torch.reference import reference
from gpupipe.errors import BadSample, ConfigError, PipelineError, SampleError
from gpupipe.kernels.apply import apply_sample, apply_tail, head_and_tail
from gpupipe.kernels.geometry import joined_crops
from gpupipe.pipelines import imagenet
from gpupipe.planning.epoch import resolve_plan
from gpupipe.reading.setup import Setup
from gpupipe.testing.photos import photograph
from gpupipe.transforms.ops import Crop, Normalize, Resize, ToDtype
from gpupipe.types import Plan


class Photos(Dataset):
    """JPEG bytes of 20 sizes, with an index; ``changed`` and ``broken`` name samples that are not what it says."""

    kind = "files"

    def __init__(self, n: int = 20, transform: Any = None, changed: Any = (), broken: Any = (), known: Any = ()):
        self.transform = transform or imagenet.train(32)
        self.files = []
        shapes = [(50 + i, 90 - 2 * i) for i in range(n)]
        for i, (h, w) in enumerate(shapes):
            file = io.BytesIO()
            Image.fromarray(photograph(h + (i in changed), w, i)).save(file, "JPEG")
            self.files.append(b"not an image" if i in broken else file.getvalue())
        self.known = set(known)
        self._sizes = np.array(shapes, np.int32)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def sizes(self) -> Any:
        return self._sizes

    @property
    def labels(self) -> Any:
        return np.arange(len(self)) * 10

    @property
    def fingerprint(self) -> str:
        return "photos"

    @property
    def source(self) -> Any:
        """Itself."""
        return self

    def place(self, index: int) -> Place:
        return Place(b"in memory", index, len(self.files[index]))

    def read(self, places: Any) -> list[bytes]:
        assert not self.known & {place.offset for place in places}, "a sample that is known to be bad was read"
        return [self.files[place.offset] for place in places]

    def fetch(self, index: int) -> tuple[Any, Any]:
        return self.read([self.place(index)])[0], None

    def bad(self, indices: Any) -> list[BadSample]:
        return [
            BadSample(int(i), self.describe(i), "known", "it was bad before") for i in indices if int(i) in self.known
        ]


def plan(dataset: Dataset, indices: Any, step: int = 0) -> Plan:
    indices = np.asarray(indices, np.int64)
    p = Plan(0, 0, step, indices, indices.astype(np.uint64), len(indices), 0)
    return p if dataset.sizes is None else resolve_plan(p, dataset.transform, dataset.sizes[indices])


def plans(dataset: Dataset, batch: int = 4) -> Iterator[Plan]:
    starts = range(0, len(dataset), batch)
    return (plan(dataset, np.arange(s, min(s + batch, len(dataset))), i) for i, s in enumerate(starts))


def setup(dataset: Dataset, **kwargs: Any) -> Setup:
    options = {"device": "cpu", "batch_size": 4, "num_workers": 0, **kwargs}
    return Setup(dataset, dataset.transform, **options)


def encoded(kind: str = "JPEG", size: tuple[int, int] = (40, 60), **kwargs: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(photograph(*size, 0)).save(file, kind, **kwargs)
    return file.getvalue()


# Ops


def test_tail_is_the_longest_suffix_of_arithmetic() -> None:
    names = lambda ops: [type(op).__name__ for op in ops]  # noqa: E731
    head, tail = head_and_tail(imagenet.train(32).skeleton)
    assert (names(head), names(tail)) == (["Crop", "Resize", "Flip"], ["ToDtype", "Normalize"])
    # a flip and a window commute with it, a fill does not
    chain = [T.ToTensor(), T.RandomHorizontalFlip(), T.RandomCrop(8), T.Normalize((0.5,), (0.5,))]
    head, tail = head_and_tail(T.Compose(chain).skeleton)
    assert (names(head), names(tail)) == (["Flip", "Crop"], ["ToDtype", "Normalize"])
    head, tail = head_and_tail(T.Compose([*chain, T.Pad(2, fill=1)]).skeleton)
    assert names(head) == ["Flip", "Crop", "ToDtype", "Normalize", "Crop"] and tail == ()


def test_moving_flips_before_arithmetic_changes_nothing() -> None:
    pipeline = T.Compose([T.ToTensor(), T.Normalize(imagenet.MEAN, imagenet.STD), T.RandomHorizontalFlip(1.0)])
    image = photograph(20, 30, 0)
    ops, *_ = pipeline.resolve(0, 0, np.zeros(1, np.uint64), np.array([[20, 30]]))
    head, tail = head_and_tail(ops)
    got = apply_tail(torch.from_numpy(np.ascontiguousarray(apply_sample(image, head, 0)))[None], tail)
    want = apply_sample(image, ops, 0)
    assert np.array_equal(got[0].permute(1, 2, 0).numpy(), want)


@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
def test_dtype_and_memory_format(dtype: str, memory_format: str) -> None:
    pipeline = imagenet.train(16, dtype=dtype, memory_format=memory_format)
    dataset = Photos(5, pipeline)
    images = reference(dataset, plan(dataset, range(5)), pipeline)
    assert images.shape == (5, 3, 16, 16) and images.dtype == getattr(torch, dtype)
    assert images.is_contiguous(memory_format=getattr(torch, memory_format))
    other = imagenet.train(16, dtype=dtype)
    assert torch.equal(images, reference(dataset, plan(dataset, range(5)), other))


def test_tail_leaves_its_input_alone() -> None:
    batch = torch.rand(2, 8, 8, 3)
    before = batch.clone()
    for ops in ((Normalize((0.5,), (0.5,)),), (ToDtype("float32"), Normalize((0.1,), (0.2,)))):
        apply_tail(batch, ops, "channels_last")
    assert torch.equal(batch, before)


def test_tail_refuses_what_has_no_form_for_a_batch() -> None:
    with pytest.raises(PipelineError, match="Resize cannot work on a whole batch"):
        apply_tail(torch.zeros(1, 2, 2, 3), (Resize(*np.ones((2, 1), np.int32)),))


def test_window_wholly_outside_is_fill() -> None:
    one = lambda n: np.array([n], np.int32)  # noqa: E731
    for top, left in ((-20, 0), (50, 0), (0, -20), (0, 90)):
        op = Crop(one(top), one(left), one(10), one(12), padded=True, fill=(7.0,))
        assert (apply_sample(photograph(40, 60, 0), (op,), 0) == 7).all()


# Decoding


def test_decode_takes_paths_bytes_and_arrays(tmp_path: Path) -> None:
    data = encoded()
    (tmp_path / "a.jpg").write_bytes(data)
    want = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(decode(data), want) and np.array_equal(decode(str(tmp_path / "a.jpg")), want)
    assert np.array_equal(decode(want), want)
    gray = want[:, :, :1]
    assert np.array_equal(decode(gray), np.repeat(gray, 3, 2)) and np.array_equal(decode(gray[:, :, 0]), decode(gray))
    assert probe_bytes(data)[1:3] == (40, 60)


def test_exif_orientation_only_where_asked(mixed_images: Path) -> None:
    path = str(mixed_images / "jpeg" / "exif6.jpg")
    assert decode(path).shape == (100, 150, 3)
    assert decode(path, Limits(exif=True)).shape == (150, 100, 3)
    assert np.array_equal(decode(path, Limits(exif=True)), np.rot90(decode(path), -1))


def test_every_format_decodes_as_pillow_converts_it(mixed_images: Path) -> None:
    for path in mixed_images.rglob("*.*"):
        want = np.asarray(Image.open(path).convert("RGB"))
        assert np.array_equal(decode(str(path)), want) and probe_bytes(path.read_bytes())[1:3] == want.shape[:2]


def bomb() -> bytes:
    data = bytearray(encoded("BMP"))
    data[18:26] = (40_000).to_bytes(4, "little") * 2
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b"not an image", "undecodable"),
        (encoded()[:-200], "truncated"),
        (encoded("PNG")[:300], "truncated"),
        (encoded("PNG")[:60] + b"x" * 400 + encoded("PNG")[-12:], "undecodable"),
        (bomb(), "bomb"),
    ],
    ids=["empty", "text", "cut jpeg", "cut png", "broken png", "bomb"],
)
def test_failures_have_a_kind(data: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    for media in (data, str(tmp_path / "x")):
        with pytest.raises(Undecodable) as e:
            decode(media)
        assert e.value.kind == kind and e.value.reason
    if kind in ("empty", "bomb"):
        assert KINDS[probe_bytes(data).status] == kind


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(Undecodable, match="missing: No such file"):
        decode(str(tmp_path / "none.jpg"))
    with pytest.raises(Undecodable, match="unreadable: it is a folder"):
        decode(str(tmp_path))


def test_transient_errors_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import builtins
    import errno

    (tmp_path / "a.jpg").write_bytes(encoded())
    real, left = open, [2]

    def flaky(path: Any, *args: Any, **kwargs: Any) -> Any:
        if os.fsdecode(path).endswith("a.jpg") and left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path, *args, **kwargs)

    monkeypatch.setattr("gpupipe.codecs.retry._WAITS", (0.0, 0.0))
    monkeypatch.setattr("gpupipe.codecs.retry._MORE_WAITS", ())
    monkeypatch.setattr("gpupipe.codecs.retry._SAID", {})
    monkeypatch.setattr(builtins, "open", flaky)
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert decode(str(tmp_path / "a.jpg")).shape == (40, 60, 3)
    assert caplog.text.count("Stale file handle") == 1
    left[0] = 3
    with pytest.raises(Undecodable, match=r"^temporary: Stale file handle \(ESTALE\): the machine or the network"):
        decode(str(tmp_path / "a.jpg"))


def test_warnings_of_pillow_do_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # 2,400 pixels: a warning, not yet an error
    data = encoded()
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(io.BytesIO(data))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode(data).shape == (40, 60, 3)


def test_odd_files_decode_or_have_a_reason(shared_data: Path) -> None:
    files = [p for p in (shared_data / "odd").rglob("*") if p.is_file()]
    kinds = []
    for path in files:
        try:
            kinds.append("good" if decode(str(path)).ndim == 3 else "")
        except Undecodable as e:
            kinds.append(e.kind if e.reason else "")
    assert {"good", "truncated", "undecodable"} <= set(kinds) <= {"good", "truncated", "undecodable", "bomb", "empty"}


# The engine


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_reference_in_order(workers: int, rng_untouched: None) -> None:
    dataset = Photos()
    engine = Torch().build(setup(dataset, num_workers=workers))
    batches = list(engine.run(plans(dataset)))
    assert [b.plan.step for b in batches] == [0, 1, 2, 3, 4]
    for batch, p in zip(batches, plans(dataset), strict=True):
        assert torch.equal(batch.images, reference(dataset, p, dataset.transform))
        assert batch.target.dtype == torch.int64 and batch.target.tolist() == (p.indices * 10).tolist()
    engine.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_named_and_the_run_goes_on(workers: int) -> None:
    dataset = Photos(broken=[1, 2], changed=[6], known=[13])
    engine = Torch().build(setup(dataset, num_workers=workers))
    run = engine.run(plans(dataset))
    with pytest.raises(SampleError) as e:
        next(run)
    assert [(s.index, s.kind) for s in e.value.samples] == [(1, "undecodable"), (2, "undecodable")]
    with pytest.raises(SampleError, match=r"sample 6 .*: changed: .*56x78 .* 57x78; .*gpupipe index --rebuild DIR"):
        next(run)
    assert next(run).plan.step == 2
    with pytest.raises(SampleError, match=r"sample 13 .*: known: it was bad before"):
        next(run)
    assert next(run).plan.step == 4
    with pytest.raises(StopIteration):
        next(run)
    engine.close()


def test_break_and_close_leave_nothing() -> None:
    dataset = Photos()
    threads, before = threading.active_count(), children()
    engine = Torch().build(setup(dataset, num_workers=2))
    assert children() == before  # nothing starts before the first run
    for _ in range(3):
        run = engine.run(plans(dataset, 1))
        assert next(run).plan.step == 0 and next(run).plan.step == 1
        run.close()
        run.close()
        with pytest.raises(StopIteration):
            next(run)
    pids = children() - before
    assert len(pids) == 2
    assert [b.plan.step for b in engine.run(plans(dataset))] == [0, 1, 2, 3, 4]
    assert children() - before == pids  # the same workers all along
    run = engine.run(plans(dataset, 1))
    next(run)
    held = run._results._results  # as the frame of a traceback may; without it torch's own destructor would do
    engine.close()
    engine.close()
    assert (
        held is not None
        and children() == before
        and multiprocessing.active_children() == []
        and threading.active_count() == threads
    )
    assert next(engine.run(plans(dataset))).plan.step == 0  # and it can start again
    engine.close()


def test_prefetch_is_bounded() -> None:
    dataset = Photos()
    taken: list[int] = []

    def counted() -> Iterator[Plan]:
        for p in plans(dataset, 1):
            taken.append(p.step)
            yield p

    engine = Torch().build(setup(dataset, num_workers=2, prefetch_factor=3))
    run = engine.run(counted())
    assert len(taken) == 6
    next(run)
    assert len(taken) == 7
    engine.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_planning_comes_in_its_turn(workers: int) -> None:
    dataset = Photos()

    def failing() -> Iterator[Plan]:
        yield plan(dataset, [0, 1], 0)
        yield plan(dataset, [2, 3], 1)
        raise PipelineError("RandomCrop: too small")

    engine = Torch().build(setup(dataset, num_workers=workers))
    run = engine.run(failing())
    assert [next(run).plan.step, next(run).plan.step] == [0, 1]
    with pytest.raises(PipelineError, match=r"^RandomCrop: too small$"):
        next(run)
    with pytest.raises(StopIteration):
        next(run)
    engine.close()


def seen_in_worker(_: int) -> None:
    assert torch.get_num_threads() == 1


def test_workers_run_one_torch_thread_each(many_torch_threads: None) -> None:
    dataset = Photos()
    engine = Torch().build(setup(dataset, num_workers=1, worker_init_fn=seen_in_worker))
    assert len(list(engine.run(plans(dataset)))) == 5
    engine.close()


def test_facts() -> None:
    dataset = Photos(4)
    engine = Torch(staging="pageable").build(setup(dataset))
    assert engine.facts()["decoder"].startswith("Pillow") and "staging" not in engine.facts()


def test_config_is_checked() -> None:
    with pytest.raises(ConfigError, match="staging must be one of ring, pin_memory, pageable, not 'fast'"):
        Torch(staging="fast")  # type: ignore[arg-type]
    pad = T.Pad(1, fill=(1, 2, 3))
    with pytest.raises(PipelineError, match="3 values for an image of 1 channel"):
        Torch().check(setup(Photos(1, T.Compose([T.Grayscale(1), pad]))))
    half = [T.ToImage(), T.ToDtype(torch.bfloat16, scale=True)]
    Torch().check(setup(Photos(1, T.Compose([pad, *half, T.RandomHorizontalFlip()]))))
    with pytest.raises(PipelineError, match=r"ToDtype\(bfloat16\)"):
        Torch().check(setup(Photos(1, T.Compose([*half, pad]))))


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="sees no CUDA device"):
        Torch().check(setup(Photos(1), device="cuda:0"))


def test_null_engine_echoes_plans() -> None:
    dataset = Photos(known=[5])
    run = Null().build(setup(dataset)).run(plans(dataset))
    batch = next(run)
    assert batch.images is batch.plan and batch.target.tolist() == [0, 10, 20, 30]
    with pytest.raises(SampleError, match="sample 5"):
        next(run)
    assert next(run).plan.step == 2
    run.close()
    with pytest.raises(StopIteration):
        next(run)


def test_joined_crops_are_the_crops_one_after_another() -> None:
    rng = np.random.default_rng(0)
    image, joined = rng.integers(0, 256, (40, 50, 3), np.uint8), 0
    for _ in range(60):
        size, crops = (40, 50), []
        for _ in range(3):
            padded = bool(rng.integers(2))
            new = [int(rng.integers(5, n + 1 + 9 * padded)) for n in size]
            starts = [int(rng.integers(-5 * padded, max(n - m, 0) + 1)) for n, m in zip(size, new, strict=True)]
            numbers = [np.array([n], np.int32) for n in (*starts, *new)]
            crops.append(Crop(*numbers, padded=padded, fill=(float(rng.integers(256)),)))
            size = (new[0], new[1])
        made = joined_crops(crops)
        joined += len(crops) - len(made)
        np.testing.assert_array_equal(apply_sample(image, made, 0), apply_sample(image, crops, 0))
    assert joined > 20
