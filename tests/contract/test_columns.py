"""Further columns arrive with the samples that they belong to: in every format that has some, in both engines, after
resuming, on ranks, and without the rows of bad samples."""

from __future__ import annotations

import csv
import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support import BATCH, EVAL, TRAIN, N, add_member, cpu_loader as loader
from tfrecords import example, tfrecord
from torch.utils.data import default_collate

from gpupipe import datasets as ours, transforms as T
from gpupipe.errors import DatasetError

pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")

NAMES = ("weight", "id", "caption")
ENGINES = ("torch", "dali")


def row(i: int) -> dict[str, Any]:
    """Of sample ``i``: a number, one of more than 32 bits, a text of any length."""
    return {"weight": i / 4, "id": 10**12 + i, "caption": "ü" * (i % 3) + f" photo {i}"}


def tar(images: list[bytes], folder: Path) -> Any:
    with tarfile.open(folder / "a.tar", "w") as out:
        for i, image in enumerate(images):
            about = json.dumps({"weight": row(i)["weight"], "deep": {"id": row(i)["id"]}}).encode()
            members = {"jpg": image, "cls": b"%d" % i, "json": about, "TXT": row(i)["caption"].encode()}
            for extension, data in members.items():
                add_member(out, f"{i:06d}.{extension}", data)
    return folder / "a.tar"


def record(images: list[bytes], folder: Path) -> Any:
    def made(i: int) -> bytes:
        about = {**row(i), "caption": row(i)["caption"].encode()}
        return example({"image/encoded": images[i], "image/class/label": i, **about})

    (folder / "a.tfrecord").write_bytes(tfrecord(*map(made, range(len(images)))))
    return folder / "a.tfrecord"


def huggingface(images: list[bytes], folder: Path) -> Any:
    import pyarrow as pa

    about = [row(i) for i in range(len(images))]
    columns = {name: [it[name] for it in about] for name in NAMES}
    return saved(pa.table({"image": images, "label": range(len(images)), **columns}), folder)


def saved(table: Any, folder: Path) -> Any:
    hf = pytest.importorskip("datasets")
    hf.Dataset(table).cast_column("image", hf.Image()).save_to_disk(folder / "hf")
    return hf.load_from_disk(folder / "hf")


def files(images: list[bytes], folder: Path) -> list[dict[str, Any]]:
    rows = []
    for i, image in enumerate(images):
        (folder / f"{i}.jpg").write_bytes(image)
        rows.append({"path": f"{i}.jpg", "label": i, **row(i)})
    return rows


def jsonl(images: list[bytes], folder: Path) -> Any:
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, files(images, folder))))
    return folder / "list.jsonl"


def table_of_text(images: list[bytes], folder: Path) -> Any:
    with (folder / "list.csv").open("w", newline="") as file:
        rows = files(images, folder)
        out = csv.DictWriter(file, list(rows[0]))
        out.writeheader()
        out.writerows(rows)
    return folder / "list.csv"


KINDS: dict[str, tuple[Callable[[list[bytes], Path], Any], Callable[..., Any], tuple[str, ...]]] = {
    "tar": (tar, ours.WebDataset, ("json:weight", "json:deep.id", "txt")),
    "tfrecord": (record, ours.TFRecord, NAMES),
    "huggingface": (huggingface, ours.HuggingFace, NAMES),
    "jsonl": (jsonl, ours.Manifest, NAMES),
    "csv": (table_of_text, ours.Manifest, NAMES),
}
"""How a format is written, opened, and what its columns are called."""


class Written:
    def __init__(self, name: str, images: list[bytes], folder: Path):
        write, self._open, self.names = KINDS[name]
        self.given = write(images, folder)

    def open(self, transform: Any = TRAIN, **options: Any) -> Any:
        return self._open(self.given, transform, columns=self.names, **options)


