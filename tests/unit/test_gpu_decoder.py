"""What a GPU's decoder is trusted with: by the version of nvJPEG, and by a self-test of windows whose process may
crash, hang, find wrong pixels or not start."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvidia.dali")

from gpupipe import transforms as T
from gpupipe.datasets import Arrays, ImageFolder
from gpupipe.engines import Dali
from gpupipe.engines.dali import decoder
from gpupipe.errors import ConfigError
from gpupipe.reading.setup import Setup
from gpupipe.testing.photos import photograph

ENDS = {
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "exit status -11", True),
    "hang": ("import time; time.sleep(60)", "no answer within 1 s", True),
    "wrong pixels": ("raise RuntimeError('window 3 differs by 90 gray levels')", "differs by 90", True),
    "no module": ("import gpupipe_is_not_there", "ModuleNotFoundError", False),
    "no memory": ("raise RuntimeError('CUDA error: out of memory')", "out of memory", False),
    "DALI without memory": (
        "import sys; print('Error in MIXED operator: bad_alloc', file=sys.stderr); "
        "raise RuntimeError('Critical error in pipeline:\\nCurrent pipeline object is no longer valid.')",
        "bad_alloc",
        False,
    ),
    "no device": ("raise RuntimeError('all CUDA-capable devices are busy or unavailable')", "busy or", False),
    "old driver": ("raise RuntimeError('CUDA driver version is insufficient')", "driver version", False),
    "no CUDA": ("raise RuntimeError('CUDA is not available')", "CUDA is not available", False),
}
"""What the process runs, what is said of it, and whether that is a verdict for good."""


@pytest.fixture
def on_some_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_verdicts", {})
    monkeypatch.setattr(
        decoder,
        "_identity",
        lambda device, fancy: {"fancy": str(fancy), "gpu": "some GPU", "driver": "1", "packages": ""},
    )


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.usefixtures("on_some_gpu")
def test_a_process_that_fails_means_whole_images(
    end: str, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code, said, remembered = ENDS[end]
    monkeypatch.setattr(decoder, "_SECONDS", 1 if end == "hang" else 60)
    asked: list[str] = []

    def attempt(device: str, fancy: bool) -> tuple[bool, str]:
        asked.append(device)
        return decoder._answer(code)

    monkeypatch.setattr(decoder, "_try", attempt)
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert decoder.windows_work("cuda:0", fancy=True) is False
        assert decoder.windows_work("cuda:0", fancy=True) is False
    assert said in caplog.text and "decoding whole images" in caplog.text
    assert len(asked) == (1 if remembered else 2)
    assert len(list(cache.rglob("*.json"))) == remembered


@pytest.mark.usefixtures("on_some_gpu")
def test_a_process_that_ends_well_is_asked_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_try", lambda device, fancy: decoder._answer("import gpupipe.engines.dali.decoder"))
    assert decoder.windows_work("cuda:0", fancy=True) is True
    monkeypatch.setattr(decoder, "_try", lambda device, fancy: (False, "asked again"))
    assert decoder.windows_work("cuda:0", fancy=True) is True
    (file,) = cache.rglob("*.json")
    assert json.loads(file.read_text())["gpu"] == "some GPU"
    monkeypatch.setattr(decoder, "_verdicts", {})  # as in the next process
    assert decoder.windows_work("cuda:0", fancy=True) is True
    file.unlink()
    assert decoder.windows_work("cuda:0", fancy=True) is True


@pytest.mark.usefixtures("on_some_gpu")
def test_a_process_asks_once_also_without_a_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(decoder, "_try", lambda device, fancy: (not asked.append(device), ""))  # type: ignore[func-returns-value]
    for folder in ("one", "two"):
        monkeypatch.setenv("GPUPIPE_CACHE", str(cache / folder))
        assert decoder.windows_work("cuda:0", fancy=True) is True
    assert asked == ["cuda:0"]


def test_the_self_test_passes_on_the_cpu_and_notices_wrong_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no GPU to be right itself: the CPU's windows are exact, and a window moved by a pixel is not."""
    from nvidia.dali import fn, math

    decoder.self_test(None)
    plain = fn.decoders.image_slice

    def moved(encoded: Any, *, start: Any, shape: Any, **arguments: Any) -> Any:
        return plain(encoded, start=math.max(start - 9, 0), shape=shape, **arguments)

    monkeypatch.setattr(fn.decoders, "image_slice", moved)
    with pytest.raises(RuntimeError, match="window 0 differs by"):
        decoder.self_test(None)


