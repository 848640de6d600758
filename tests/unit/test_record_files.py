"""What is special about TFRecord and ZIP; what all formats share is in ``contract/test_formats.py``. Files that are
written by a few lines of the tests are read by DALI's own readers too."""

from __future__ import annotations

import stat
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_cases import bad, content, numbered, write_tfrecord
from tfrecords import example, message, tfrecord

from gpupipe.datasets import ImageFolder, TFRecord, Zip
from gpupipe.errors import DatasetError, MissingDependency


@pytest.fixture(scope="module")
def images(images: list[bytes]) -> list[bytes]:
    return images[:6]


class TestTFRecord:
    def write(self, folder: Path, *records: bytes) -> Path:
        path = folder / "a.tfrecord"
        path.write_bytes(tfrecord(*records))
        return path

    def test_dali_reads_what_the_tests_write(self, images: list[bytes], tmp_path: Path) -> None:
        from nvidia.dali import Pipeline, fn, tfrecord as dali_features

        write_tfrecord(images, tmp_path)
        files = sorted(map(str, tmp_path.iterdir()))
        indices = []
        for file in files:
            data, at, lines = Path(file).read_bytes(), 0, []
            while at < len(data):
                size = struct.unpack_from("<Q", data, at)[0] + 16
                lines.append(f"{at} {size}\n")
                at += size
            indices.append(tmp_path / f"{Path(file).name}.index")
            indices[-1].write_text("".join(lines))

        pipe = Pipeline(batch_size=len(images), num_threads=1, device_id=None)
        with pipe:
            read: Any = fn.readers.tfrecord(
                path=files,
                index_path=[str(i) for i in indices],
                features={
                    "image/encoded": dali_features.FixedLenFeature((), dali_features.string, ""),
                    "image/class/label": dali_features.FixedLenFeature([1], dali_features.int64, -1),
                },
            )
            pipe.set_outputs(read["image/encoded"], read["image/class/label"])
        encoded, labels = pipe.run()
        assert [np.asarray(encoded[i]).tobytes() for i in range(len(images))] == images
        assert [int(np.asarray(labels[i]).item()) for i in range(len(images))] == list(range(len(images)))

    def test_the_names_of_features(self, images: list[bytes], tmp_path: Path) -> None:
        path = self.write(tmp_path, example({"photo": images[0], "kind": 7}), example({"photo": images[1], "kind": 8}))
        assert content(TFRecord(path, image="none;photo", label="kind")) == [(images[0], 7), (images[1], 8)]
        found = bad(TFRecord(path))
        assert found[0] == ("missing", "it has kind, photo, none of which is an image; name it by image=")

    def test_names_after_their_values(self, images: list[bytes], tmp_path: Path) -> None:
        """The key and the value of an entry of a map may come in either order."""
        numbers = message((2, message((3, message(*((1, value) for value in (5, 6, 7)))))), (1, b"n"))
        path = self.write(tmp_path, example({"image": images[0]}) + message((1, message((1, numbers)))))
        assert TFRecord(path, columns=["n"]).columns["n"].of(np.arange(1)).tolist() == [[5, 6, 7]]  # type: ignore[attr-defined]

    def several(self, name: str, kind: int, *values: int | bytes) -> bytes:
        """A feature with a list of values, to be appended to an example."""
        feature = message((kind, message(*((1, value) for value in values))))
        return message((1, message((1, message((1, name.encode()), (2, feature))))))

    def test_a_label_that_is_none(self, images: list[bytes], tmp_path: Path) -> None:
        """Two classes, or a number with a fraction: neither the first of them nor a sample without a label."""
        others = {"image": images[0], "class": 5}
        for more, says in ((self.several("label", 3, 3, 4), "has several values"), (example({"label": 3.0}), "is 3")):
            path = self.write(tmp_path, example(others) + more)
            why = bad(TFRecord(path))[0][1]
            assert why.startswith(f"its 'label' {says}, but a label is one class number or name; ")
            assert content(TFRecord(path, label="class")) == [(images[0], 5)]

    def test_numbers_that_are_not_packed(self, images: list[bytes], tmp_path: Path) -> None:
        """As programs other than TensorFlow write them."""
        path = self.write(tmp_path, example({"image": images[0]}) + self.several("label", 3, -2))
        assert content(TFRecord(path)) == [(images[0], -2)]

    def test_several_images(self, images: list[bytes], tmp_path: Path) -> None:
        path = self.write(tmp_path, self.several("image", 1, *images[:2]))
        assert bad(TFRecord(path))[0][1] == "it has several images, but a sample has one; name another by image="

    def test_classes_by_name(self, images: list[bytes], tmp_path: Path) -> None:
        records = [
            example({"image": image, "label": name}) for image, name in zip(images, (b"emu", b"cat"), strict=False)
        ]
        found = TFRecord(self.write(tmp_path, *records))
        assert found.classes == ["cat", "emu"]
        assert content(found) == [(images[0], 1), (images[1], 0)]

    def test_a_damaged_record_is_one_bad_sample(self, images: list[bytes], tmp_path: Path) -> None:
        records = [example({"image": image, "label": i}) for i, image in enumerate(images)]
        path = self.write(tmp_path, *records)
        data = bytearray(path.read_bytes())
        data[len(tfrecord(*records[:2])) + 100] ^= 1
        path.write_bytes(data)
        found = TFRecord(path)
        assert bad(found) == {2: ("undecodable", "its checksum is wrong: it is damaged")}
        assert found.describe(2) == f"{path}:2"
        assert found.fetch(3) == (images[3], 3)

    def test_a_damaged_length_ends_all(self, images: list[bytes], tmp_path: Path) -> None:
        records = [example({"image": image, "label": i}) for i, image in enumerate(images)]
        path = self.write(tmp_path, *records)
        data = bytearray(path.read_bytes())
        data[len(tfrecord(*records[:2])) + 1] ^= 1
        path.write_bytes(data)
        with pytest.raises(DatasetError, match=r"damaged at byte \d+, in the length of record 2"):
            TFRecord(path)

    def test_another_file_is_refused(self, images: list[bytes], tmp_path: Path) -> None:
        (tmp_path / "a.tfrecord").write_bytes(images[0])
        with pytest.raises(DatasetError, match="it is not a TFRecord file"):
            TFRecord(tmp_path)

    def test_what_to_install(self, images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = self.write(tmp_path, example({"image": images[0], "label": 1}))
        monkeypatch.setitem(sys.modules, "google_crc32c", None)
        with pytest.raises(MissingDependency, match=r"pip install 'gpupipe-loader\[tfrecord\]'"):
            TFRecord(path)


class TestZip:
    def write(self, folder: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
        with zipfile.ZipFile(folder / "a.zip", "w", method) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return folder / "a.zip"

    def test_order_and_classes_are_those_of_the_unpacked_folder(self, numbered: Path, tmp_path: Path) -> None:
        names = sorted((str(p.relative_to(numbered)) for p in numbered.rglob("*.jpg")), reverse=True)
        path = self.write(
            tmp_path, {f"data/{n}": (numbered / n).read_bytes() for n in names} | {"data/about.txt": b"hello"}
        )
        found, folder = Zip(path), ImageFolder(numbered)
        assert found.classes == folder.classes
        assert content(found) == [(Path(path).read_bytes(), label) for path, label in content(folder)]
        assert found.describe(1) == f"{path}:data/class001/photo.jpg"

    def test_one_folder_is_no_class(self, images: list[bytes], tmp_path: Path) -> None:
        found = Zip(self.write(tmp_path, {f"val/{i}.jpg": image for i, image in enumerate(images)}))
        assert content(found) == [(image, None) for image in images]

    def test_of_members_with_one_name_the_last(self, images: list[bytes], tmp_path: Path) -> None:
        """As ``unzip`` and ``zipfile`` have it."""
        path = self.write(tmp_path, {"a/x/0.jpg": images[0], "a/y/1.jpg": images[1]})
        with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a/x/0.jpg", images[2])
        assert content(Zip(path)) == [(images[2], 0), (images[1], 1)]

    def test_what_macos_adds_is_no_class(self, images: list[bytes], tmp_path: Path) -> None:
        members = {"d/x/0.jpg": images[0], "d/y/1.jpg": images[1], "__MACOSX/d/x/._0.jpg": b"\0\5\x16\7"}
        found = Zip(self.write(tmp_path, members))
        assert (found.classes, content(found)) == (["x", "y"], [(images[0], 0), (images[1], 1)])

    def test_names_with_backslashes(self, images: list[bytes], tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for i, name in enumerate(("d\\x\\0.jpg", "d\\y\\1.jpg")):
                member = zipfile.ZipInfo(name)
                member.create_system = 0
                archive.writestr(member, images[i])
        assert content(Zip(tmp_path / "a.zip")) == [(images[0], 0), (images[1], 1)]

    def test_a_link_is_a_bad_sample_of_its_class(self, images: list[bytes], tmp_path: Path) -> None:
        member = zipfile.ZipInfo("d/x/0.jpg")
        member.create_system, member.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr(member, "../y/1.jpg")
            archive.writestr("d/y/1.jpg", images[1])
        found = Zip(tmp_path / "a.zip")
        assert bad(found) == {0: ("unreadable", "it is a symbolic link; pack it again without zip -y")}
        assert found.classes == ["x", "y"]
        assert found.fetch(1) == (images[1], 1)

    @pytest.mark.slow
    @pytest.mark.part(of=2)
    @pytest.mark.parametrize("many", [False, True])
    def test_zip64(self, many: bool, images: list[bytes], tmp_path: Path) -> None:
        """Lengths, or the number of members, that do not fit into the fields of old."""
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for i in range(70_000 if many else 0):
                archive.writestr(f"d/{i}.txt", b"")
            for i, image in enumerate(images):
                with archive.open(f"d/class{i}/0.jpg", "w", force_zip64=not many) as file:
                    file.write(image)
        assert content(Zip(tmp_path / "a.zip")) == numbered(images)

    def test_the_root_is_named(self, images: list[bytes], tmp_path: Path) -> None:
        members = {"a/train/x/0.jpg": images[0], "a/train/y/1.jpg": images[1], "a/val/x/2.jpg": images[2]}
        assert content(Zip(self.write(tmp_path, members), root="a/train")) == [(images[0], 0), (images[1], 1)]

    @pytest.mark.parametrize(("method", "codec"), [(zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "lzma")])
    def test_other_compressions_are_refused(self, method: int, codec: str, images: list[bytes], tmp_path: Path) -> None:
        found = bad(Zip(self.write(tmp_path, {"a/0.jpg": images[0]}, method)))
        assert found == {0: ("unreadable", f"it is compressed with {codec}; pack it again with zip -0")}

    def test_what_claims_to_be_huge_is_not_unpacked(self, images: list[bytes], tmp_path: Path) -> None:
        path = self.write(tmp_path, {"a/0.jpg": images[0], "a/1.jpg": images[1]}, zipfile.ZIP_DEFLATED)
        data = bytearray(path.read_bytes())
        at = data.index(b"PK\1\2")
        struct.pack_into("<I", data, at + 24, 0xF0000000)
        path.write_bytes(data)
        assert "bytes cannot come out of" in bad(Zip(path))[0][1]

    def test_a_zip_behind_something_else(self, images: list[bytes], tmp_path: Path) -> None:
        """As programs that unpack themselves are."""
        path = self.write(tmp_path, {"a/0.jpg": images[0], "b/1.jpg": images[1]})
        path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
        assert content(Zip(path)) == numbered(images[:2])
