"""``datasets.Dataset`` with images, as it is: batches are those of torch's loader, whatever its transform arranges; and
what only running it can say stays with torch's loader."""

from __future__ import annotations

import functools
import io
import pickle
import random
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exif_blocks import odd_exif
from PIL import Image
from support import TRAIN
from torch.utils.data import DataLoader as TorchLoader, Subset
from torchvision import transforms as tvt

from gpupipe import DataLoader, datasets as ours
from gpupipe.errors import ConfigError, DatasetError, TranslationError
from gpupipe.loader.native import NativeSession
from gpupipe.testing.photos import photograph

hf = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")

N = 11
EVAL = tvt.Compose([tvt.Resize(32), tvt.CenterCrop(32), tvt.ToTensor()])
SMALL = tvt.Compose([tvt.Resize((20, 24)), tvt.ToTensor()])
Rows = dict[str, list[Any]]


def encoded(i: int, mode: str = "RGB", size: tuple[int, int] | None = None) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(photograph(*(size or (50 + i, 70 - i)), i)).convert(mode)
    image.save(buffer, "png" if mode in ("P", "RGBA") else "jpeg")
    return buffer.getvalue()


def saved(folder: Path, images: list[bytes], features: Mapping[str, Any] | None = None, **columns: list[Any]) -> Any:
    kinds = {"label": hf.ClassLabel(names=["cat", "dog", "emu"]), "caption": hf.Value("string"), **(features or {})}
    rows = {
        "image": [{"bytes": image, "path": None} for image in images],
        "label": [i % 3 for i in range(len(images))],
        "caption": [f"photo {i}" for i in range(len(images))],
        **columns,
    }
    kinds = {"image": kinds.pop("image", hf.Image()), **kinds}
    hf.Dataset.from_dict(rows, features=hf.Features(kinds)).save_to_disk(folder / "hf")
    return hf.load_from_disk(str(folder / "hf"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Any:
    images = [encoded(i) for i in range(N)]
    turned = io.BytesIO()
    Image.open(io.BytesIO(images[3])).save(turned, "jpeg", exif=odd_exif(6))
    images[3] = turned.getvalue()  # which `datasets` turns
    images[5] = encoded(5, "L")
    weights = {"weight": [i / 3 for i in range(N)], "good": [i % 2 == 0 for i in range(N)]}
    kinds = {"weight": hf.Value("float64"), "good": hf.Value("bool")}
    return saved(tmp_path_factory.mktemp("photos"), images, kinds, **weights)


def in_place(rows: Rows) -> Rows:
    """As in the examples of transformers: the images stay beside what was made of them."""
    rows["pixels"] = [EVAL(image.convert("RGB")) for image in rows["image"]]
    return rows


def renamed(rows: Rows) -> Rows:
    return {"x": [EVAL(i.convert("RGB")) for i in rows["image"]], "y": rows["label"], "text": rows["caption"]}


def everything(rows: Rows) -> Rows:
    rows["image"] = [EVAL(image if image.mode == "RGB" else image.convert("RGB")) for image in rows["image"]]
    return rows


def two_views(rows: Rows) -> Rows:
    views = [[EVAL(image.convert("RGB")), SMALL(image.convert("RGB"))] for image in rows["image"]]
    return {"views": views, "both": list(zip(rows["label"], rows["weight"], strict=True))}


class Preset:
    def __init__(self) -> None:
        self.transform = EVAL

    def apply(self, rows: Rows) -> Rows:
        return {"x": [self.transform(i.convert("RGB")) for i in rows["image"]], "y": rows["label"]}


def with_argument(rows: Rows, transform: Any) -> Rows:
    return {"x": [transform(i.convert("RGB")) for i in rows["image"]]}


def made_inside() -> Callable[[Rows], Rows]:
    inside = SMALL

    def apply(rows: Rows, *, also: Any = EVAL) -> Rows:
        return {
            "x": [inside(i.convert("RGB")) for i in rows["image"]],
            "y": [also(i.convert("RGB")) for i in rows["image"]],
        }

    return apply


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "pixels": torch.stack([sample["pixels"] for sample in samples]),
        "labels": torch.tensor([sample["label"] for sample in samples]),
        "weights": torch.tensor([sample["weight"] for sample in samples]),
        "captions": [sample["caption"].upper() for sample in samples],
    }


NATIVE: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "in place": (lambda ds: ds.with_transform(in_place), collate),
    "renamed": (lambda ds: ds.with_transform(renamed), None),
    "everything": (lambda ds: ds.with_transform(everything), None),
    "two views": (lambda ds: ds.with_transform(two_views), None),
    "a method": (lambda ds: ds.with_transform(Preset().apply), None),
    "an argument": (lambda ds: ds.with_transform(functools.partial(with_argument, transform=SMALL)), None),
    "a closure": (lambda ds: ds.with_transform(made_inside()), None),
    "some columns": (lambda ds: ds.with_transform(everything, columns=["image", "weight"]), None),
    "chosen": (lambda ds: ds.select([7, 3, 3, 5, 1]).shuffle(seed=3).with_transform(renamed), None),
    "a part": (lambda ds: Subset(ds.with_transform(renamed), [9, 2, 3, 4]), None),
}


