"""What is special about TFRecord, RecordIO, LMDB, ZIP, MDS and LitData; what all formats share is in
``contract/test_formats.py``. Files that are written by a few lines of the tests are read by DALI's own readers too."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exif_blocks import odd_exif
from format_cases import (
    MAGIC,
    example,
    heads,
    image_record,
    message,
    record,
    sample,
    tfrecord,
    write_litdata,
    write_mds,
    write_recordio,
    write_tfrecord,
)
from PIL import Image
from support import write_photos

from gpupipe.datasets import LMDB, MDS, ImageFolder, LitData, RecordIO, TFRecord, Zip
from gpupipe.errors import DatasetError, MissingDependency


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), 6)


@pytest.fixture(scope="module")
def images(photos: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))]


def content(dataset: Any) -> list[tuple[bytes, int | None]]:
    return [dataset.fetch(i) for i in range(len(dataset))]


def bad(dataset: Any) -> dict[int, tuple[str, str]]:
    return {sample.index: (sample.kind, sample.reason) for sample in dataset.index_summary().bad}


def numbered(images: Sequence[bytes]) -> list[tuple[bytes, int]]:
    return [(image, i) for i, image in enumerate(images)]


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
        assert [list(row) for row in TFRecord(path).source.values_of(["n"])] == [[[5, 6, 7]]]

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

    def test_labels_below_zero(self, images: list[bytes], tmp_path: Path) -> None:
        assert content(TFRecord(self.write(tmp_path, example({"image": images[0], "label": -1}))))[0][1] == -1

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

    def test_gzip_is_refused_with_the_reason(self, images: list[bytes], tmp_path: Path) -> None:
        path = self.write(tmp_path, example({"image": images[0], "label": 1}))
        path.write_bytes(gzip.compress(path.read_bytes()))
        with pytest.raises(DatasetError, match=r"compressed with gzip, so its samples cannot be read one by one; pack"):
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


class TestRecordIO:
    def test_dali_reads_what_the_tests_write(self, images: list[bytes], tmp_path: Path) -> None:
        from nvidia.dali import Pipeline, fn

        path = write_recordio(images, tmp_path)

        pipe = Pipeline(batch_size=len(images), num_threads=1, device_id=None)
        with pipe:
            pipe.set_outputs(*fn.readers.mxnet(path=str(path), index_path=str(path.with_suffix(".idx"))))
        encoded, labels = pipe.run()
        assert [np.asarray(encoded[i]).tobytes() for i in range(len(images))] == images
        assert [float(np.asarray(labels[i])[0]) for i in range(len(images))] == list(range(len(images)))

    def test_the_index_gives_order_and_names(self, images: list[bytes], tmp_path: Path) -> None:
        path = write_recordio(images, tmp_path)
        lines = path.with_suffix(".idx").read_text().splitlines()
        path.with_suffix(".idx").write_text("\n".join(reversed(lines)))
        found = RecordIO(path)
        assert content(found) == numbered(images)[::-1]
        assert found.describe(0) == f"{path}:{len(images) - 1}"

    def test_without_an_index_they_are_as_they_lie(self, images: list[bytes], tmp_path: Path) -> None:
        path = write_recordio(images, tmp_path)
        path.with_suffix(".idx").unlink()
        assert content(RecordIO(path)) == numbered(images)

    def test_a_record_that_was_cut_at_the_magic_number(self, images: list[bytes], tmp_path: Path) -> None:
        """What follows a JPEG's end is read by no decoder."""
        spoiled = [image + bytes(-len(image) % 4) + MAGIC + b"12345" + MAGIC * 2 + b"x" for image in images]
        assert content(RecordIO(write_recordio(spoiled, tmp_path))) == numbered(spoiled)

    def test_several_labels_and_none(self, images: list[bytes], tmp_path: Path) -> None:
        path = tmp_path / "a.rec"
        path.write_bytes(
            image_record(b"", [5.0, 9.0])  # a list of other records
            + image_record(images[0], [4.0, 2.0])
            + image_record(images[1], 3.0)
            + image_record(images[2], 0.5)
        )
        found = RecordIO(path, label=0)
        assert content(found)[:2] == [(images[0], 4), (images[1], 3)]
        assert bad(found) == {
            2: ("missing", "its label is 0.5, which is not a class number; columns=['labels'] gives it")
        }

    @pytest.mark.parametrize("label", [float("inf"), float("nan"), 1e30])
    def test_a_label_that_is_no_number_of_a_class(self, label: float, images: list[bytes], tmp_path: Path) -> None:
        (tmp_path / "a.rec").write_bytes(image_record(images[0], 1.0) + image_record(images[1], label))
        assert list(bad(RecordIO(tmp_path))) == [1]

    def test_an_index_of_another_file(self, images: list[bytes], tmp_path: Path) -> None:
        path = write_recordio(images, tmp_path)
        path.write_bytes(image_record(images[0], 0.0))
        with pytest.raises(DatasetError, match=r"\.idx file belongs to another one"):
            RecordIO(path)

    def test_a_record_that_is_too_short(self, tmp_path: Path) -> None:
        (tmp_path / "a.rec").write_bytes(record(b"short"))
        with pytest.raises(DatasetError, match="the record at byte 0 is too short for a header"):
            RecordIO(tmp_path)


