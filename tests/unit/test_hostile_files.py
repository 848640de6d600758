"""Files that lie: they name other files of the machine, claim sizes that they do not have, or grow without end."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import pictures

from gpupipe.datasets import HDF5, HDF5Arrays
from gpupipe.errors import DatasetError

COUNT, SHAPE = 4, (6, 5, 3)


class TestHDF5:
    """Bytes in other files: external storage, virtual datasets, external links."""

    h5py = pytest.importorskip("h5py")

    @pytest.fixture
    def secret(self, tmp_path: Path) -> Path:
        """Pixels and labels that the files below refer to."""
        path = tmp_path / "elsewhere" / "secret.h5"
        path.parent.mkdir()
        with self.h5py.File(path, "w") as file:
            file["images"] = self.pixels()
            file["labels"] = np.arange(COUNT)
        (path.parent / "raw").write_bytes(self.pixels().tobytes() + np.arange(COUNT, dtype="<i8").tobytes())
        return path

    @staticmethod
    def pixels() -> Any:
        return np.arange(COUNT * 90, dtype=np.uint64).astype(np.uint8).reshape(COUNT, *SHAPE)

    def external(self, file: Any, name: str, secret: Path) -> None:
        raw, at = str(secret.parent / "raw"), 0 if name == "images" else COUNT * 90
        shape, dtype = ((COUNT, *SHAPE), "u1") if name == "images" else ((COUNT,), "<i8")
        file.create_dataset(name, shape, dtype, external=[(raw, at, self.h5py.h5f.UNLIMITED)])

    def virtual(self, file: Any, name: str, secret: Path) -> None:
        shape, dtype = ((COUNT, *SHAPE), "u1") if name == "images" else ((COUNT,), "<i8")
        layout = self.h5py.VirtualLayout(shape, dtype)
        layout[:] = self.h5py.VirtualSource(str(secret), name, shape)
        file.create_virtual_dataset(name, layout)

    def linked(self, file: Any, name: str, secret: Path) -> None:
        file[name] = self.h5py.ExternalLink(str(secret), name)

    def linked_by_a_link(self, file: Any, name: str, secret: Path) -> None:
        file["all"] = self.h5py.ExternalLink(str(secret), "/")
        file[name] = self.h5py.SoftLink(f"/all/{name}")

    OUTSIDE = pytest.mark.parametrize("outside", [external, virtual, linked, linked_by_a_link])

    @OUTSIDE
    @pytest.mark.parametrize("which", ["images", "labels"])
    def test_pixels_and_labels_of_other_files_come_only_if_allowed(
        self, which: str, outside: Callable[..., None], secret: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "a.h5"
        with self.h5py.File(path, "w") as file:
            outside(self, file, which, secret)
            if which == "labels":
                file["images"] = self.pixels()
            else:
                file["labels"] = np.arange(COUNT)
        with pytest.raises(DatasetError, match=rf"a.h5 cannot be used: .*{which}'.*; pass allow_outside=True"):
            HDF5Arrays(path)
        found = HDF5Arrays(path, allow_outside=True)
        for one in (found, pickle.loads(pickle.dumps(found))):
            assert all(np.array_equal(one.fetch(i)[0], self.pixels()[i]) for i in range(COUNT))
            assert [one.fetch(i)[1] for i in range(COUNT)] == list(range(COUNT))

    def test_what_comes_later_is_refused_too(self, secret: Path, tmp_path: Path) -> None:
        path = tmp_path / "a.h5"
        with self.h5py.File(path, "w") as file:
            file.create_dataset("images", data=self.pixels(), chunks=(1, *SHAPE))
        found = HDF5Arrays(path)
        path.unlink()
        with self.h5py.File(path, "w") as file:
            self.linked(file, "images", secret)
        with pytest.raises(Exception, match="'images' is a link to 'images' in another file"):
            found.fetch(0)

    def test_sources_that_are_missing_are_no_zeros(self, secret: Path, tmp_path: Path) -> None:
        path = tmp_path / "a.h5"
        with self.h5py.File(path, "w") as file:
            self.external(file, "images", secret)
            layout = self.h5py.VirtualLayout((COUNT, *SHAPE), "u1")
            layout[:] = self.h5py.VirtualSource("none.h5", "images", layout.shape)
            file.create_virtual_dataset("missing", layout)
            layout = self.h5py.VirtualLayout((COUNT, *SHAPE), "u1")
            layout[:] = self.h5py.VirtualSource(str(secret), "none", layout.shape)
            file.create_virtual_dataset("nameless", layout)
        (secret.parent / "raw").write_bytes(bytes(200))
        for name, says in (
            ("images", r"'images' needs 360 bytes of '.*raw' from byte 0 on, and there are 200"),
            ("missing", r"'missing' needs 'images' in 'none.h5', and there is no such file"),
            ("nameless", r"'nameless' needs 'none' in '.*secret.h5', which has no such dataset"),
        ):
            with pytest.raises(DatasetError, match=says):
                HDF5Arrays(path, image=name, allow_outside=True)

    def test_encoded_images_lie_in_the_file(self, secret: Path, tmp_path: Path) -> None:
        path = tmp_path / "a.h5"
        with self.h5py.File(path, "w") as file:
            file["group/a"] = np.zeros(3, np.uint8)
            file["group/b"] = self.h5py.ExternalLink(str(secret), "images")
            file["link"] = self.h5py.ExternalLink(str(secret), "images")
            raw = [(str(secret.parent / "raw"), 0, 300)]
            file.create_dataset("stored/a", (300,), "u1", external=raw)
            images = file.create_dataset("images", (COUNT,), self.h5py.vlen_dtype(np.uint8))
            images[:] = [np.zeros(i + 1, np.uint8) for i in range(COUNT)]
            self.linked(file, "labels", secret)
        for name, label, says in (
            (
                "group",
                None,
                r"'b' is a link to 'images' in another file, '.*secret.h5', and encoded images are read by",
            ),
            ("link", None, r"'link' is a link to 'images' in another file"),
            ("stored", None, r"the bytes of 'a' lie in another file, '.*raw' \(external storage\)"),
            ("images", "labels", r"'labels' is a link to 'labels' in another file"),
        ):
            with pytest.raises(DatasetError, match=says):
                HDF5(path, image=name, label=label)

    def test_links_within_the_file_are_followed(self, tmp_path: Path) -> None:
        path = tmp_path / "a.h5"
        with self.h5py.File(path, "w") as file:
            file["real/a"] = np.zeros(3, np.uint8)
            file["real/here"] = file["real"]
            file["group/b"] = self.h5py.SoftLink("/real/a")
            file["group/gone"] = self.h5py.SoftLink("/real/none")
            file["pixels/x"] = pictures(3)
            file["images"] = self.h5py.SoftLink("pixels/./x")
            file["loop"] = self.h5py.SoftLink("/loop")
        assert [HDF5(path, image=name).describe(0) for name in ("real", "group")] == [f"{path}:a", f"{path}:b"]
        assert np.array_equal(HDF5Arrays(path).fetch(1)[0], pictures(3)[1])
        with pytest.raises(DatasetError, match="'loop' is a link that leads back to itself"):
            HDF5Arrays(path, image="loop")
