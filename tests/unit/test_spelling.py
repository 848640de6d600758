"""What users of webdataset write in place of a path or URL, and datasets that are written otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from format_cases import write_tar
from jpegs import pillow_jpeg

from gpupipe import DataLoader, datasets
from gpupipe.errors import DatasetError
from gpupipe.sources.spelling import plain

IMAGES = [pillow_jpeg(40, 40, i) for i in range(6)]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_tar(IMAGES, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pipe:aws s3 cp s3://b/{000..127}.tar -", "s3://b/{000..127}.tar"),
        ("pipe: aws s3 cp --quiet 's3://b/a.tar' -", "s3://b/a.tar"),
        ("pipe:curl -s -L https://host/a.tar || true", "https://host/a.tar"),
        ("pipe:curl -fsSL https://host/a.tar", "https://host/a.tar"),
        ("pipe:gsutil -q cat gs://b/a.tar", "gs://b/a.tar"),
        ("pipe:gsutil cp gs://b/a.tar -", "gs://b/a.tar"),
        ("pipe:wget -qO- https://host/a.tar", "https://host/a.tar"),
        ("pipe:cat /data/a.tar", "/data/a.tar"),
        ("file:/data/a.tar", "/data/a.tar"),
        ("file:a.tar", "a.tar"),
        ("file:///data/a%20b.tar", "/data/a b.tar"),
        ("file://localhost/data/a.tar", "/data/a.tar"),
        ("s3://b/a.tar", "s3://b/a.tar"),
    ],
)
def test_what_a_text_stands_for(text: str, found: str) -> None:
    assert plain(text, "WebDataset") == found


@pytest.mark.parametrize(
    "command",
    [
        "curl -H 'Authorization: x' https://host/a.tar",
        "aws s3 cp s3://b/a.tar - --endpoint-url http://host",
        "aws s3 cp s3://b/a.tar - | gunzip",
        "touch {made}",
        "cat a.tar; touch {made}",
        "cat $(touch {made})",
        "cat 'a.tar",
        "cat a.tar;gunzip",
        "curl https://host/a.tar|gunzip",
        "cat a.tar b.tar",
        "",
    ],
)
def test_another_command_is_refused_and_not_run(command: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(DatasetError, match="gpupipe runs no commands"):
        datasets.WebDataset("pipe:" + command.replace("{made}", str(made)))
    assert not made.exists()


@pytest.mark.parametrize("form", ["file:{}/{{000..001}}.tar", "file://{}/*.tar", "pipe:cat {}/{{000..001}}.tar"])
def test_they_are_read(form: str, shards: Path) -> None:
    dataset = datasets.WebDataset(form.format(shards))
    assert [dataset.fetch(i)[0] for i in range(len(dataset))] == IMAGES


@pytest.mark.parametrize("kind", ["wids", "texts", "datasets", "base"])
def test_a_list_of_shards(kind: str, shards: Path) -> None:
    listed: list[Any] = [{"url": "000.tar", "nsamples": 3}, {"url": f"file:{shards}/001.tar", "nsamples": 3}]
    index: dict[str, Any] = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": listed}
    if kind == "texts":
        index["shardlist"] = ["000.tar", "001.tar"]
    elif kind == "datasets":
        index = {"datasets": [{"name": "a", "shardlist": listed}]}
    elif kind == "base":
        index |= {"base": str(shards), "shardlist": [{"url": "000.tar"}, {"url": "001.tar"}]}
    (shards / "index.json").write_text(json.dumps(index))
    dataset = datasets.WebDataset(shards / "index.json")
    assert [dataset.fetch(i)[0] for i in range(len(dataset))] == IMAGES


@pytest.mark.parametrize("content", ["[]", "{}", "no json", '{"shardlist": 3}'])
def test_a_list_that_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(DatasetError, match="give the tar files themselves"):
        datasets.WebDataset(tmp_path / "index.json")


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