class TestLMDB:
    def write(self, folder: Path, entries: dict[bytes, bytes], database: str | None = None) -> Path:
        lmdb = pytest.importorskip("lmdb")
        with lmdb.open(str(folder / "db"), map_size=1 << 26, max_dbs=4) as environment:
            inner = None if database is None else environment.open_db(database.encode())
            with environment.begin(write=True, db=inner) as transaction:
                for key, value in entries.items():
                    transaction.put(key, value)
        return folder / "db"

    def datum(self, image: bytes, label: int, encoded: bool = True) -> bytes:
        """Caffe's message."""
        return message((1, 3), (2, 8), (3, 8), (4, image), (5, label), *([(7, 1)] if encoded else []))

    def test_the_folder_in_the_key_is_the_class(self, images: list[bytes], tmp_path: Path) -> None:
        entries = {f"class{i % 2}/{i}.jpg".encode(): image for i, image in enumerate(images)}
        found = LMDB(self.write(tmp_path, entries))
        assert found.classes == ["class0", "class1"]
        assert content(found) == [(images[i], i % 2) for i in (0, 2, 4, 1, 3, 5)]
        assert found.describe(0).endswith("db/data.mdb:class0/0.jpg")

    def test_datums_of_caffe(self, images: list[bytes], tmp_path: Path) -> None:
        entries = {b"%04d" % i: self.datum(image, i) for i, image in enumerate(images)}
        assert content(LMDB(self.write(tmp_path, entries))) == numbered(images)

    def test_datums_of_plain_pixels_are_refused(self, images: list[bytes], tmp_path: Path) -> None:
        entries = {b"0": self.datum(bytes(192), 3, encoded=False), b"1": self.datum(images[1], 1)}
        found = bad(LMDB(self.write(tmp_path, entries)))
        assert found[0][0] == "undecodable"
        assert "plain pixels; write it with encoded=True" in found[0][1]

    def test_many_entries_of_all_sizes(self, tmp_path: Path) -> None:
        """A tree of several levels, values within pages and in pages of their own."""
        from gpupipe.formats.lmdb import values

        chance = np.random.default_rng(0)
        sizes = chance.choice([0, 1, 50, 500, 2000, 2040, 5000, 70000], 3000)
        entries = {b"key-%06d" % i: chance.bytes(int(size)) for i, size in enumerate(sizes)}
        path = self.write(tmp_path, entries)
        with open(path / "data.mdb", "rb") as file:
            data = file.read()
            found = {key: data[offset : offset + length] for key, offset, length in values(file)}
        assert found == entries
        assert list(found) == sorted(entries)

    def test_a_database_within(self, images: list[bytes], tmp_path: Path) -> None:
        path = self.write(tmp_path, {b"%d" % i: image for i, image in enumerate(images)}, database="train")
        assert [data for data, _ in content(LMDB(path, database="train"))] == images
        with pytest.raises(DatasetError, match="its entries are in the databases 'train'; name one by database="):
            LMDB(path)
        with pytest.raises(DatasetError, match="there is no database 'test' in it; there are train"):
            LMDB(path, database="test")

    def test_labels_of_their_own(self, images: list[bytes], tmp_path: Path) -> None:
        entries = {
            b"image-0": images[0],
            b"label-0": b"4",
            b"image-1": images[1],
            b"label-1": b"four",
            b"image-2": images[2],
        }
        found = LMDB(self.write(tmp_path, entries), image="image-*", label="label-*")
        assert found.fetch(0) == (images[0], 4)
        assert bad(found) == {
            1: ("missing", "its label is b'four', which is not a class number; read texts with columns=['label-*']"),
            2: ("missing", "it has no label, but other samples have one"),
        }
        with pytest.raises(DatasetError, match=r"image must have one \*"):
            LMDB(tmp_path / "db", image="image")

    def test_texts_are_columns(self, images: list[bytes], tmp_path: Path) -> None:
        """Words that are to be read, as sets for text recognition keep them."""
        entries = {b"image-%d" % i: image for i, image in enumerate(images)}
        texts = {b"label-%d" % i: f"wörd {i}".encode() for i in range(len(images)) if i != 2}
        path = self.write(tmp_path, {**entries, **texts, b"label-3": b"\xff"})
        found = LMDB(path, image="image-*", columns=["label-*"])
        good = np.array([i for i in range(len(images)) if i not in (2, 3)])
        assert found.columns["label-*"].of(good) == [f"wörd {i}" for i in good]
        assert {i: why for i, (_, why) in bad(found).items()} == {
            2: "it has no 'label-*', but other samples have one",
            3: "its 'label-*' is of type bytes; columns hold numbers, booleans, texts and arrays of numbers",
        }
        with pytest.raises(DatasetError, match=r"columns must have one \*"):
            LMDB(path, columns=["words"])

    def test_pickled_pairs_are_read_without_unpickling(self, images: list[bytes], tmp_path: Path) -> None:
        """The bytes of an image and its class in any order, in every form that Python has for them."""
        large = images[0] + bytes(1 << 17)
        pairs: list[Any] = [(images[0], 0), (1, images[1]), [images[2], 300], (large, 70_000), (images[4][:200], -5)]
        entries = {b"%d" % (5 * p + i): pickle.dumps(pair, p) for p in (3, 4, 5) for i, pair in enumerate(pairs)}
        found = LMDB(self.write(tmp_path, entries))
        want = [(images[0], 0), (images[1], 1), (images[2], 300), (large, 70_000), (images[4][:200], -5)]
        assert {found.describe(i).rpartition(":")[2]: found.fetch(i) for i in range(len(found))} == {
            str(15 + i): want[i % 5] for i in range(15)
        }

    @pytest.mark.parametrize("value", [{"image": b"x", "label": 1}, (b"x", 1, 2), (b"x", b"y"), (np.zeros(3), 1), (7,)])
    def test_what_else_is_pickled_is_a_bad_sample(self, value: Any, images: list[bytes], tmp_path: Path) -> None:
        (found,) = bad(LMDB(self.write(tmp_path, {b"0": pickle.dumps(value)}))).values()
        assert found[0] == "undecodable"
        assert found[1].startswith("it is pickled, but ")
        assert found[1].endswith("; write the encoded image as it is, and its class under a key of its own")

    @pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000"])
    def test_images_of_all_formats(self, format: str, tmp_path: Path) -> None:
        out = io.BytesIO()
        Image.new("RGB", (9, 7)).save(out, format)
        assert LMDB(self.write(tmp_path, {b"0": out.getvalue()})).sizes.tolist() == [[7, 9]]

    def test_several_values_of_one_key_are_refused(self, images: list[bytes], tmp_path: Path) -> None:
        lmdb = pytest.importorskip("lmdb")
        with lmdb.open(str(tmp_path / "db"), map_size=1 << 26, max_dbs=4) as environment:
            inner = environment.open_db(b"a", dupsort=True)
            with environment.begin(write=True, db=inner) as transaction:
                for key, value in ((b"1", b"x"), (b"2", b"y"), (b"2", b"z")):
                    transaction.put(key, value)
        with pytest.raises(DatasetError, match=r"the key b'2' has several values \(dupsort\); write each under a key"):
            LMDB(tmp_path / "db", database="a")

    def test_another_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "data.mdb").write_bytes(bytes(8192))
        with pytest.raises(DatasetError, match="it is not an LMDB database"):
            LMDB(tmp_path)


