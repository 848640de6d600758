"""What users of webdataset write in place of a path or URL, and datasets that are written otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from format_cases import write_tar
from jpegs import pillow_jpeg

from gpupipe import DataLoader, datasets
from gpupipe.errors import DatasetError

IMAGES = [pillow_jpeg(40, 40, i) for i in range(6)]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_tar(IMAGES, tmp_path)
    return tmp_path


@pytest.mark.parametrize("form", ["pipe:cat {}/000.tar", "file:{}/000.tar", "{}/000.tar::pipe:touch {}/made"])
def test_a_command_is_refused_and_not_run(form: str, shards: Path) -> None:
    with pytest.raises(DatasetError, match="gpupipe runs no commands"):
        datasets.WebDataset(form.replace("{}", str(shards)))
    assert not (shards / "made").exists()


def test_extensions_in_a_list(shards: Path) -> None:
    assert len(datasets.WebDataset(shards, image=["png", "jpg"])) == 6
    with pytest.raises(DatasetError, match="image must be a name"):
        datasets.WebDataset(shards, image=[3])  # type: ignore[list-item]
    with pytest.raises(DatasetError, match="label must be one extension"):
        datasets.WebDataset(shards, label=["cls"])  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["auto", "torch", "dali"])
@pytest.mark.parametrize(("name", "kind"), [("x.tar", "WebDataset"), ("train.zip", "Zip"), ("photos", "ImageFolder")])
def test_a_path_is_no_dataset(name: str, kind: str, engine: Any) -> None:
    for path in (name, Path(name)):
        with pytest.raises(DatasetError, match=rf"write gpupipe.datasets.{kind}\("):
            DataLoader(path, batch_size=2, engine=engine)


def test_lists_of_images_of_hugging_face(tmp_path: Path) -> None:
    hf = pytest.importorskip("datasets")
    rows = {"pages": [[{"bytes": data, "path": None}] * 2 for data in IMAGES]}
    hf.Dataset.from_dict(rows).cast_column("pages", hf.List(hf.Image())).save_to_disk(str(tmp_path / "a"))
    dataset = hf.load_from_disk(str(tmp_path / "a"))
    with pytest.raises(DatasetError, match="make a row of each") as caught:
        datasets.HuggingFace(dataset)
    advice = str(caught.value).partition("each: ")[2].partition(", with further")[0]
    assert len(datasets.HuggingFace(eval(advice))) == 12
    with pytest.raises(DatasetError, match=r"that to_iterable_dataset\(\) was called on"):
        datasets.HuggingFace(dataset.to_iterable_dataset())
