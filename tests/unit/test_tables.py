"""What is special about HDF5; what all formats share is in ``contract/test_formats.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_cases import bad, content, write_hdf5
from support import BATCH, SEED, TRAIN, N, pictures, same

import gpupipe
from gpupipe import DataLoader
from gpupipe.datasets import HDF5, Arrays
from gpupipe.errors import DatasetError, MissingDependency

h5py = pytest.importorskip("h5py")

pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")


@pytest.fixture(scope="module")
def images(images: list[bytes]) -> list[bytes]:
    return images[:9]


class TestHDF5:
    def test_behind_a_block_of_the_users(self, images: list[bytes], tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
            data = file.create_dataset("images", (len(images),), dtype=h5py.vlen_dtype(np.uint8))
            for i, image in enumerate(images):
                data[i] = np.frombuffer(image, np.uint8)
        assert content(HDF5(tmp_path)) == [(image, None) for image in images]

    def test_labels_by_name(self, images: list[bytes], tmp_path: Path) -> None:
        path = write_hdf5(images, tmp_path)
        with h5py.File(path, "a") as file:
            file["names"] = [f"class{i % 3}" for i in range(len(images))]
        assert content(HDF5(path, label="names")) == [(image, i % 3) for i, image in enumerate(images)]

    @pytest.mark.parametrize("filters", [{"compression": "lzf"}, {"compression": "gzip"}, {"shuffle": True}], ids=str)
    def test_packed_references_are_refused(self, filters: dict[str, Any], images: list[bytes], tmp_path: Path) -> None:
        path = write_hdf5(images, tmp_path, chunks=(4,), **filters)
        with pytest.raises(DatasetError, match=r"'/images' is packed by filters, .*: h5repack -f NONE OLD NEW"):
            HDF5(path)

    def test_chunks_of_references(self, images: list[bytes], tmp_path: Path) -> None:
        """A dataset that grows has them."""
        with h5py.File(tmp_path / "a.h5", "w") as file:
            data = file.create_dataset("images", (0,), h5py.vlen_dtype(np.uint8), maxshape=(None,), chunks=(4,))
            for i, image in enumerate(images):
                data.resize(i + 1, 0)
                data[i] = np.frombuffer(image, np.uint8)
        assert content(HDF5(tmp_path / "a.h5")) == [(image, None) for image in images]

    def test_an_empty_array_is_a_bad_sample(self, images: list[bytes], tmp_path: Path) -> None:
        assert {k: kind for k, (kind, _) in bad(HDF5(write_hdf5([images[0], b"", images[2]], tmp_path))).items()} == {
            1: "empty"
        }

    def test_what_cannot_be_used(self, images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["pixels"] = pictures(3)
            file["floats"] = np.zeros(3)
            file.create_dataset("texts", (3,), dtype=h5py.string_dtype())
            file["group/a"] = np.zeros(3, np.uint8)
        for name, says in (
            ("pixels", r"which are pixels; use gpupipe.datasets.Arrays\("),
            ("floats", r"is float64\[3\]; encoded images are one dataset of arrays of uint8 of any length"),
            ("group", r"'group' is a group; encoded images are one dataset"),
            ("texts", r"has texts, which end at the first zero byte"),
            ("none", r"it has no 'none'; it has 'floats', 'group', 'pixels', 'texts'"),
        ):
            with pytest.raises(DatasetError, match=says):
                HDF5(tmp_path, image=name)
        (tmp_path / "b.h5").write_bytes(images[0])
        with pytest.raises(DatasetError, match="it is not a complete HDF5 file"):
            HDF5(tmp_path / "b.h5")
        monkeypatch.setitem(sys.modules, "h5py", None)
        with pytest.raises(MissingDependency, match=r"pip install 'gpupipe-loader\[hdf5\]'"):
            HDF5(tmp_path / "a.h5", image="floats", label="x")

    @pytest.mark.parametrize("engine", ["torch", "dali"])
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("block", [0, 512])
    def test_pixels_are_read_as_the_refusal_says(self, engine: str, workers: int, block: int, tmp_path: Path) -> None:
        path = tmp_path / "a.h5"
        with h5py.File(path, "w", userblock_size=block) as file:
            file["x"] = pictures()
        with pytest.raises(DatasetError, match="which are pixels; use gpupipe") as caught:
            HDF5(path, image="x")
        line, names = str(caught.value).partition("; use ")[2], {"gpupipe": gpupipe, "numpy": np, "PATH": path}
        with h5py.File(path) as file:
            found = eval(line, {**names, "h5": file, "labels": np.arange(N)})
        found.transform = TRAIN
        given = {"batch_size": BATCH, "shuffle": True, "engine": engine, "device": "cpu", "seed": SEED}
        if workers:
            given |= {"num_workers": workers} | ({"multiprocessing_context": "fork"} if engine == "torch" else {})
        with (
            DataLoader(found, **given) as ours,
            DataLoader(Arrays(pictures(), np.arange(N), transform=TRAIN), **given) as theirs,
        ):
            assert same(list(ours), list(theirs))

    def test_pixels_in_chunks_are_first_written_in_one_piece(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("x", data=pictures(), chunks=(4, 48, 56, 3), compression="gzip")
        says = (
            "which are pixels; write it again in one piece, h5repack -l x:CONTI -f NONE OLD NEW, and then use gpupipe"
        )
        with pytest.raises(DatasetError, match=says):
            HDF5(tmp_path, image="x")
