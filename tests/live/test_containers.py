"""Libraries that read containers stay in charge of them; the images that they open wait, and batches are torch's."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import add_member
from torch.utils.data import Dataset
from torchvision import transforms as T

import gpupipe
from gpupipe.live.looks import taken

from .beside import jpeg, same_batches

pytestmark = [pytest.mark.usefixtures("exact"), pytest.mark.filterwarnings("ignore")]
COUNT = 8
TRAIN = T.Compose([T.RandomResizedCrop(12), T.RandomHorizontalFlip(), T.ToTensor()])
FILES = [jpeg(k, 24, 20 + k) for k in range(COUNT)]


def transformed(rows: dict[str, Any]) -> dict[str, Any]:
    return {"image": [TRAIN(image.convert("RGB")) for image in rows["image"]], "label": rows["label"]}


def transformed_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"image": TRAIN(row["image"].convert("RGB")), "label": row["label"]}


def checked(make: Callable[[], Any], *, workers: tuple[int, ...] = (0, 2), **options: Any) -> None:
    """Assert that batches are torch's, and that all images waited."""
    loaders: list[gpupipe.DataLoader] = []
    taken()  # by other tests

    for count in workers:

        def script(Loader: Any) -> Any:
            loaders.append(Loader(make(), batch_size=4, num_workers=count, **options))  # noqa: B023
            return loaders[-1]

        theirs = same_batches(script, epochs=1)
        assert len(theirs[0]) > 2
        looks = loaders[-1]._session.looks
        assert looks.opened == looks.waited == COUNT


def table() -> Any:
    datasets = pytest.importorskip("datasets")
    images = [{"bytes": content, "path": None} for content in FILES]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    return datasets.Dataset.from_dict({"image": images, "label": list(range(COUNT))}, features=features)


def test_hugging_face_with_transform() -> None:
    checked(lambda: table().with_transform(transformed), shuffle=True)


def test_hugging_face_set_transform() -> None:
    data = table()
    data.set_transform(transformed)
    checked(lambda: data, shuffle=True)


def test_hugging_face_streaming() -> None:
    checked(lambda: table().to_iterable_dataset(num_shards=2).map(transformed_row))


def shards(root: Path) -> Path:
    path = root / "shard-0.tar"
    with tarfile.open(path, "w") as tar:
        for k, content in enumerate(FILES):
            for name, data in ((f"{k:03}.jpg", content), (f"{k:03}.cls", str(k).encode())):
                add_member(tar, name, data)
    return path


def own_decoder(key: str, data: bytes) -> Any:
    return Image.open(io.BytesIO(data)).convert("RGB") if key.endswith("jpg") else None


@pytest.mark.parametrize("how", ["pil", own_decoder], ids=["pil", "own"])
def test_webdataset(tmp_path: Path, how: Any) -> None:
    wds = pytest.importorskip("webdataset")
    path = shards(tmp_path)

    def make() -> Any:
        data = wds.WebDataset(str(path), shardshuffle=False, empty_check=False).decode(how)
        return data.to_tuple("jpg", "cls").map_tuple(TRAIN)

    checked(make, workers=(0, 1))


def test_mosaicml_streaming(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming")
    columns = {"image": "jpeg", "label": "int"}
    with streaming.MDSWriter(out=str(tmp_path / "mds"), columns=columns) as writer:
        for k, content in enumerate(FILES):
            writer.write({"image": Image.open(io.BytesIO(content)).copy(), "label": k})

    class Mosaic(streaming.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, i: Any) -> Any:
            row = super().__getitem__(i)
            return TRAIN(row["image"].convert("RGB")), row["label"]

    streaming.base.util.clean_stale_shared_memory()
    checked(lambda: Mosaic(local=str(tmp_path / "mds"), batch_size=4, shuffle=False), workers=(0,))


def test_litdata(tmp_path: Path) -> None:
    litdata = pytest.importorskip("litdata")
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(tmp_path), chunk_size=4)
    for k, content in enumerate(FILES):
        writer[k] = {"image": content, "label": k}
    writer.done()
    writer.merge()

    class Lit(litdata.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, i: Any) -> Any:
            row = super().__getitem__(i)
            return TRAIN(Image.open(io.BytesIO(row["image"])).convert("RGB")), row["label"]

    checked(lambda: Lit(str(tmp_path)), workers=(0,))


class Members(Dataset[Any]):
    """Reads encoded images by number, as scripts do with a container."""

    def __init__(self, read: Callable[[int], Any]):
        self.read = read

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> Any:
        return TRAIN(Image.open(self.read(i)).convert("RGB")), i


def test_zipfile(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for k, content in enumerate(FILES):
            archive.writestr(f"{k}.jpg", content)
    checked(lambda: Members(lambda i: zipfile.ZipFile(tmp_path / "a.zip").open(f"{i}.jpg")), shuffle=True)  # noqa: SIM115


def test_tarfile(tmp_path: Path) -> None:
    path = shards(tmp_path)
    checked(lambda: Members(lambda i: tarfile.open(path).extractfile(f"{i:03}.jpg")), shuffle=True)  # noqa: SIM115


def test_h5py(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        rows = file.create_dataset("images", (COUNT,), h5py.vlen_dtype(np.uint8))
        for k, content in enumerate(FILES):
            rows[k] = np.frombuffer(content, np.uint8)
    checked(lambda: Members(lambda i: io.BytesIO(h5py.File(tmp_path / "a.h5")["images"][i].tobytes())), shuffle=True)


def test_lmdb(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "db")) as db, db.begin(write=True) as transaction:
        for k, content in enumerate(FILES):
            transaction.put(str(k).encode(), content)

    def read(i: int) -> Any:
        with lmdb.open(str(tmp_path / "db"), readonly=True, lock=False) as db, db.begin() as transaction:
            return io.BytesIO(transaction.get(str(i).encode()))

    checked(lambda: Members(read), shuffle=True)


def test_timm(tmp_path: Path) -> None:
    """timm's own transform gives bytes as tensors, and its collate function puts them together."""
    data = pytest.importorskip("timm.data")
    from timm.data.loader import fast_collate

    for k, content in enumerate(FILES):
        folder = tmp_path / str(k % 2)
        folder.mkdir(exist_ok=True)
        (folder / f"{k}.jpg").write_bytes(content)
    transform = data.create_transform(12, is_training=True, use_prefetcher=False)

    class Own(data.ImageDataset):  # type: ignore[misc]
        """A class of the script's, which nothing knows."""

    checked(lambda: Own(str(tmp_path), transform=transform), shuffle=True)
    as_bytes = T.Compose([T.RandomResizedCrop(12), T.PILToTensor()])
    checked(lambda: Own(str(tmp_path), transform=as_bytes), shuffle=True, collate_fn=fast_collate)
    assert torch.uint8 is fast_collate([(as_bytes(Image.open(io.BytesIO(FILES[0]))), 1)])[0].dtype
