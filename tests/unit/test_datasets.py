"""What the datasets hand out: the same samples as torchvision, by names, by lists, from arrays, and in part."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpupipe
from gpupipe.datasets import Arrays, Dataset, ImageFolder, ImageList, Subset
from gpupipe.errors import ConfigError, DatasetError
from gpupipe.pipelines import imagenet


def png(path: Path, height: int = 5, width: int = 7, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (width, height, 9)).save(path, **options)
    return path


def rotated(path: Path, orientation: int, height: int = 5, width: int = 7) -> Path:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return png(path, height, width, exif=exif)


def all_of(ds: Dataset) -> np.ndarray[Any, Any]:
    return np.arange(len(ds))


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """Three classes, nested folders, capital endings, names that sort differently with and without a folder."""
    root = tmp_path / "zoo"
    for name in ("cat/b.png", "cat/a.JPG", "cat/sub/z.png", "cat/sub-1/y.png", "cat/é.png", "Dog/1.bmp", "ant/10.png"):
        png(root / name)
    png(root / "ant" / "9.png", 11, 13)
    (root / "cat" / "notes.txt").write_text("no image")
    (root / "loose.png").write_bytes(b"not in a class")
    return root


class TestImageFolder:
    def test_equals_torchvision(self, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        theirs = pytest.importorskip("torchvision.datasets", exc_type=ImportError)
        (zoo / "linked").symlink_to(zoo / "cat" / "sub", target_is_directory=True)
        (zoo / "cat" / "broken.png").symlink_to("nowhere")
        (zoo / "cat" / ".png").write_bytes(b"")
        os.makedirs(os.fsencode(zoo) + b"/cat/\xff")
        png(zoo / "cat" / "sub" / "deep" / "x.png")  # by path, sub-1 comes between sub and sub/deep
        png(zoo / "cat" / "tmp.png").rename(os.fsdecode(os.fsencode(zoo) + b"/cat/\xff/\xfe.png"))
        monkeypatch.chdir(tmp_path)
        for root in (str(zoo), zoo, "zoo", "./zoo/", "../" + tmp_path.name + "/zoo"):
            a, b = ImageFolder(root), theirs.ImageFolder(root)
            for name in ("samples", "targets", "classes", "class_to_idx", "imgs", "root"):
                assert getattr(a, name) == getattr(b, name), name
            assert type(a.targets) is list and type(a.samples) is list and type(a.targets[0]) is int
            assert len(a) == len(b) == 14
            assert [a.describe(i) for i in range(14)] == [os.path.abspath(p) for p, _ in b.samples]
        for wrong in ("Dog", "nowhere"):  # no class folder, no folder
            with pytest.raises(FileNotFoundError):
                theirs.ImageFolder(zoo / wrong)
            with pytest.raises(DatasetError):
                ImageFolder(zoo / wrong)

    def test_columns(self, zoo: Path) -> None:
        ds = ImageFolder(zoo, imagenet.train(size=8))
        assert ds.classes == ["Dog", "ant", "cat"]
        assert ds.labels is not None and ds.labels.tolist() == [0, 1, 1, 2, 2, 2, 2, 2]
        assert ds.sizes[2].tolist() == [11, 13] and ds.sizes[1].tolist() == [5, 7]
        assert ds.sizes.dtype == np.int32 and ds.labels.dtype == np.int64
        assert ds.kind == "files" and ds.whole_files and ds.transform == imagenet.train(size=8)
        paths = ds.encoded_paths(np.array([2, 0]))
        assert [p.tobytes().decode() for p in paths] == [str(zoo / "ant/9.png"), str(zoo / "Dog/1.bmp")]
        assert all(p.dtype == np.uint8 and p.ndim == 1 for p in paths)
        assert ds.fetch(2) == (str(zoo / "ant/9.png"), 1) and type(ds.fetch(2)[1]) is int
        image, label = ds.raw(2)
        assert image.size == (13, 11) and image.mode == "RGB" and label == 1
        with pytest.raises(IndexError):
            ds[8]
        assert "8 samples" in repr(ds)

    def test_exif(self, tmp_path: Path) -> None:
        for orientation in range(1, 9):
            rotated(tmp_path / "c" / f"{orientation}.png", orientation)
        stored, upright = ImageFolder(tmp_path), ImageFolder(tmp_path, exif=True)
        assert (stored.sizes == [5, 7]).all()
        assert upright.sizes.tolist() == [[5, 7]] * 4 + [[7, 5]] * 4
        for i in range(8):
            assert upright[i][0].size[::-1] == tuple(upright.sizes[i])
            assert stored[i][0].size[::-1] == (5, 7)
        assert stored.fingerprint != upright.fingerprint
        assert stored.index_summary().oriented == 7

    def test_tiff_is_turned_by_pillow_already(self, tmp_path: Path) -> None:
        (tmp_path / "c").mkdir()
        Image.new("RGB", (7, 5)).save(tmp_path / "c" / "a.tif", tiffinfo={0x0112: 6, 700: b"<x/>"})
        for exif in (False, True):
            ds = ImageFolder(tmp_path, exif=exif)
            assert ds.sizes[0].tolist() == [7, 5] == list(ds[0][0].size[::-1])

    def test_what_is_refused(self, zoo: Path, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"No such file or directory: .*; "):
            ImageFolder(tmp_path / "nowhere")
        with pytest.raises(DatasetError, match="is a file"):
            ImageFolder(zoo / "loose.png")
        with pytest.raises(DatasetError, match="no class folder"):
            ImageFolder(zoo / "cat" / "sub")
        (zoo / "void").mkdir()
        for _ in range(2):  # the second time from the cache
            with pytest.raises(DatasetError, match=r"classes void .*Supported extensions are: \.jpg, .*allow_empty"):
                ImageFolder(zoo)
            assert ImageFolder(zoo, allow_empty=True).classes == ["Dog", "ant", "cat", "void"]
        with pytest.raises(ConfigError, match="lower-case"):
            ImageFolder(zoo, extensions=(".PNG",))

    def test_allow_empty_without_any_file(self, tmp_path: Path) -> None:
        (tmp_path / "c").mkdir()
        ds = ImageFolder(tmp_path, allow_empty=True)
        assert len(ds) == 0 and ds.sizes.shape == (0, 2) and ds.samples == []
        assert ds.bad(np.empty(0, np.int64)) == [] and ds.encoded_paths(np.empty(0, np.int64)) == []
        assert ds.index_summary().height == (0, 0, 0)

    def test_extensions(self, zoo: Path) -> None:
        assert len(ImageFolder(zoo, extensions=".bmp", allow_empty=True)) == 1
        assert len(ImageFolder(zoo, extensions=(".bmp", ".jpg"), allow_empty=True)) == 2

    def test_pickle_is_small_and_equal(self, zoo: Path) -> None:
        for i in range(100):
            png(zoo / "cat" / f"{i:0100}.png")
        ds = ImageFolder(zoo)
        assert len(ds.samples) == len(ds.targets) == 108
        data = pickle.dumps(ds)
        assert len(data) < 4000
        copy = pickle.loads(data)
        assert copy.fingerprint == ds.fingerprint and np.array_equal(copy.sizes, ds.sizes)
        assert copy.samples == ds.samples

    def test_pickle_refuses_another_index(self, zoo: Path) -> None:
        ds = ImageFolder(zoo)
        data = pickle.dumps(ds)
        ImageFolder(zoo).reindex()
        assert pickle.loads(data).samples == ds.samples  # made again, and the same
        png(zoo / "cat" / "another.png")
        ImageFolder(zoo)
        with pytest.raises(DatasetError, match="rebuilt"):
            pickle.loads(data)


class TestBadFiles:
    @pytest.fixture
    def ds(self, tmp_path: Path) -> ImageFolder:
        folder = tmp_path / "c"
        png(folder / "0.png")
        (folder / "1-empty.png").touch()
        (folder / "2-missing.png").symlink_to("nowhere")
        (folder / "3-text.png").write_text("hello")
        png(folder / "4.png")
        (folder / "5-cut.png").write_bytes((folder / "0.png").read_bytes()[:20])
        os.mkfifo(folder / "6-pipe.png")  # opening it would wait for ever
        (folder / "7-bomb.ppm").write_bytes(b"P6 30000 30000 255\n" + bytes(100))
        with open(folder / "8-large.ppm", "wb") as f:  # Pillow only warns
            f.write(b"P6 10000 10000 255\n")
            f.truncate(f.tell() + 300_000_000)  # takes no place on the disk
        return ImageFolder(tmp_path)

    def test_kinds(self, ds: ImageFolder) -> None:
        bad = ds.bad(all_of(ds))
        kinds = {1: "empty", 2: "missing", 3: "undecodable", 5: "truncated", 6: "unreadable", 7: "bomb"}
        assert {b.index: b.kind for b in bad} == kinds
        assert all(b.path == ds.describe(b.index) and b.reason for b in bad)
        assert (ds.sizes[list(kinds)] == 0).all()
        assert ds.sizes[[0, 4, 8]].tolist() == [[5, 7], [5, 7], [10000, 10000]]

    def test_positions_follow_the_question(self, ds: ImageFolder) -> None:
        assert [b.index for b in ds.bad(np.array([5, 0, 1, 5]))] == [5, 1, 5]
        assert ds.bad(np.array([4, 0, 8])) == []

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_unreadable(self, tmp_path: Path) -> None:
        file = png(tmp_path / "c" / "a.png")
        file.chmod(0)
        ds = ImageFolder(tmp_path)
        assert [b.kind for b in ds.bad(all_of(ds))] == ["unreadable"]
        file.chmod(0o600)  # leaves the time of the file as it is
        ds = ImageFolder(tmp_path)
        assert ds.bad(all_of(ds)) == []


class TestImageList:
    def test_paths_from_python(self, zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(zoo)
        paths: list[Any] = ["cat/b.png", zoo / "ant/9.png", b"nowhere.png"]
        ds = ImageList(paths, [4, 5, 6])
        assert [ds.describe(i) for i in range(3)] == [str(zoo / p) for p in ("cat/b.png", "ant/9.png", "nowhere.png")]
        assert ds.labels is not None and ds.labels.tolist() == [4, 5, 6] and ds.classes == []
        assert [(b.index, b.kind) for b in ds.bad(all_of(ds))] == [(2, "missing")]
        assert ds.sizes.tolist() == [[5, 7], [11, 13], [0, 0]]
        assert ds.samples[1] == (str(zoo / "ant/9.png"), 5)
        assert ImageList(["cat/b.png"]).labels is None and ImageList(["cat/b.png"]).fetch(0)[1] is None

    def test_same_files_elsewhere_have_the_same_fingerprint(self, tmp_path: Path) -> None:
        files = ["x/1.png", "y/2.png"]
        lists = []
        for place in ("one", "another/deeper"):
            for file in files:
                png(tmp_path / place / file)
            lists.append(ImageList([tmp_path / place / f for f in files], [0, 1]))
        assert lists[0].fingerprint == lists[1].fingerprint
        assert lists[0].fingerprint != ImageList([tmp_path / "one" / f for f in files], [1, 0]).fingerprint

    def test_class_names(self, zoo: Path) -> None:
        ds = ImageList(["cat/b.png", "ant/9.png", "Dog/1.bmp"], ["cat", "ant", "cat"], root=zoo)
        assert ds.classes == ["ant", "cat"] and ds.class_to_idx == {"ant": 0, "cat": 1}
        assert ds.targets == [1, 0, 1]

    @pytest.mark.parametrize(
        ("name", "text", "labels", "classes"),
        [
            ("a.csv", "cat/b.png,3\nant/9.png,1\n", [3, 1], []),
            ("a.csv", "path,label\ncat/b.png,3\nant/9.png,1\n", [3, 1], []),
            ("a.csv", "\ufeffwhat,number\r\ncat/b.png,3\r\n\r\nant/9.png,1\r\n", [3, 1], []),
            ("a.csv", "label,extra,path\n3,x,cat/b.png\n1,y,ant/9.png\n", [3, 1], []),
            ("a.csv", '"cat/b.png",cat\nant/9.png,"ant"\n', [1, 0], ["ant", "cat"]),
            ("a.csv", "cat/b.png,7\nant/9.png,seven\n", [0, 1], ["7", "seven"]),
            ("a.csv", "cat/b.png\nant/9.png\n", None, []),
            ("a.csv", "file\ncat/b.png\nant/9.png", None, []),
            ("a.tsv", "cat/b.png\t3\nant/9.png\t1", [3, 1], []),
            ("a.txt", "cat/b.png\t3\nant/9.png\t-1", [3, -1], []),
        ],
    )
    def test_list_files(self, zoo: Path, name: str, text: str, labels: list[int] | None, classes: list[str]) -> None:
        (zoo / name).write_text(text, encoding="utf-8")
        ds = ImageList(zoo / name)
        assert [ds.describe(i) for i in range(len(ds))] == [str(zoo / "cat/b.png"), str(zoo / "ant/9.png")]
        assert (None if ds.labels is None else ds.labels.tolist()) == labels
        assert ds.classes == classes and ds.bad(all_of(ds)) == []

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"a.png,1\nb.png\n", "line 2"),
            (b"a.png,1\nb.png,\n", "line 2"),
            (b"a.png,1,2\n", "3 columns and no header"),
            (b"path,label\na.png,1.0\nb.png,10.0\n", r"labels in .* are numbers such as 1\.0, .* write integers"),
            (b"path,label\n,1\n", "line 2"),
            (b'"a.png,1\n', "cannot be read: unexpected end"),
            (b"\xff\xfea.png", "UTF-8"),
        ],
    )
    def test_wrong_list_files(self, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "list.csv").write_bytes(content)
        with pytest.raises(DatasetError, match=message):
            ImageList(tmp_path / "list.csv")

    def test_what_is_refused(self, zoo: Path) -> None:
        with pytest.raises(DatasetError, match=r"No such file or directory: .*; "):
            ImageList(zoo / "nowhere.csv")
        with pytest.raises(DatasetError, match="folder"):
            ImageList(zoo)
        with pytest.raises(DatasetError, match="one per path"):
            ImageList(["a", "b"], [1])
        with pytest.raises(DatasetError, match="float64"):
            ImageList(["a", "b"], [0.5, 1.0])
        with pytest.raises(DatasetError, match="path 1"):
            ImageList(["a", None])  # type: ignore[list-item]
        with pytest.raises(DatasetError, match="NUL"):
            ImageList(["a\0b"])
        (zoo / "l.csv").write_text("cat/b.png,1")
        with pytest.raises(DatasetError, match="use only one of them"):
            ImageList(zoo / "l.csv", [1])

    @pytest.mark.parametrize(
        "path", ["../secret.png", "cat/../../secret.png", "/etc/passwd", "{root}-2/a.png", "{root}/../x"]
    )
    def test_escaping_root(self, zoo: Path, path: str) -> None:
        path = path.format(root=zoo)
        with pytest.raises(DatasetError, match="leads out of root"):
            ImageList(["cat/b.png", path], root=zoo)
        ds = ImageList(["cat/b.png", path], root=zoo, allow_outside=True)
        assert ds.describe(1) == os.path.join(zoo, path)
        assert [p.tobytes() for p in ds.encoded_paths(all_of(ds))] == [os.fsencode(ds.describe(i)) for i in (0, 1)]

    def test_dots_inside_root_are_fine(self, zoo: Path) -> None:
        ds = ImageList(["cat/../ant/9.png", zoo / "ant" / ".." / "cat" / "b.png", "cat/..png"], root=zoo)
        assert ds.sizes.tolist() == [[11, 13], [5, 7], [0, 0]]

    def test_names_that_are_not_ascii(self, tmp_path: Path) -> None:
        names = ["é.png", "日本.png", os.fsdecode(b"\xff.png")]
        for name in names:
            png(tmp_path / "a.png").rename(tmp_path / name)
        ds = ImageList(names, root=tmp_path)
        assert ds.bad(all_of(ds)) == [] and [ds.describe(i) for i in range(3)] == [str(tmp_path / n) for n in names]

    def test_empty_and_pickle(self, zoo: Path) -> None:
        assert len(ImageList([])) == 0
        ds = ImageList(["cat/b.png"] * 1000, root=zoo)
        copy = pickle.loads(pickle.dumps(ds))
        assert len(pickle.dumps(ds)) < 4000 and copy.describe(999) == ds.describe(999)


class TestArrays:
    @pytest.mark.parametrize("shape", [(5, 4, 6, 3), (5, 4, 6, 1), (5, 4, 6)])
    def test_columns(self, shape: tuple[int, ...]) -> None:
        images = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
        ds = Arrays(images, [4, 3, 2, 1, 0], transform=imagenet.val())
        assert len(ds) == 5 and ds.sizes.tolist() == [[4, 6]] * 5 and ds.sizes.dtype == np.int32
        pixels, label = ds.fetch(1)
        assert pixels.shape == (4, 6, 3 if shape[-1] == 3 else 1) and label == 3
        assert (
            pixels.flags.c_contiguous
            and np.shares_memory(pixels, images)
            and (pixels.ravel() == images[1].ravel()).all()
        )
        assert ds.raw(1)[0].size == (6, 4) and ds.kind == "pixels" and ds.bad(all_of(ds)) == []
        assert ds.labels is not None and ds.labels.dtype == np.int64

    def test_memmap_and_strided(self, tmp_path: Path) -> None:
        images = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
        np.save(tmp_path / "x.npy", np.moveaxis(images, 1, -1))
        mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
        for given in (mapped, np.moveaxis(images, 1, -1)):
            pixels, label = Arrays(given).fetch(1)
            assert type(pixels) is np.ndarray and pixels.flags.c_contiguous and label is None
            assert (pixels == np.moveaxis(images, 1, -1)[1]).all()

    @pytest.mark.parametrize("block", [0, 512])
    def test_pixels_of_hdf5_as_the_page_maps_them(
        self, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        h5py = pytest.importorskip("h5py")
        images = np.arange(5 * 4 * 6 * 3, dtype=np.uint8).reshape(5, 4, 6, 3)
        with h5py.File(tmp_path / "cifar.h5", "w", userblock_size=block) as file:
            file["x"], file["y"] = images, np.arange(5)
        page = (Path(__file__).parents[2] / "docs/sources.md").read_text()
        (code,) = re.findall(r"^```python\n(import h5py\n.*?)^```", page, re.DOTALL | re.MULTILINE)
        monkeypatch.chdir(tmp_path)
        names: dict[str, Any] = {"gpupipe": gpupipe, "np": np, "steps": None}
        exec(code, names)
        found = [names["data"].fetch(i) for i in range(5)]
        assert [label for _, label in found] == [*range(5)]
        assert (np.stack([pixels for pixels, _ in found]) == images).all()

    def test_torch_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        images = torch.arange(2 * 4 * 6 * 3, dtype=torch.uint8).reshape(2, 4, 6, 3)
        ds = Arrays(images, torch.tensor([1, 0]))
        assert (ds.fetch(0)[0] == images[0].numpy()).all() and ds.fetch(0)[1] == 1

    @pytest.mark.parametrize(
        ("images", "labels", "message"),
        [
            (np.zeros((2, 4, 4, 3), np.float32), None, "uint8"),
            (np.zeros((2, 3, 4, 5), np.uint8), None, "channels last"),
            (np.zeros((4, 4), np.uint8), None, "shape"),
            (np.zeros((2, 0, 4, 3), np.uint8), None, "no pixels"),
            ([[1, 2]], None, "not list"),
            (np.zeros((2, 4, 4, 3), np.uint8), [1], "one integer per image"),
            (np.zeros((2, 4, 4, 3), np.uint8), [0.5, 1], "one integer per image"),
        ],
    )
    def test_what_is_refused(self, images: Any, labels: Any, message: str) -> None:
        with pytest.raises(DatasetError, match=message):
            Arrays(images, labels)

    def test_fingerprint(self) -> None:
        images = np.zeros((3, 8, 8, 3), np.uint8)
        other = images.copy()
        other[2, 7, 7, 2] = 1
        prints = [
            Arrays(images).fingerprint,
            Arrays(other).fingerprint,
            Arrays(images, [0, 0, 0]).fingerprint,
            Arrays(images, [0, 0, 1]).fingerprint,
            Arrays(images[:2]).fingerprint,
            Arrays(images.reshape(3, 8, 24)).fingerprint,
        ]
        assert len(set(prints)) == len(prints) and Arrays(images.copy()).fingerprint == prints[0]


def test_sizes_of_files_come_from_the_index(zoo: Path) -> None:
    dataset = ImageFolder(zoo)
    expected = [Path(path).stat().st_size for path, _ in dataset.samples]
    assert dataset.file_sizes.tolist() == expected
    assert Subset(dataset, [3, 1]).file_sizes.tolist() == [expected[3], expected[1]]  # type: ignore[union-attr]
    assert Arrays(np.zeros((1, 2, 2, 3), np.uint8)).file_sizes is None


class TestSubset:
    def test_is_a_view(self, zoo: Path) -> None:
        (zoo / "cat" / "c-empty.png").touch()
        whole = ImageFolder(zoo, imagenet.train(size=8), exif=True)
        picks = [8, 2, 2, 0, 5]
        ds = Subset(whole, picks)
        assert (
            len(ds) == 5
            and ds.kind == "files"
            and ds.whole_files
            and ds.limits.exif
            and ds.transform is whole.transform
        )
        assert ds.sizes is not None and (ds.sizes == whole.sizes[picks]).all()
        assert ds.labels is not None and whole.labels is not None and (ds.labels == whole.labels[picks]).all()
        for k, i in enumerate(picks):
            assert ds.describe(k) == whole.describe(i) and ds.fetch(k) == whole.fetch(i)
        got = [p.tobytes() for p in ds.encoded_paths(np.array([1, 0]))]
        assert got == [p.tobytes() for p in whole.encoded_paths(np.array([2, 8]))]
        assert ds.classes == whole.classes and ds.raw(1)[0].size == (13, 11)

    def test_bad_has_positions_of_the_subset(self, zoo: Path) -> None:
        (zoo / "Dog" / "0-empty.png").touch()
        whole = ImageFolder(zoo)
        assert [b.index for b in whole.bad(all_of(whole))] == [0]
        inner = Subset(whole, [3, 0, 1, 0])
        assert [(b.index, b.path) for b in inner.bad(all_of(inner))] == [(1, whole.describe(0)), (3, whole.describe(0))]
        assert [b.index for b in inner.bad(np.array([3, 0]))] == [3]
        outer = Subset(inner, [2, 1])
        assert [b.index for b in outer.bad(all_of(outer))] == [1]

    def test_fingerprint_and_transform(self, zoo: Path) -> None:
        whole = ImageFolder(zoo)
        assert Subset(whole, [0, 1]).fingerprint != Subset(whole, [1, 0]).fingerprint != whole.fingerprint
        assert Subset(whole, [0, 1]).fingerprint == Subset(whole, np.array([0, 1], np.int32)).fingerprint
        assert Subset(whole, [0], transform=imagenet.val()).transform == imagenet.val() != whole.transform

    def test_of_arrays_and_pickle(self) -> None:
        ds = Subset(Arrays(np.zeros((3, 4, 4), np.uint8)), [2])
        assert ds.labels is None and ds.sizes is not None and ds.sizes.tolist() == [[4, 4]]
        assert pickle.loads(pickle.dumps(ds)).sizes.tolist() == [[4, 4]]
        with pytest.raises(AttributeError):
            _ = ds.classes

    @pytest.mark.parametrize("indices", [[3], [-1], [0.0], [[0]], [True, False, True]])
    def test_what_is_refused(self, indices: Any) -> None:
        with pytest.raises(DatasetError):
            Subset(Arrays(np.zeros((3, 4, 4), np.uint8)), indices)
        with pytest.raises(DatasetError, match=r"torch\.utils\.data\.Subset"):
            Subset([1, 2, 3], [0])  # type: ignore[arg-type]

    def test_empty(self) -> None:
        ds = Subset(Arrays(np.zeros((3, 4, 4), np.uint8)), [])
        assert len(ds) == 0 and ds.sizes is not None and ds.sizes.shape == (0, 2)


def test_labels_that_int64_cannot_hold_are_refused() -> None:
    """They became negative in silence."""
    large = np.array([1 << 63, 1], np.uint64)
    with pytest.raises(DatasetError, match=f"label {1 << 63} is too large; labels must be below"):
        Arrays(np.zeros((2, 8, 8, 3), np.uint8), large)
    with pytest.raises(DatasetError, match="ImageList: label 9223372036854775808 is too large"):
        ImageList(["a.jpg", "b.jpg"], large)
    fits = Arrays(np.zeros((2, 8, 8, 3), np.uint8), large - np.uint64(1))
    assert fits.labels is not None and fits.labels.tolist() == [(1 << 63) - 1, 0]
