"""Lists of places, and the names of files: braces, patterns, folders, several at once."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from format_cases import write_manifest
from support import write_photos

from gpupipe.datasets import Manifest, WebDataset
from gpupipe.errors import DatasetError
from gpupipe.sources import names as names_module
from gpupipe.sources.names import _expanded


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), 4)


@pytest.fixture(scope="module")
def images(photos: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))]


def content(dataset: Any) -> list[tuple[bytes, int | None]]:
    return [dataset.fetch(i) for i in range(len(dataset))]


def bad(dataset: Any) -> dict[int, tuple[str, str]]:
    return {sample.index: (sample.kind, sample.reason) for sample in dataset.index_summary().bad}


def lines(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    return folder / "list.jsonl"


class TestManifest:
    def test_parts_of_files_of_any_format(self, images: list[bytes], tmp_path: Path) -> None:
        """What tarfile knows of a tar file is enough to read it."""
        rows = []
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for i, image in enumerate(images):
                (tmp_path / "x.jpg").write_bytes(image)
                tar.add(tmp_path / "x.jpg", f"{i}.jpg")
        with tarfile.open(tmp_path / "a.tar") as tar:
            for i, member in enumerate(tar):
                rows.append(
                    {
                        "path": "a.tar",
                        "offset": member.offset_data,
                        "length": member.size,
                        "label": i,
                        "name": member.name,
                    }
                )
        found = Manifest(lines(tmp_path, *reversed(rows)))
        assert content(found) == [(image, i) for i, image in enumerate(images)][::-1]
        assert found.describe(0) == f"{tmp_path}/a.tar:3.jpg"
        assert repr(found) == f"Manifest(4 samples in 1 files below '{tmp_path}/')"

    def test_whole_files_and_names_of_classes(self, photos: Path, images: list[bytes], tmp_path: Path) -> None:
        paths = [str(path.relative_to(photos)) for path in sorted(photos.rglob("*.jpg"))]
        names = ["dog", "cat", "dog", "emu"]
        given = lines(tmp_path, *({"path": p, "label": n} for p, n in zip(paths, names, strict=True)))
        found = Manifest(given, root=photos)
        assert found.classes == ["cat", "dog", "emu"]
        assert content(found) == list(zip(images, [1, 0, 1, 2], strict=True))

    def test_tabs_and_an_end_that_is_left_out(self, images: list[bytes], tmp_path: Path) -> None:
        (tmp_path / "a.bin").write_bytes(b"head" + images[0])
        (tmp_path / "list.tsv").write_text("path\toffset\nx\t0\na.bin\t4\n")
        found = Manifest(tmp_path / "list.tsv")
        assert found.fetch(1) == (images[0], None)
        assert bad(found) == {0: ("missing", "No such file or directory")}

    def test_a_range_that_lies_outside_of_its_file(self, images: list[bytes], tmp_path: Path) -> None:
        """Also if the part that is there is a whole image."""
        (tmp_path / "a.bin").write_bytes(images[0])
        size = len(images[0])
        rows = [{"path": "a.bin", "offset": at, "length": n} for at, n in ((0, size), (0, size + 1), (size, 9))]
        assert bad(Manifest(lines(tmp_path, *rows))) == {
            1: ("truncated", f"it should be bytes 0 to {size + 1} of a file of {size} bytes"),
            2: ("truncated", f"it should be bytes {size} to {size + 9} of a file of {size} bytes"),
        }

    def test_it_is_sent_without_its_list(self, images: list[bytes], tmp_path: Path) -> None:
        import pickle

        few = len(pickle.dumps(Manifest(write_manifest(images, tmp_path))))
        many = Manifest(write_manifest(images * 100, tmp_path))
        assert len(pickle.dumps(many)) < few + 100
        assert content(pickle.loads(pickle.dumps(many))) == [(image, i) for i, image in enumerate(images * 100)]

    def test_a_list_that_changes(self, images: list[bytes], tmp_path: Path) -> None:
        """The index that is found by the bytes of a list holds the rows of these bytes."""
        file = write_manifest(images, tmp_path)
        found = Manifest(file)
        file.write_text(file.read_text() + "\n")
        with pytest.raises(DatasetError, match="has changed since the dataset was made"):
            found.reindex()
        assert content(Manifest(file)) == content(found)

    @pytest.mark.parametrize(
        ("row", "says"),
        [
            ({"offset": 3}, "line 3 of .* has no path"),
            ({"path": "a", "offset": -1}, "line 3 of .* has offset -1, which is not a number of bytes"),
            ({"path": "a", "length": 2.5}, r"line 3 of .* has length 2\.5, which is not a number of bytes"),
            ({"path": "a", "label": [1]}, r"line 3 of .* has label \[1\]; it must be a number or a name"),
            ({"path": "s3://bucket/a"}, "has files and URLs; make a list of each kind"),
            ([], "line 3 of .* is not a JSON object"),
        ],
    )
    def test_a_line_that_is_wrong_is_named(self, row: Any, says: str, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=says):
            Manifest(lines(tmp_path, {"path": "b"}, row))

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "must name the columns path,offset,length,label,name"),
            ("file,label\na,1\n", "must name the columns path,offset,length,label,name"),
            ("path,label\n", "lists no samples"),
            ("path, label\na, 1\n", "the first line of .* names ' label', with a space"),
            ("path,label\na,1.0\nb,10.0\n", r"fractions, such as 1\.0; write integers"),
            ("path,label\na,1,2\n", "line 2 of .* has other columns than the first"),
            ("{", "cannot be read"),
        ],
    )
    def test_a_list_that_is_wrong(self, text: str, says: str, tmp_path: Path) -> None:
        (tmp_path / "list").write_text(text)
        with pytest.raises(DatasetError, match=says):
            Manifest(tmp_path / "list")

    def test_a_path_does_not_lead_out_of_the_root_unasked(
        self, photos: Path, images: list[bytes], tmp_path: Path
    ) -> None:
        (tmp_path / "data").mkdir()
        path = next(photos.rglob("*.jpg"))
        given = lines(tmp_path, {"path": str(path)})
        with pytest.raises(DatasetError, match="leads out of root"):
            Manifest(given, root=tmp_path / "data")
        assert content(Manifest(given, root=tmp_path / "data", allow_outside=True)) == [(path.read_bytes(), None)]


class TestNames:
    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("a", ["a"]),
            ("{0..2}", ["0", "1", "2"]),
            ("x{08..10}.tar", ["x08.tar", "x09.tar", "x10.tar"]),
            ("{3..1}", ["3", "2", "1"]),
            ("{0..6..3}", ["0", "3", "6"]),
            ("{a..c}{1,2}", ["a1", "a2", "b1", "b2", "c1", "c2"]),
            ("{x,{1..2}}y", ["xy", "1y", "2y"]),
            ("{x}", ["{x}"]),
        ],
    )
    def test_braces_are_those_of_a_shell(self, text: str, names: list[str]) -> None:
        assert _expanded(text) == names

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("{0..99999999}", "stands for over 1,000 names"),
            ("{0..99}{0..99}{0..99}", "stands for over 1,000 names"),
            ("{a,b}" * 20, "stands for over 1,000 names"),
            ("{0..2", "Unbalanced braces"),
        ],
    )
    def test_mistakes_are_refused(self, text: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(names_module, "_MOST", 1000)
        with pytest.raises(DatasetError, match=f"{problem}.*; correct it, or list the files"):
            WebDataset(f"/data/{text}.tar")

    @pytest.fixture
    def shards(self, images: list[bytes], tmp_path: Path) -> Path:
        (tmp_path / "x.jpg").write_bytes(images[0])
        for name in ("b{1}", "a2", "a1"):
            with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
                tar.add(tmp_path / "x.jpg", f"{name}.jpg")
        return tmp_path

    @pytest.mark.parametrize(
        ("given", "names"),
        [
            ("a{2,1}.tar", ["a2", "a1"]),
            ("a*.tar", ["a1", "a2"]),
            ("", ["a1", "a2", "b{1}"]),
            ("b{1}.tar", ["b{1}"]),
            ("a2.tar::{root}/a1.tar", ["a2", "a1"]),
        ],
    )
    def test_files_of_this_machine(self, given: str, names: list[str], shards: Path) -> None:
        found = WebDataset(f"{shards}/{given}".replace("{root}", str(shards)))
        assert [found.describe(i).rpartition(":")[2] for i in range(len(found))] == [f"{n}.jpg" for n in names]

    def test_nothing_there(self, shards: Path, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="no file matches"):
            WebDataset(f"{shards}/c*.tar")
        (tmp_path / "empty").mkdir()
        with pytest.raises(DatasetError, match=r"no file in the folder .* ends in \.tar"):
            WebDataset(tmp_path / "empty")
        with pytest.raises(DatasetError, match="paths are text or pathlib"):
            WebDataset([3])
