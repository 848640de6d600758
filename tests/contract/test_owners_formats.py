"""Files that the packages and programs write which own a format, in the variants that they offer."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from gpupipe.formats.registry import format_of
from gpupipe.testing.photos import photograph

SAMPLES, SPOILED = 24, {5: "truncated", 9: "undecodable"}
Images = Sequence[bytes]
Write = Callable[[Images, Path], Any]
"""Writes images, with their positions as labels, to an empty folder. Returns what the dataset takes."""


def program(*command: str, folder: Path) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def tar(flavor: str, images: Images, folder: Path) -> Path:
    (folder / "pairs").mkdir()
    for i, image in enumerate(images):
        (folder / f"pairs/{i:06d}.jpg").write_bytes(image)
        (folder / f"pairs/{i:06d}.cls").write_text(str(i))
    program("tar", f"--format={flavor}", "--sort=name", "-cf", "a.tar", "-C", "pairs", ".", folder=folder)
    return folder / "a.tar"


def archive(options: str, images: Images, folder: Path) -> Path:
    for i, image in enumerate(images):
        (folder / f"train/class{i:03d}").mkdir(parents=True)
        (folder / f"train/class{i:03d}/photo.jpg").write_bytes(image)
    program("zip", options, "a.zip", "train", folder=folder)
    return folder / "a.zip"


def shards(images: Images, folder: Path) -> str:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(f"{folder}/%03d.tar", maxcount=10, verbose=0) as out:
        for i, image in enumerate(images):
            out.write({"__key__": f"{i:06d}", "jpg": image, "cls": i})
    return str(folder / "{000..002}.tar")


def tfrecord(images: Images, folder: Path) -> Path:
    out = pytest.importorskip("tfrecord.writer").TFRecordWriter(str(folder / "a.tfrecord"))
    for i, image in enumerate(images):
        out.write({"image/encoded": (image, "byte"), "image/class/label": (i, "int")})
    out.close()
    return folder / "a.tfrecord"


def save_to_disk(images: Images, folder: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": [{"bytes": image, "path": None} for image in images], "label": list(range(len(images)))}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(folder / "hf", num_shards=2)
    return folder / "hf"


VARIANTS: dict[str, Write] = {
    **{f"tar-{flavor}": partial(tar, flavor) for flavor in ("gnu", "ustar", "pax")},
    "zip-stored": partial(archive, "-q0r"),
    "zip-deflated": partial(archive, "-qr"),
    "webdataset": shards,
    "tfrecord": tfrecord,
    "datasets-save_to_disk": save_to_disk,
}


@pytest.fixture(scope="module")
def images() -> list[bytes]:
    found = []
    for i in range(SAMPLES):
        out = io.BytesIO()
        Image.fromarray(photograph(64, 96, seed=i)).save(out, "JPEG")
        found.append(out.getvalue())
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_read_as_it_was_written(variant: str, images: list[bytes], tmp_path: Path) -> None:
    spoiled = list(images)
    spoiled[5], spoiled[9] = images[5][: len(images[5]) // 2], b"this is no image, but quite long"
    opened = []
    for kind, some in (("good", images), ("spoiled", spoiled)):
        (tmp_path / kind).mkdir()
        given = str(VARIANTS[variant](some, tmp_path / kind))
        found = format_of(given)
        assert found is not None
        opened.append(found.from_path(given))
    fetched = [opened[0].fetch(i) for i in range(len(opened[0]))]
    assert [media for media, _ in fetched] == images
    assert [label for _, label in fetched] == list(range(SAMPLES))
    assert {bad.index: bad.kind for bad in opened[1].index_summary().bad} == SPOILED