@pytest.fixture(scope="module", params=KINDS)
def written(request: pytest.FixtureRequest, images: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(request.param, images, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def manifest(images: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written("jsonl", images, tmp_path_factory.mktemp("jsonl"))


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def is_right(batch: Any) -> list[int]:
    """The labels of a batch whose further columns are those of these labels, in the form that torch gives them."""
    images, labels, *columns = batch.values() if isinstance(batch, dict) else batch
    want = default_collate([tuple(row(i).values()) for i in labels.tolist()])
    assert len(images) == len(labels)
    assert [type(column) for column in columns] == [torch.Tensor, torch.Tensor, list]
    for have, it in zip(columns, want, strict=True):
        assert have == list(it) if isinstance(have, list) else (torch.equal(have, it) and have.dtype == it.dtype)
    found: list[int] = labels.tolist()
    return found


def test_an_epoch(written: Written, engine: str) -> None:
    with loader(written.open(), engine) as it:
        batches = list(it)
    assert all(type(batch) is list for batch in batches)
    assert sorted(i for batch in batches for i in is_right(batch)) == list(range(N))


def test_dictionaries(written: Written) -> None:
    with loader(written.open(return_dict=True)) as it:
        batch = next(iter(it))
    assert list(batch) == ["image", "label", *written.names]
    is_right(batch)


def test_the_index_knows_them(written: Written) -> None:
    """Whoever opens it again gets the same; another column makes another fingerprint."""
    one, two = written.open(), written.open()
    assert not two._index.built
    assert one.fingerprint == two.fingerprint == pickle.loads(pickle.dumps(one)).fingerprint
    part = written._open(written.given, TRAIN, columns=written.names[:1])
    assert part.fingerprint not in (one.fingerprint, written._open(written.given, TRAIN).fingerprint)
    values = pickle.loads(pickle.dumps(ours.Subset(one, [3, 1]))).columns[written.names[2]]
    assert values.of(torch.tensor([1, 0]).numpy()) == [row(1)["caption"], row(3)["caption"]]


def test_a_column_that_is_not_there(written: Written) -> None:
    with pytest.raises(DatasetError, match=r"column.*'nothing'"):
        written._open(written.given, columns=["nothing"])


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_bad_samples(images: list[bytes], tmp_path: Path, engine: str, on_error: str) -> None:
    """Missing files, images that are none, and rows without a value."""
    rows = files(images, tmp_path)
    (tmp_path / "3.jpg").unlink()
    (tmp_path / "7.jpg").write_bytes(images[7][:-200])
    del rows[11]["caption"]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset = ours.Manifest(tmp_path / "list.jsonl", TRAIN, columns=NAMES)
    bad = {it.index: it.reason for it in dataset.index_summary().bad}
    assert bad[11] == "it has no 'caption', but other samples have one"
    (tmp_path / "13.jpg").write_bytes(images[13][:400])  # which only reading finds
    with loader(dataset, engine, on_error=on_error) as it:
        batches = list(it)
    found = [i for batch in batches for i in is_right(batch)]
    assert set(found) == set(range(N)) - {3, 7, 11, 13}
    assert len(found) == (N if on_error == "replace" else N - 4)


def test_mixing_leaves_them(manifest: Written, engine: str) -> None:
    mixed = T.Compose([*TRAIN, T.MixUp(num_classes=N)])
    plain = list(loader(manifest.open(), engine))
    for (_, label, *columns), (_, shares, *others) in zip(plain, loader(manifest.open(mixed), engine), strict=True):
        assert shares.shape == (len(label), N)
        assert torch.allclose(shares.sum(1), torch.ones(len(label)))
        assert str(columns) == str(others)


def test_a_collate_function_gets_pythons_values(manifest: Written, engine: str) -> None:
    for options, form in (({}, tuple), ({"return_dict": True}, dict)):
        with loader(manifest.open(EVAL, **options), engine, collate_fn=list) as it:
            samples = [one for batch in it for one in batch]
        assert all(type(one) is form for one in samples)
        for one in samples:
            _, label, *others = one.values() if isinstance(one, dict) else one
            assert others == list(row(label).values())
            assert [type(value) for value in others] == [float, int, str]


def test_without_labels(images: list[bytes], tmp_path: Path) -> None:
    files(images, tmp_path)
    lines = [json.dumps({"path": f"{i}.jpg", "good": i % 3 == 0}) for i in range(N)]
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    with loader(ours.Manifest(tmp_path / "list.jsonl", EVAL, columns=["good"]), shuffle=False) as it:
        images_, good = next(iter(it))
    assert torch.equal(good, torch.tensor([True, False, False, True, False]))
    assert images_.shape == (BATCH, 3, 32, 32)


def vector(i: int) -> npt.NDArray[np.float32]:
    return np.array([i, i / 2, -1, 0.25], np.float32)


def npy(i: int) -> bytes:
    out = io.BytesIO()
    np.save(out, vector(i).reshape(2, 2))
    return out.getvalue()


def vectors_of(kind: str, images: list[bytes], folder: Path) -> Any:
    """A dataset whose column is :func:`vector`, as its format keeps arrays."""
    numbers = range(len(images))
    lists = [vector(i).tolist() for i in numbers]
    if kind == "tar":
        with tarfile.open(folder / "a.tar", "w") as out:
            for i in numbers:
                members = {
                    "jpg": images[i],
                    "cls": b"%d" % i,
                    "npy": npy(i),
                    "json": json.dumps({"v": lists[i]}).encode(),
                }
                for extension, data in members.items():
                    add_member(out, f"{i:06d}.{extension}", data)
        return ours.WebDataset(folder / "a.tar", EVAL, columns=["npy", "json:v"])
    if kind == "tfrecord":
        records = [example({"image": images[i], "label": i, "v": lists[i], "n": [i, 2 * i]}) for i in numbers]
        (folder / "a.tfrecord").write_bytes(tfrecord(*records))
        return ours.TFRecord(folder / "a.tfrecord", EVAL, columns=["v", "n"])
    import pyarrow as pa

    of = pa.list_(pa.float32(), 4) if kind.endswith("fixed") else pa.list_(pa.float32())
    rows = pa.table({"image": images, "label": [*numbers], "v": pa.array(lists, of)})
    return ours.HuggingFace(saved(rows, folder), EVAL, columns=["v"])


@pytest.mark.parametrize(
    "kind",
    [
        "tar",
        "tfrecord",
        "huggingface",
        "huggingface-fixed",
    ],
)
def test_arrays_of_one_shape(kind: str, images: list[bytes], tmp_path: Path) -> None:
    dataset = pickle.loads(pickle.dumps(vectors_of(kind, images, tmp_path)))
    with loader(dataset) as it:
        batches = list(it)
    assert sorted(i for _, labels, *_ in batches for i in labels.tolist()) == list(range(N))
    for _, labels, found, *more in batches:
        want = torch.from_numpy(np.stack([vector(i) for i in labels.tolist()]))
        assert found.dtype == torch.float32
        assert torch.equal(found.flatten(1)[:, :4], want)
        assert found.shape[1:] == {"tar": (2, 2)}.get(kind, (4,))
        if kind == "tar":
            assert torch.equal(more[0], want.double())
        if kind == "tfrecord":
            assert torch.equal(more[0], labels[:, None] * torch.tensor([1, 2]))


class TestColumnsFromPython:
    def test_beside_any_dataset(self, numbered: Path, manifest: Written, engine: str) -> None:
        about = [row(i) for i in range(N)]
        given = {name: [it[name] for it in about] for name in NAMES}
        for options in ({}, {"return_dict": True}):
            with loader(ours.Columns(ours.ImageFolder(numbered, TRAIN), given, **options), engine) as it:
                batches = list(it)
            assert sorted(i for batch in batches for i in is_right(batch)) == list(range(N))
        both = ours.Columns(manifest.open(), {"more": torch.arange(N)})
        with loader(ours.Subset(both, [7, 3, 1]), engine, shuffle=False) as it:
            (batch,) = it
        assert is_right(batch[:-1]) == [7, 3, 1] == batch[-1].tolist()

    def test_arrays_keep_their_type(self) -> None:
        pixels = ours.Arrays(torch.zeros(4, 8, 8, 3, dtype=torch.uint8))
        all_boxes = torch.arange(16, dtype=torch.float32).view(4, 4)
        columns = {"box": all_boxes, "good": np.array([True, False] * 2)}
        with loader(ours.Columns(pixels, columns), batch_size=2, shuffle=False) as it:
            _, boxes, good = next(iter(it))
        assert torch.equal(boxes, all_boxes[:2])
        assert good.tolist() == [True, False]
        with loader(ours.Columns(pixels, columns), batch_size=2, shuffle=False, collate_fn=list) as it:
            _, box, is_good = next(iter(it))[1]
        assert torch.equal(box, all_boxes[1])
        assert is_good is False

    def test_the_fingerprint_is_of_all_values(self) -> None:
        pixels = ours.Arrays(np.zeros((2, 8, 8, 3), np.uint8))
        values = ([1, 2], [1, 3], [1.0, 2.0], ["1", "2"], ["1", "3"])
        assert len({ours.Columns(pixels, {"x": it}).fingerprint for it in values}) == len(values)

    @pytest.mark.parametrize("values", [[1, 2], ["a"], [[1], [1, 2], 3], [None] * N, "text", [object()] * N])
    def test_what_is_no_column(self, values: Any) -> None:
        with pytest.raises(DatasetError, match=r"Columns: the (values of the )?column 'x'"):
            ours.Columns(ours.Arrays(np.zeros((N, 8, 8, 3), np.uint8)), {"x": values})

    def test_user_code_has_its_own(self) -> None:
        with pytest.raises(DatasetError, match="your own Dataset return further"):
            ours.Columns(ours.from_torch([(b"", 1)], media="bytes"), {"x": [1]})


def test_several_views_for_a_collate_function(numbered: Path) -> None:
    views = T.Compose([T.MultiView(TRAIN, 2)])
    with loader(ours.ImageFolder(numbered, views), collate_fn=list) as it:
        image, _ = next(iter(it))[0]
    assert [tuple(view.shape) for view in image] == [(3, 32, 32)] * 2


class TestWhatIsRefused:
    def opened(self, folder: Path, images: list[bytes], *values: Any) -> Any:
        files(images, folder)
        lines = [json.dumps({"path": f"{i}.jpg", "x": value}) for i, value in enumerate(values)]
        (folder / "list.jsonl").write_text("\n".join(lines))
        return ours.Manifest(folder / "list.jsonl", columns=["x"])

    def test_two_kinds(self, images: list[bytes], tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="the column 'x' has values of type int and of type str; correct"):
            self.opened(tmp_path, images, 1, "one")

    def test_whole_numbers_among_floats(self, images: list[bytes], tmp_path: Path) -> None:
        column = self.opened(tmp_path, images, None, 1, 2.5, 3).columns["x"]
        assert column.of(torch.arange(4).numpy()).tolist() == [0.0, 1.0, 2.5, 3.0]

    @pytest.mark.parametrize(
        ("value", "why"),
        [({"a": 1}, "type dict"), (1 << 63, "64 bits"), ("x" * 70_000, "65,535 bytes"), (None, "has no 'x'")],
    )
    def test_what_no_column_holds(self, value: Any, why: str, images: list[bytes], tmp_path: Path) -> None:
        good = "y" if isinstance(value, str) else 7
        (bad,) = self.opened(tmp_path, images, good, value).index_summary().bad
        assert bad.index == 1
        assert why in bad.reason

    @pytest.mark.parametrize("open_as", ["manifest", "huggingface"])
    def test_structs(self, open_as: str, images: list[bytes], tmp_path: Path) -> None:
        import pyarrow as pa

        rows = saved(pa.table({"image": images[:2], "x": [None, {"a": 1}]}), tmp_path)
        opens: dict[str, Callable[..., Any]] = {
            "manifest": lambda name: self.opened(tmp_path, images, None, {"a": 1}),
            "huggingface": lambda name: ours.HuggingFace(rows, columns=[name]),
        }
        with pytest.raises(DatasetError, match=r"'x' has values of type dict, .* write anything else as JSON texts"):
            opens[open_as]("x")
        if open_as != "manifest":  # a field of a struct is a column
            column = opens[open_as]("x.a").columns["x.a"]
            assert column.of(np.array([1])).tolist() == [1]
            with pytest.raises(DatasetError, match=r"'x[.]b'|no field 'b'; it has a"):
                opens[open_as]("x.b")

    def test_arrays_of_two_shapes(self, images: list[bytes], tmp_path: Path) -> None:
        with pytest.raises(
            DatasetError, match=r"'x' has arrays of shapes \[2\] and \[1\], and a batch has one shape: pad"
        ):
            self.opened(tmp_path, images, [1, 2], [1])

    def test_a_large_array(self, images: list[bytes], tmp_path: Path) -> None:
        (bad,) = self.opened(tmp_path, images, [1, 2], [1] * 9000).index_summary().bad
        assert bad.reason == "its 'x' has 72,000 bytes; arrays have at most 65,535"

    def test_whole_numbers_among_fractions_in_arrays(self, images: list[bytes], tmp_path: Path) -> None:
        column = self.opened(tmp_path, images, [1, 2], [0.5, 1]).columns["x"]
        assert column.of(torch.arange(2).numpy()).tolist() == [[1.0, 2.0], [0.5, 1.0]]

    @pytest.mark.parametrize("columns", ["weight", ["weight", "weight"], ["label"], ["path"], [""], [3]])
    def test_names(self, columns: Any, manifest: Written) -> None:
        with pytest.raises(DatasetError, match="Manifest: "):
            ours.Manifest(manifest.given, columns=columns)
