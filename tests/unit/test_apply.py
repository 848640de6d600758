"""Ops on samples and on batches, decoding, and the settings of the torch engine."""

from __future__ import annotations

import io
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import children, settled, setup_of

from gpupipe import DataLoader, transforms as T
from gpupipe.codecs.decode import decode
from gpupipe.codecs.files import Undecodable
from gpupipe.codecs.probe import probe_bytes
from gpupipe.datasets import Arrays
from gpupipe.engines.torch import Torch
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.kernels.apply import apply_sample, apply_tail, head_and_tail
from gpupipe.kernels.geometry import joined_crops
from gpupipe.pipelines import imagenet
from gpupipe.testing.photos import photograph
from gpupipe.transforms.ops import Crop, Normalize, Resize, ToDtype

PIXELS = np.zeros((4, 8, 8, 3), np.uint8)


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


# The engine


def seen_in_worker(_: int) -> None:
    assert torch.get_num_threads() == 1


def test_workers_run_one_torch_thread_each(many_torch_threads: None) -> None:
    options: Any = {"num_workers": 1, "worker_init_fn": seen_in_worker}
    with DataLoader(Arrays(PIXELS), engine="torch", device="cpu", **options) as loader:
        assert len(list(loader)) == 4


def test_closing_ends_workers_that_a_traceback_still_refers_to() -> None:
    before = children()
    loader = DataLoader(Arrays(PIXELS), engine="torch", device="cpu", num_workers=2)
    iterator: Any = iter(loader)
    next(iterator)
    held = iterator._lease.run._results._results  # torch's own destructor does not run
    assert len(children() - before) == 2
    loader.close()
    assert held is not None and settled(children, before)


def test_facts() -> None:
    engine = Torch(staging="pageable").build(setup_of(Arrays(PIXELS)))
    assert engine.facts()["decoder"].startswith("Pillow") and "staging" not in engine.facts()


def test_config_is_checked() -> None:
    with pytest.raises(ConfigError, match="staging must be one of ring, pin_memory, pageable, not 'fast'"):
        Torch(staging="fast")  # type: ignore[arg-type]
    pad = T.Pad(1, fill=(1, 2, 3))
    with pytest.raises(PipelineError, match="3 values for an image of 1 channel"):
        Torch().check(setup_of(Arrays(PIXELS, transform=T.Compose([T.Grayscale(1), pad]))))
    half = [T.ToImage(), T.ToDtype(torch.bfloat16, scale=True)]
    Torch().check(setup_of(Arrays(PIXELS, transform=T.Compose([pad, *half, T.RandomHorizontalFlip()]))))
    with pytest.raises(PipelineError, match=r"ToDtype\(bfloat16\)"):
        Torch().check(setup_of(Arrays(PIXELS, transform=T.Compose([*half, pad]))))


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