def test_windows_of_another_decoder_are_right_and_those_of_another_place_are_not() -> None:
    rng = np.random.default_rng(0)
    whole = photograph(120, 150, 3)
    start = np.array([20, 30], np.int32)

    def window(down: int = 0, right: int = 0) -> Any:
        return whole[20 + down : 90 + down, 30 + right : 110 + right]

    def noisy(image: Any, level: int, share: float = 1.0) -> Any:
        """Off by up to so many levels, in a share of the pixels."""
        noise = rng.integers(-level, level + 1, image.shape) * (rng.random(image.shape) < share)
        return np.clip(image + noise, 0, 255).astype(np.uint8)

    assert decoder.judge(whole, window(), start) is None
    assert decoder.judge(whole, noisy(window(), 1), start) is None
    assert decoder.judge(whole, noisy(window(), 30, 0.005), start) is None  # edges of chroma
    assert "differs by" in (decoder.judge(whole, noisy(window(), 9), start) or "")
    assert "differs by" in (decoder.judge(whole, noisy(window(), 90, 0.001), start) or "")
    assert decoder.judge(whole, window(1, 0), start) and decoder.judge(whole, window(0, 1), start)
    assert decoder.judge(whole, np.zeros_like(window()), start) == "is black"
    # So smooth that a place one pixel beside it is less than a level away: only the comparison shows it.
    smooth = (np.linspace(0, 60, 120)[:, None, None] + np.linspace(0, 60, 150)[None, :, None] + [[[0, 3, 9]]]).round()
    smooth = smooth.astype(np.uint8)
    assert decoder.judge(smooth, smooth[20:90, 30:110], start) is None
    assert "shifted by one pixel" in (decoder.judge(smooth, smooth[21:91, 30:110], start) or "")


# ---- what is chosen


CROPS = T.Compose([T.RandomCrop(32), T.PILToTensor()])


@pytest.fixture
def setup(photos: Path) -> Setup:
    return of(ImageFolder(photos, CROPS))


def of(dataset: Any, device: str = "cuda:0") -> Setup:
    return Setup(dataset, dataset.transform, device, batch_size=2, num_workers=1)


@pytest.mark.parametrize(
    ("version", "options", "windows", "fancy"),
    [
        ((12, 4), {}, False, True),
        ((13, 1), {}, False, True),
        ((13, 2), {}, True, True),
        ((14, 0), {}, True, True),
        (None, {}, False, True),
        ((12, 4), {"jpeg_fancy_upsampling": False}, True, False),
        ((13, 2), {"roi": False}, False, True),
        ((12, 4), {"roi": True}, True, True),
        ((13, 2), {"jpeg_fancy_upsampling": True}, True, True),
    ],
)
def test_windows_and_upsampling_by_the_version_of_nvjpeg(
    version: Any, options: dict[str, Any], windows: bool, fancy: bool, setup: Setup,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """An older nvJPEG has windows with fancy upsampling decoded on the CPU, without an error."""
    asked: list[bool] = []
    monkeypatch.setattr(decoder, "nvjpeg_version", lambda: version)
    monkeypatch.setattr(decoder, "windows_work", lambda device, *, fancy: asked.append(fancy) or True)
    built = Dali(**options).build(setup)
    assert (built.decoder.roi, built.decoder.jpeg_fancy_upsampling) == (windows, fancy)  # type: ignore[attr-defined]
    assert asked == ([fancy] if windows and "roi" not in options else [])
    assert ("needs nvJPEG 13.2, but this is 12.4" in caplog.text) is (options == {"roi": True})


@pytest.mark.parametrize(("share", "given"), [("auto", 0.65), (1, 1.0), (np.float32(0.25), 0.25)])
def test_the_share_of_the_jpeg_engines(share: Any, given: float, setup: Setup) -> None:
    """``"auto"`` is DALI's own default."""
    built = Dali(roi=False, hw_decoder_load=share).build(setup)
    assert built.decoder.arguments(cuda=True)["hw_decoder_load"] == given  # type: ignore[attr-defined]


@pytest.mark.parametrize("option", ["roi", "jpeg_fancy_upsampling", "hw_decoder_load", "video", "graph"])
@pytest.mark.parametrize("value", ["full", None, 2, float("nan"), ["auto"], np.array(["auto", "auto"])], ids=repr)
def test_other_values_of_options_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"Dali: {option} must be "):
        Dali(**{option: value})


def test_a_truth_value_is_no_share() -> None:
    with pytest.raises(ConfigError, match='hw_decoder_load must be "auto" or a number from 0 to 1, not True'):
        Dali(hw_decoder_load=True)


