"""What a script names must be there: labels, images and columns of datasets; and an epoch must have a batch."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from format_cases import CASES
from support import EVAL, N

from gpupipe import DataLoader, SampleError, datasets as ours
from gpupipe.datasets import ImageFolder, WebDataset
from gpupipe.errors import DatasetError

NAMED = {
    "tar": (ours.WebDataset, "'cls'"),
    "tfrecord": (ours.TFRecord, "'image/class/label'"),
}
"""(class, a name that there is)"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, images: list[bytes]) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("formats")
    found = {}
    for name in NAMED:
        (folder / name).mkdir()
        found[name] = CASES[name].write(images, folder / name)
    return found


@pytest.mark.parametrize("name", NAMED)
def test_a_label_that_no_sample_has(name: str, written: dict[str, Any]) -> None:
    make, has = NAMED[name]
    with pytest.raises(DatasetError, match=f"label='nope.*{has}"):
        make(written[name], label="nope")
    if name != "tfrecord":  # it takes names only
        assert make(written[name], label=None).labels is None


def test_a_default_label_may_lack(numbered: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(next(numbered.rglob("*.jpg")), "0.jpg")
    assert WebDataset(tmp_path / "a.tar").labels is None
    with pytest.raises(DatasetError, match="label='cls'; the first sample has 'jpg'"):
        WebDataset(tmp_path / "a.tar", label="cls")


@pytest.mark.parametrize("name", NAMED)
def test_an_image_that_no_sample_has(name: str, written: dict[str, Any]) -> None:
    make, has = NAMED[name]
    with pytest.raises(DatasetError, match=f"(?s)nope.*{has.strip(chr(39))}|{has.strip(chr(39))}.*nope|no .*nope"):
        make(written[name], image="nope")


@pytest.mark.parametrize("name", NAMED)
def test_a_column_that_no_sample_has(name: str, written: dict[str, Any]) -> None:
    make, has = NAMED[name]
    with pytest.raises(DatasetError, match=f"nope.*{has.strip(chr(39))}"):
        make(written[name], columns=["nope"])


def test_columns_of_a_list(images: list[bytes], tmp_path: Path) -> None:
    given = CASES["manifest"].write(images, tmp_path)
    with pytest.raises(DatasetError, match="no column 'nope'; it has 'path', 'offset', 'length', 'label'; correct"):
        ours.Manifest(given, columns=["nope"])


def test_columns_of_hugging_face(images: list[bytes], tmp_path: Path) -> None:
    case = CASES["huggingface"]
    given = case.write(images, tmp_path)
    for argument, value in (("columns", ["nope"]), ("label", "nope"), ("image", "nope")):
        with pytest.raises(DatasetError, match=f"no column {argument}='nope'; there are image, label"):
            case.open(given, **{argument: value})


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_an_epoch_without_a_good_sample(engine: str, tmp_path: Path, numbered: Path) -> None:
    root = Path(shutil.copytree(numbered, tmp_path / "photos"))
    dataset = ImageFolder(root, EVAL)
    for path in root.rglob("*.jpg"):
        path.write_bytes(path.read_bytes()[:300])
    with DataLoader(dataset, 5, device="cpu", engine=engine, on_error="skip") as loader:
        for _ in range(2):
            with pytest.raises(SampleError, match="no batch, because all of its samples are bad"):
                list(loader)
        assert len(loader.report().samples) == N


def test_the_rest_of_an_epoch_may_be_bad(tmp_path: Path, numbered: Path) -> None:
    root = Path(shutil.copytree(numbered, tmp_path / "photos"))
    dataset = ImageFolder(root, EVAL)
    options: dict[str, Any] = {"device": "cpu", "engine": "torch", "on_error": "skip", "shuffle": False}
    for path in sorted(root.rglob("*.jpg"))[10:]:
        path.write_bytes(path.read_bytes()[:300])
    with DataLoader(dataset, 5, **options) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
    with DataLoader(dataset, 5, **options) as loader:
        loader.load_state_dict(state)
        assert list(loader) == []
