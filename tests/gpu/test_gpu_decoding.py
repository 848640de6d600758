"""Who decodes the JPEGs of a batch, and that nothing changes their pixels while the GPU is busy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import parity_measure as parity
import pytest
from decoding_changes import MatrixProducts, changes, decoded_by, quiet
from gpu_tools import DRY_RUN
from support import SEED

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import ImageFolder
from gpupipe.engines import Dali
from gpupipe.engines.dali.graph import HW_DECODER_LOAD
from gpupipe.pipelines import imagenet

ITERATIONS = 12 if DRY_RUN else 200
FILES = 12 if DRY_RUN else 64
ENGINES = {
    "default settings": Dali(),
    "plain upsampling": Dali(jpeg_fancy_upsampling=False),
    "decoding engines only": Dali(hw_decoder_load=1.0),
    "no decoding engines": Dali(hw_decoder_load=0.0),
}
PIPELINES: dict[str, Callable[[], T.Compose]] = {
    "windows as they are": lambda: T.Compose([T.RandomCrop(160), T.PILToTensor()], memory_format="channels_last"),
    "resized windows": lambda: imagenet.train(160, dtype="uint8"),
}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Color photographs by the subsampling of their chroma."""
    root = tmp_path_factory.mktemp("chroma")
    kinds: tuple[parity.Chroma, ...] = ("4:2:0", "4:4:4")
    return {chroma: parity.jpegs(root / chroma.replace(":", ""), FILES, chroma) for chroma in kinds}


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_byte_changes_while_the_gpu_multiplies_matrices(
    engine: str, pipeline: str, photographs: dict[str, Path], where: str, measured: Callable[..., None]
) -> None:
    """A decoder that ignores the stream it is given writes into memory that a queued kernel has yet to read. Fails if
    a byte of any batch is none that quiet runs gave."""
    with DataLoader(
        ImageFolder(photographs["4:2:0"], PIPELINES[pipeline]()), FILES // 2, shuffle=True, num_workers=8, seed=SEED,
        engine=ENGINES[engine], device=where,
    ) as loader:  # fmt: skip
        expected = quiet(loader, 4)
        varying = sum(int((q.low != q.high).sum()) for q in expected)
        found = changes(loader, expected, ITERATIONS, MatrixProducts(where))
    measured(f"under load: {engine}, {pipeline}", **asdict(found), vary_when_quiet=varying)
    assert found.bytes == 0 and found.batches == ITERATIONS


def by(root: Path, where: str, load: float, **options: Any) -> tuple[str, Any]:
    """(who decoded these files, how far they are from the reference)"""
    dataset = parity.folder(root, parity.CASES["random crop"])
    found = parity.measure(dataset, where, hw_decoder_load=load, **options)["reference"]
    return decoded_by(found, jpeg_engine=load > 0), found


def test_with_default_settings_the_gpu_decodes(
    photographs: dict[str, Path], where: str, measured: Callable[..., None]
) -> None:
    """What nvJPEG refuses, libjpeg-turbo decodes on the CPU without a word: the right pixels, slowly. Fails if that is
    what the defaults lead to: pixels equal to Pillow's, bit by bit, on nearly all images. Those of 4:4:4 tell nothing,
    because the JPEG engine has the same."""
    who, found = by(photographs["4:2:0"], where, HW_DECODER_LOAD)
    measured("decoded by: default settings", who=who, equal=found.equal, max=found.max, mean=found.mean)
    assert who == ("GPU" if where == "cuda" else "GPU or CPU")


@pytest.mark.parametrize("chroma", ["4:2:0", "4:4:4"])
@pytest.mark.parametrize("fancy", [True, False])
def test_who_decodes_with_each_setting(
    fancy: bool, chroma: str, photographs: dict[str, Path], where: str, measured: Callable[..., None]
) -> None:
    # Without the JPEG engine, whose pixels may equal the CPU's.
    who, found = by(photographs[chroma], where, 0.0, jpeg_fancy_upsampling=fancy)
    name = f"{'fancy' if fancy else 'plain'} upsampling, {chroma}"
    measured(f"decoded by: {name}", who=who, equal=found.equal, max=found.max, mean=found.mean)
    assert who == ("GPU" if where == "cuda" else "CPU")
    assert found.mean < 4