def test_a_self_test_that_fails_means_whole_images(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "nvjpeg_version", lambda: (13, 2))
    monkeypatch.setattr(decoder, "windows_work", lambda device, *, fancy: False)
    assert Dali().build(setup).decoder.roi is False  # type: ignore[attr-defined]


def test_on_the_cpu_windows_are_always_right(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "nvjpeg_version", lambda: None)
    on_host = T.Compose([*CROPS.transforms, T.Lambda(abs)])
    for device, pipeline in (("cpu", CROPS), ("cuda:0", on_host)):  # the host goes on with what the CPU decodes
        built = Dali().build(of(ImageFolder(photos, pipeline), device))
        assert built.decoder.roi is True  # type: ignore[attr-defined]


def test_windows_are_not_tried_where_none_is_decoded(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str, *, fancy: bool) -> bool:
        raise AssertionError("a process was started")

    monkeypatch.setattr(decoder, "nvjpeg_version", lambda: (13, 2))
    monkeypatch.setattr(decoder, "windows_work", refuse)
    whole = T.Compose([T.Resize(40), T.CenterCrop(32), T.PILToTensor()])
    for dataset in (Arrays(np.zeros((2, 48, 48, 3), np.uint8), transform=CROPS), ImageFolder(photos, whole)):
        assert Dali().build(of(dataset)).decoder.roi is False  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="a process was started"):
        Dali().build(of(ImageFolder(photos, CROPS)))


def test_the_version_of_nvjpeg_is_read_from_the_library_that_dali_finds() -> None:
    """Needs no driver. Fails if the library is looked for in another place than DALI's package brings it to."""
    from importlib import metadata

    installed = {(d.metadata["Name"] or "").lower(): d.version for d in metadata.distributions()}
    wheel = next((v for name, v in installed.items() if name.startswith("nvidia-nvjpeg") and "2k" not in name), None)
    if wheel is None:
        pytest.skip("no wheel of nvJPEG is installed")
    assert decoder.nvjpeg_version() == tuple(map(int, wheel.split(".")[:2]))


def test_nvjpeg_is_looked_for_as_its_user_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LD_LIBRARY_PATH comes first, and a library for another CUDA than DALI's is passed over."""
    folders = [tmp_path / name for name in ("empty", "first", "second")]
    for folder in folders:
        folder.mkdir()
    for file in (folders[1] / "libnvjpeg.so.12", folders[1] / "libnvjpeg.so.13", folders[2] / "libnvjpeg.so.13"):
        file.touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(map(str, folders)))
    for cuda, names in ((12, ["first/libnvjpeg.so.12"]), (13, ["first/libnvjpeg.so.13", "second/libnvjpeg.so.13"])):
        monkeypatch.setattr(decoder, "_cuda_of_dali", lambda cuda=cuda: cuda)
        found = list(decoder._findable())
        assert found[: len(names)] == [str(tmp_path / name) for name in names]
        assert all(path.endswith(f".so.{cuda}") for path in found)


def test_the_cuda_of_dali_is_known_before_and_after_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    import nvidia.dali

    major = nvidia.dali.__cuda_version__ // 1000
    assert decoder._cuda_of_dali() == major
    monkeypatch.delitem(sys.modules, "nvidia.dali")
    assert decoder._cuda_of_dali() == major


def test_the_self_test_takes_the_nvjpeg_that_loaders_take(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpupipe.engines.dali import graph

    order: list[str] = []
    made = graph.new_pipeline
    monkeypatch.setattr(decoder, "nvjpeg_version", lambda: order.append("nvJPEG"))
    monkeypatch.setattr(graph, "new_pipeline", lambda **given: order.append("pipeline") or made(**given))
    decoder.self_test(None)
    assert order == ["nvJPEG", "pipeline"]


def test_a_decoder_of_a_gpu_writes_no_line_for_every_image(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpupipe.engines.dali.graph import new_pipeline

    monkeypatch.delenv("DALI_NVIMGCODEC_LOG_LEVEL", raising=False)
    new_pipeline(batch_size=1, num_threads=1, device_id=None, prefetch=1)
    assert os.environ["DALI_NVIMGCODEC_LOG_LEVEL"] == "1"
    monkeypatch.setenv("DALI_NVIMGCODEC_LOG_LEVEL", "3")
    new_pipeline(batch_size=1, num_threads=1, device_id=None, prefetch=1)
    assert os.environ["DALI_NVIMGCODEC_LOG_LEVEL"] == "3"