class TestZip:
    def write(self, folder: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
        with zipfile.ZipFile(folder / "a.zip", "w", method) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return folder / "a.zip"

    def test_order_and_classes_are_those_of_the_unpacked_folder(self, photos: Path, tmp_path: Path) -> None:
        names = sorted((str(p.relative_to(photos)) for p in photos.rglob("*.jpg")), reverse=True)
        path = self.write(
            tmp_path, {f"data/{n}": (photos / n).read_bytes() for n in names} | {"data/about.txt": b"hello"}
        )
        found, folder = Zip(path), ImageFolder(photos)
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

    @pytest.mark.skipif(shutil.which("zip") is None, reason="needs the program zip")
    def test_one_part_of_several(self, images: list[bytes], tmp_path: Path) -> None:
        (tmp_path / "0.jpg").write_bytes(np.random.default_rng(0).bytes(200_000))
        subprocess.run(["zip", "-q", "-s", "64k", "a.zip", "0.jpg"], cwd=tmp_path, check=True)
        with pytest.raises(DatasetError, match=r"one part of several; join them: zip -s 0 parts.zip --out whole.zip"):
            Zip(tmp_path / "a.zip")

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


class TestMDS:
    def test_fields_that_cannot_be_used(self, images: list[bytes], tmp_path: Path) -> None:
        write_mds(images, tmp_path)
        with pytest.raises(DatasetError, match=r"it has no field 'photo'; it has image, label, name"):
            MDS(tmp_path, image="photo")
        with pytest.raises(DatasetError, match="stored as 'str', which is not an encoded image"):
            MDS(tmp_path, image="name")

    def test_names_of_classes(self, images: list[bytes], tmp_path: Path) -> None:
        write_mds(images, tmp_path)
        assert MDS(tmp_path, label="name").classes == [f"photo {i}" for i in range(len(images))]
        assert content(MDS(tmp_path, label=None)) == [(image, None) for image in images]

    def test_a_label_that_is_none(self, images: list[bytes], tmp_path: Path) -> None:
        """Such as a NumPy number, which LitData pickles."""
        write_mds(images, tmp_path)
        for path in tmp_path.glob("*.mds"):
            path.write_bytes(path.read_bytes().replace(b'"int", "str"', b'"pkl", "str"'))
        with pytest.raises(DatasetError, match=r"'label' is stored as 'pkl', .* or none by label=None"):
            MDS(tmp_path)
        assert content(MDS(tmp_path, label=None)) == [(image, None) for image in images]

    def test_names_that_are_long(self, images: list[bytes], tmp_path: Path) -> None:
        """Two that differ in their last letter are two classes; a caption is none."""
        about = {"column_encodings": ["jpeg", "str"], "column_names": ["image", "label"], "column_sizes": [None, None]}
        for length in (4000, 5000):
            names = ["x" * length + end for end in "ba"]
            samples = [
                sample(image, name.encode(), sizes=(len(image), len(name)))
                for image, name in zip(images, names, strict=False)
            ]
            (tmp_path / "shard.00000.mds").write_bytes(heads(samples, json.dumps(about).encode()))
            found = MDS(tmp_path)
            if length < 4096:
                assert content(found) == [(images[0], 1), (images[1], 0)]
            else:
                why = "its label has 5001 bytes and is not a class; name another field by label="
                assert bad(found) == dict.fromkeys(range(2), ("missing", why))

    def test_the_index_says_which_shards_there_are(self, images: list[bytes], tmp_path: Path) -> None:
        """Also in folders below it, as ``merge_index`` lists them; what else lies there is another dataset's."""
        write_mds(images, tmp_path)
        index = json.loads((tmp_path / "index.json").read_text())
        (tmp_path / "0").mkdir()
        for shard in index["shards"][1:]:
            (tmp_path / shard["raw_data"]["basename"]).rename(tmp_path / "0" / shard["raw_data"]["basename"])
            shard["raw_data"]["basename"] = f"0/{shard['raw_data']['basename']}"
        (tmp_path / "index.json").write_text(json.dumps(index))
        (tmp_path / "shard.00009.mds").write_bytes(b"of something else")
        assert content(MDS(tmp_path)) == numbered(images)
        (tmp_path / "index.json").unlink()
        with pytest.raises(DatasetError, match=r"shard\.00009\.mds cannot be used"):
            MDS(tmp_path)

    @pytest.mark.parametrize("unpacked", [0, 1])
    @pytest.mark.parametrize(
        ("codec", "says"),
        [
            ("zstd", "zstd cannot be used: it is compressed with zstd, .*; pack them once"),
            ("snappy", r"compression='snappy', and [12] of 2 shards are not unpacked; write it again"),
        ],
    )
    def test_compressed_shards_are_refused(
        self, codec: str, says: str, unpacked: int, images: list[bytes], tmp_path: Path
    ) -> None:
        """Also if some are unpacked, which StreamingDataset does while it reads: the others would be missing."""
        write_mds(images, tmp_path)
        index = json.loads((tmp_path / "index.json").read_text())
        for shard in index["shards"]:
            shard["compression"] = codec
        (tmp_path / "index.json").write_text(json.dumps(index))
        assert content(MDS(tmp_path)) == numbered(images)
        for shard in index["shards"][unpacked:]:
            name = shard["raw_data"]["basename"]
            packed = pytest.importorskip("pyarrow").Codec("zstd").compress((tmp_path / name).read_bytes(), asbytes=True)
            (tmp_path / f"{name}.{codec}").write_bytes(packed)
            (tmp_path / name).unlink()
        with pytest.raises(DatasetError, match=says):
            MDS(tmp_path)

    @pytest.mark.parametrize(
        ("key", "value", "says"),
        [
            ("version", 1, "is of version 1"),
            ("format", "json", "shards of format json"),
            ("raw_data", {"basename": "../a.mds"}, "lies outside of its folder"),
            ("raw_data", {}, "KeyError: 'basename'; give the folder that MDSWriter wrote"),
        ],
    )
    def test_another_index_is_refused(
        self, key: str, value: Any, says: str, images: list[bytes], tmp_path: Path
    ) -> None:
        write_mds(images, tmp_path)
        index = json.loads((tmp_path / "index.json").read_text())
        (index if key == "version" else index["shards"][0])[key] = value
        if key == "format":
            index["shards"] = index["shards"][:1]
        (tmp_path / "index.json").write_text(json.dumps(index))
        with pytest.raises(DatasetError, match=says):
            MDS(tmp_path)

    def test_a_shard_that_is_missing(self, images: list[bytes], tmp_path: Path) -> None:
        write_mds(images, tmp_path)
        (tmp_path / "shard.00000.mds").unlink()
        with pytest.raises(DatasetError, match=r"shard\.00000\.mds cannot be used: No such file"):
            MDS(tmp_path)

    def test_another_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "shard.00000.mds").write_bytes(b"\x01\0\0\0\x0c\0\0\0\x0c\0\0\0")
        with pytest.raises(DatasetError, match="it does not name its fields"):
            MDS(tmp_path)


