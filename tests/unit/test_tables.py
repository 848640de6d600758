"""What is special about Parquet and HDF5; what all formats share is in ``contract/test_formats.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_cases import bad, content, numbered, table, write_hdf5
from support import BATCH, SEED, TRAIN, N, pictures, same

import gpupipe
from gpupipe import DataLoader
from gpupipe.datasets import HDF5, Arrays, Parquet
from gpupipe.errors import DatasetError, MissingDependency

h5py = pytest.importorskip("h5py")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")


@pytest.fixture(scope="module")
def images(images: list[bytes]) -> list[bytes]:
    return images[:9]


class TestParquet:
    @pytest.mark.parametrize("version", ["1.0", "2.0"])
    @pytest.mark.parametrize("dictionary", [False, True])
    def test_pages_of_all_kinds(self, version: str, dictionary: bool, images: list[bytes], tmp_path: Path) -> None:
        rows = [*images, *images]  # so that a dictionary has less entries than there are rows
        path = tmp_path / "a.parquet"
        pq.write_table(
            table(rows),
            path,
            compression="none",
            use_dictionary=dictionary,
            data_page_version=version,
            data_page_size=4000,
            row_group_size=7,
        )
        assert content(Parquet(path)) == numbered(rows)

    @pytest.mark.parametrize("kind", ["binary", "large_binary"])
    def test_a_column_of_bytes(self, kind: str, images: list[bytes], tmp_path: Path) -> None:
        column = pa.array(images, getattr(pa, kind)())
        pq.write_table(pa.table({"jpg": column, "y": list(range(9))}), tmp_path / "a.parquet", compression="none")
        assert content(Parquet(tmp_path, image="jpg", label="y")) == numbered(images)

    def test_what_is_missing_is_a_bad_sample(self, images: list[bytes], tmp_path: Path) -> None:
        rows = [
            {"bytes": images[0], "path": None},
            None,
            {"bytes": None, "path": "x.jpg"},
            {"bytes": images[3], "path": None},
        ]
        given = pa.table({"image": rows, "label": [0, 1, 2, None]})
        pq.write_table(given, tmp_path / "a.parquet", compression="none")
        found = Parquet(tmp_path)
        assert found.fetch(0) == (images[0], 0)
        assert bad(found) == {
            1: ("missing", "it has no bytes, and gpupipe does not follow its path"),
            2: ("missing", "it has no bytes, and gpupipe does not follow its path"),
            3: ("missing", "it has no label, but other samples have one"),
        }
        assert found.describe(2).endswith("a.parquet:x.jpg")

    def test_classes_by_name_and_by_hugging_face(self, images: list[bytes], tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets")
        pq.write_table(
            pa.table({"image": images[:2], "label": ["emu", "cat"]}), tmp_path / "a.parquet", compression="none"
        )
        found = Parquet(tmp_path / "a.parquet")
        assert (found.classes, content(found)) == (["cat", "emu"], [(images[0], 1), (images[1], 0)])
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["dog", "cat"])})
        rows = {"image": [{"bytes": i, "path": None} for i in images], "label": [1, 0, 1] * 3}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "b.parquet")
        found = Parquet(tmp_path / "b.parquet")
        assert found.classes == ["dog", "cat"]
        assert content(found) == [(image, i) for image, i in zip(images, [1, 0, 1] * 3, strict=True)]
        with pytest.raises(DatasetError, match="different classes; make a dataset of each"):
            Parquet(tmp_path)

    def test_a_name_that_is_none_of_the_classes(self, images: list[bytes], tmp_path: Path) -> None:
        about = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["dog", "cat"]}}}}
        for names, labels in ((["cat", "dog"], [1, 0]), (["cat", "emu"], None)):
            given = pa.table({"image": images[:2], "label": names})
            given = given.replace_schema_metadata({b"huggingface": json.dumps(about).encode()})
            pq.write_table(given, tmp_path / "a.parquet", compression="none")
            if labels is not None:
                assert Parquet(tmp_path).targets == labels
        with pytest.raises(DatasetError, match="the label 'emu' is not one of the 2 classes; correct it"):
            Parquet(tmp_path)

    def test_what_cannot_be_used(self, images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pq.write_table(table(images), tmp_path / "a.parquet", compression="none")
        with pytest.raises(DatasetError, match=r"no column 'photo'; it has image.bytes, image.path, label"):
            Parquet(tmp_path, image="photo")
        with pytest.raises(DatasetError, match="'label' has no bytes"):
            Parquet(tmp_path, image="label", label=None)
        pq.write_table(
            table(images).append_column("w", pa.array([0.5] * len(images))), tmp_path / "w.parquet", compression="none"
        )
        with pytest.raises(DatasetError, match="its labels are double; they must be integers or class names"):
            Parquet(tmp_path / "w.parquet", label="w")
        (tmp_path / "b.parquet").write_bytes(images[0])
        with pytest.raises(DatasetError, match="it is not a complete Parquet file"):
            Parquet(tmp_path / "b.parquet")
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(MissingDependency, match=r"pip install 'gpupipe-loader\[parquet\]'"):
            Parquet(tmp_path / "a.parquet", image="image", label="path")


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