def same(one: Any, two: Any, tolerance: float) -> bool:
    """Structure, types, shapes, and values."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key], tolerance) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(same(a, b, tolerance) for a, b in zip(one, two, strict=True))
    if not isinstance(one, torch.Tensor):
        return bool(one == two)
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    is_image = one.ndim == 4
    return bool((one.double() - two.double()).abs().max() <= (tolerance if is_image else 0))


@pytest.mark.parametrize(("engine", "levels"), [("torch", 0.0), ("dali", 1.0)])
@pytest.mark.parametrize("name", NATIVE)
def test_batches_are_torchs(name: str, engine: str, levels: float, photos: Any) -> None:
    make, function = NATIVE[name]
    given = make(photos)
    with DataLoader(given, batch_size=4, engine=engine, device="cpu", collate_fn=function) as it:
        assert isinstance(it._session, NativeSession)
        got = list(it)
    want = list(TorchLoader(given, batch_size=4, collate_fn=function))
    assert same(got, want, levels / 255 * 1.01)


@pytest.mark.parametrize("function", [None, list])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_format_torch(mode: str, function: Any, tmp_path: Path) -> None:
    """Its images are u8[C, H, W] as they are, its numbers tensors, and its floats f32."""
    images = [encoded(i, mode, (40, 30)) for i in range(N)]
    columns = {"weight": [i / 3 for i in range(N)], "good": [i % 2 == 0 for i in range(N)]}
    kinds = {"weight": hf.Value("float64"), "good": hf.Value("bool")}
    ds = saved(tmp_path, images, kinds, **columns).with_format("torch")
    with DataLoader(ds, batch_size=4, engine="torch", device="cpu", collate_fn=function) as it:
        assert same(list(it), list(TorchLoader(ds, batch_size=4, collate_fn=function)), 0)
    part = ds.with_format("torch", columns=["weight", "image"])
    with DataLoader(part, batch_size=4, engine="torch", device="cpu") as it:
        assert same(list(it), list(TorchLoader(part, batch_size=4)), 0)


def test_gray_images_that_are_not_converted(tmp_path: Path) -> None:
    def apply(rows: Rows) -> Rows:
        return {"x": [EVAL(image) for image in rows["image"]]}

    ds = saved(tmp_path, [encoded(i, "L") for i in range(N)]).with_transform(apply)
    with DataLoader(ds, batch_size=4, engine="torch", device="cpu") as it:
        assert same(list(it), list(TorchLoader(ds, batch_size=4)), 0)


def test_a_feature_with_a_mode(tmp_path: Path) -> None:
    def apply(rows: Rows) -> Rows:
        return {"x": [EVAL(image) for image in rows["image"]]}

    modes = ("RGB", "L", "P", "RGBA")
    ds = saved(tmp_path, [encoded(i, modes[i % 4]) for i in range(N)], {"image": hf.Image(mode="RGB")})
    ds = ds.with_transform(apply)
    with DataLoader(ds, batch_size=4, engine="torch", device="cpu") as it:
        assert same(list(it), list(TorchLoader(ds, batch_size=4)), 0)


# ---- what torch's own loader does


def looks_at_labels(rows: Rows) -> Rows:
    return {"x": [EVAL(i.convert("RGB")) for i in rows["image"]], "y": [label + 1 for label in rows["label"]]}


def asks_for_a_type(rows: Rows) -> Rows:
    labels = [y if isinstance(y, int) else -1 for y in rows["label"]]
    return {"x": [EVAL(i.convert("RGB")) for i in rows["image"]], "y": labels}


def looks_at_images(rows: Rows) -> Rows:
    return {"x": [EVAL(i.convert("RGB").rotate(90)) for i in rows["image"]]}


def draws(rows: Rows) -> Rows:
    return {"x": [EVAL(i.convert("RGB")) for i in rows["image"]], "y": [random.random() for _ in rows["image"]]}


def gray_and_back(rows: Rows) -> Rows:
    return {"x": [EVAL(i.convert("L").convert("RGB")) for i in rows["image"]]}


def adds(rows: Rows) -> Rows:
    return {"x": [EVAL(i.convert("RGB")) for i in rows["image"]], "y": [1] * len(rows["image"])}


def mixes(rows: Rows) -> Rows:
    return {"x": [EVAL(i.convert("RGB")) for i in rows["image"]], "y": rows["label"][::-1]}


COUNT = 0


def counts(rows: Rows) -> Rows:
    global COUNT
    COUNT += 1
    return {"x": [EVAL(i.convert("RGB")) for i in rows["image"]]}


REFUSED = {
    mixes: "mixes samples with each other",
    counts: "holds no transforms",
}
BY_ITS_CODE = (looks_at_labels, asks_for_a_type, looks_at_images, draws, gray_and_back, adds)


@pytest.mark.parametrize("function", REFUSED)
def test_what_mixes_or_counts_is_torchs(function: Any, photos: Any) -> None:
    with pytest.raises(TranslationError, match=REFUSED[function]) as e:
        DataLoader(photos.with_transform(function), engine="dali")
    assert "gpupipe.datasets.HuggingFace(dataset, transform, return_dict=True)" in str(e.value)


@pytest.mark.parametrize("function", BY_ITS_CODE)
def test_what_does_more_is_done_by_its_own_code(function: Any, photos: Any) -> None:
    ds = photos.with_transform(function)
    with DataLoader(ds, batch_size=4, engine="torch", device="cpu") as it:
        ours, theirs = list(it), list(TorchLoader(ds, batch_size=4))
    if function is draws:
        for batch in (*ours, *theirs):
            assert batch["y"].dtype == torch.float64 and len(set(batch.pop("y").tolist())) == len(batch["x"])
    assert same(ours, theirs, 0)


def test_a_feature_that_opens_in_gray(photos: Any) -> None:
    gray = photos.cast_column("image", hf.Image(mode="L"))
    with DataLoader(gray.with_transform(renamed), batch_size=4, engine="torch", device="cpu") as it:
        assert same(list(it), list(TorchLoader(gray.with_transform(renamed), batch_size=4)), 0)
    with pytest.raises(
        DatasetError, match=r"is Image\(mode='L'.*; use cast_column\('image', datasets.Image\(\)\), and"
    ):
        ours.HuggingFace(gray)


@pytest.mark.parametrize("decode", [True, False])
def test_the_class_by_name_turns_images_as_datasets_does(decode: bool, photos: Any) -> None:
    ds = photos.cast_column("image", hf.Image(decode=decode))
    found = ours.HuggingFace(ds)
    for i in range(N):
        want = ds[i]["image"]
        want = want if decode else Image.open(io.BytesIO(want["bytes"]))
        assert np.array_equal(np.asarray(found.raw(i)[0]), np.asarray(want.convert("RGB")))
    assert ours.HuggingFace(ds, exif=not decode).fingerprint != found.fingerprint


def test_no_transform(photos: Any) -> None:
    """torch makes no batch of PIL images either; the same dictionaries come from the class by name."""
    with pytest.raises(TranslationError, match="samples hold PIL images"):
        DataLoader(photos, engine="dali")
    named = ours.HuggingFace(photos, TRAIN, columns=["caption", "weight"], return_dict=True)
    with DataLoader(named, batch_size=4, engine="torch", device="cpu") as it:
        batch = next(iter(it))
    assert list(batch) == ["image", "label", "caption", "weight"]
    assert batch["caption"] == [f"photo {i}" for i in range(4)]


def test_originals_without_a_collate_function(photos: Any) -> None:
    with pytest.raises(ConfigError, match="images before their transforms"):
        DataLoader(photos.with_transform(in_place), engine="dali")


def test_a_collate_function_that_looks_at_originals(photos: Any) -> None:
    """They are images as `datasets` opens them, also after a copy, and have their sizes before they are decoded."""
    ds = photos.with_transform(in_place)

    def look(samples: list[Any]) -> Any:
        images = [it["image"] for it in samples]
        sizes = [image.size for image in images]
        return sizes, [np.asarray(image) for image in images], [np.asarray(pickle.loads(pickle.dumps(images[0])))]

    ours, theirs = (
        next(iter(it))
        for it in (
            DataLoader(ds, engine="torch", device="cpu", collate_fn=look, batch_size=4),
            torch.utils.data.DataLoader(ds, collate_fn=look, batch_size=4),
        )
    )
    assert ours[0] == theirs[0]
    for one, other in zip([*ours[1], *ours[2]], [*theirs[1], *theirs[2]], strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("kind", ["nothing", "list"])
def test_columns_that_are_not_kept(kind: str, tmp_path: Path) -> None:
    feature = hf.Value("string") if kind == "nothing" else hf.Sequence(hf.Value("int64"))
    values = [None, *map(str, range(1, N))] if kind == "nothing" else [[i] for i in range(N)]
    ds = saved(tmp_path, [encoded(i) for i in range(N)], {"more": feature}, more=values)
    for transform in (everything, renamed):
        given = ds.with_transform(transform)
        loaders = (
            DataLoader(given, 4, engine="torch", device="cpu", collate_fn=without_images),
            TorchLoader(given, 4, collate_fn=without_images),
        )
        ours, theirs = map(list, loaders)
        assert ours == theirs


def without_images(samples: list[Any]) -> list[Any]:
    return [{name: value for name, value in sample.items() if name not in ("image", "x")} for sample in samples]


def test_a_table_in_memory() -> None:
    rows = {"image": [{"bytes": encoded(0), "path": None}] * 5}
    ds = hf.Dataset.from_dict(rows, features=hf.Features({"image": hf.Image()})).with_transform(everything)
    with DataLoader(ds, batch_size=4, engine="torch", device="cpu") as it:
        assert same(list(it), list(TorchLoader(ds, batch_size=4)), 0)


# ---- what changes


def test_a_column_in_memory_is_another_index(photos: Any) -> None:
    """The files are the same, and so are the rows."""
    found = []
    for start in (0, 100):
        ds = photos.add_column("number", list(range(start, start + N))).with_transform(everything)
        with DataLoader(ds, batch_size=4, engine="torch", device="cpu") as it:
            found.append(next(iter(it))["number"].tolist())
    assert found == [[0, 1, 2, 3], [100, 101, 102, 103]]


def test_another_transform_between_epochs(photos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = photos.with_transform(renamed)
    with DataLoader(ds, batch_size=4, engine="torch", device="cpu") as it:
        assert next(iter(it))["x"].shape == (4, 3, 32, 32)
        monkeypatch.setitem(globals(), "EVAL", SMALL)
        assert next(iter(it))["x"].shape == (4, 3, 20, 24)
        ds.set_transform(everything)
        assert next(iter(it))["image"].shape == (4, 3, 20, 24)


def test_resuming_and_skipping(photos: Any, tmp_path: Path) -> None:
    ds = photos.with_transform(renamed)
    options = {"batch_size": 4, "shuffle": True, "seed": 5, "engine": "torch", "device": "cpu"}
    with DataLoader(ds, **options) as first:
        batches = iter(first)
        next(batches)
        state, left = first.state_dict(), list(batches)
    with DataLoader(ds, **options) as second:
        second.load_state_dict(state)
        assert same(list(second), left, 0)
    images = [encoded(i) for i in range(N)]
    images[4] = images[4][:100]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with DataLoader(saved(tmp_path, images).with_transform(renamed), **options, on_error="skip") as it:
            found = {t: int(y) for batch in it for t, y in zip(batch["text"], batch["y"], strict=True)}
    assert found == {f"photo {i}": i % 3 for i in range(N) if i != 4}
    assert np.all([bad.index == 4 for bad in it.report().samples])