class TestLitData:
    def test_compressed_chunks_are_refused(self, images: list[bytes], tmp_path: Path) -> None:
        write_litdata(images, tmp_path)
        index = json.loads((tmp_path / "index.json").read_text())
        index["config"]["compression"] = "zstd"
        (tmp_path / "index.json").write_text(json.dumps(index))
        with pytest.raises(DatasetError, match="written with compression='zstd'; write it again without"):
            LitData(tmp_path)

    @pytest.mark.parametrize(("format", "turned"), [("jpeg", True), ("image:jpg", True), ("bytes", False)])
    def test_images_are_turned_as_litdata_does(self, format: str, turned: bool, tmp_path: Path) -> None:
        """What it decodes, and not what it hands out as bytes."""
        out = io.BytesIO()
        Image.new("RGB", (40, 30)).save(out, "JPEG", exif=odd_exif(6))
        write_litdata([out.getvalue()] * 2, tmp_path)
        index = json.loads((tmp_path / "index.json").read_text())
        index["config"]["data_format"][0] = format
        (tmp_path / "index.json").write_text(json.dumps(index))
        assert LitData(tmp_path).raw(0)[0].size == ((30, 40) if turned else (40, 30))
        assert LitData(tmp_path, exif=False).raw(0)[0].size == (40, 30)
        assert LitData(tmp_path, exif=True).raw(0)[0].size == (30, 40)

    def test_a_name_that_leads_elsewhere(self, images: list[bytes], tmp_path: Path) -> None:
        write_litdata(images, tmp_path)
        index = json.loads((tmp_path / "index.json").read_text())
        index["chunks"][0]["filename"] = "../../etc/passwd"
        (tmp_path / "index.json").write_text(json.dumps(index))
        with pytest.raises(DatasetError, match="is damaged"):
            LitData(tmp_path)

    def test_no_index(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"give the folder that litdata\.optimize wrote"):
            LitData(tmp_path)
