"""Pages about a batch: ``loader.show()``, ``gpupipe show`` and ``gpupipe replay``."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from gpupipe import DataLoader, Shard, datasets, targets, transforms as T
from gpupipe.cli import app
from gpupipe.errors import ConfigError
from gpupipe.pipelines import imagenet

N = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of one color each, which tells which one it is."""
    root = tmp_path_factory.mktemp("show")
    for i in range(N):
        path = root / f"class<{i % 3}>" / f"{i:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (40, 30), (20 * i, 255 - 20 * i, 7)).save(path)
    return root


def pictures(page: str) -> list[Any]:
    found = re.findall(r'data:image/png;base64,([^"]+)', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one)))) for one in found]


def shown(page: str) -> list[int]:
    return [int(index) for index in re.findall(r"<td>index</td><td>(\d+)</td>", page)]


STEPS = T.Compose(
    [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,) * 3, (0.2,) * 3)]
)


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_a_page_shows_the_step_and_moves_nothing(folder: Path, tmp_path: Path, engine: Any) -> None:
    dataset = datasets.ImageFolder(folder, STEPS)
    with DataLoader(dataset, 4, shuffle=True, seed=3, engine=engine, device="cpu") as loader:
        state = loader.state_dict()
        page = loader.show(tmp_path / "a" / "b.html", epoch=2, step=1).read_text()
        plan = loader.plan_at(2, 1)
        assert loader.state_dict() == state
    assert shown(page) == plan.indices.tolist()
    found = pictures(page)
    for k, index in enumerate(plan.indices.tolist()):
        file = Path(dataset.describe(index)).name
        number = int(file.removesuffix(".png"))
        for picture in found[2 * k : 2 * k + 2]:  # as decoded, and without the normalization
            assert (
                np.abs(
                    picture[picture.shape[0] // 2, picture.shape[1] // 2].astype(int)
                    - (20 * number, 255 - 20 * number, 7)
                ).max()
                <= 2
            ), (k, file)
        assert file in page and f"{number % 3}, class&lt;{number % 3}&gt;" in page
    assert f"Crop top {plan.ops[0].top[0]}, left" in page  # type: ignore[index, union-attr]
    assert "class<" not in page


def test_masks_boxes_views_and_columns_are_shown(tmp_path: Path) -> None:
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    photos = datasets.Arrays(pixels, [0, 1], transform=T.Compose([T.RandomHorizontalFlip(1.0), T.ToTensor()]))
    mask = np.zeros((8, 8), np.uint8)
    mask[:, :3] = 5
    columns = {"mask": targets.Masks([mask, mask]), "weight": [0.25, 0.5], "text": ["<b>", "&"]}
    with DataLoader(datasets.Columns(photos, columns), 2, engine="torch", device="cpu") as loader:
        page = loader.show(tmp_path / "page.html").read_text()
    before, after = pictures(page)[:2]
    assert before.max(initial=0, where=before != 238) < 240 and (after[112, 30:110] == 0).all()
    assert (after[112, 150:210].max(axis=-1) > 100).all()  # the flipped mask
    assert "<td>weight</td><td>0.25</td>" in page and "&lt;b&gt;" in page
    views = datasets.Arrays(pixels, [0, 1], transform=T.Compose([T.MultiView([T.CenterCrop(6), T.ToTensor()], 2)]))
    with DataLoader(views, 2, engine="torch", device="cpu") as loader:
        assert len(pictures(loader.show(tmp_path / "views.html").read_text())) == 6
        with Image.open(loader.show(tmp_path / "views.png")) as sheet:
            assert sheet.width > 900


def test_another_kind_of_file_is_refused(folder: Path, tmp_path: Path) -> None:
    with (
        DataLoader(datasets.ImageFolder(folder, STEPS), engine="torch", device="cpu") as loader,
        pytest.raises(ConfigError, match=r"\.html page or a \.png sheet"),
    ):
        loader.show(tmp_path / "a.pdf", step=10_000)  # which does not exist: the path is checked first


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_show(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "batch.html"
    done = command("show", "imagenet.train:size=16", folder, "--batch-size", 4, "--step", 2, "--out", out)
    assert done.exit_code == 0 and "epoch 0, step 2" in done.output
    assert len(shown(out.read_text())) == 4


def test_a_folder_that_cannot_be_created_is_an_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = command("show", "imagenet.train:size=16", folder, "--out", tmp_path / "file" / "batch.html")
    assert done.exit_code == 2 and "its folder cannot be created" in " ".join(done.output.split()), done.output


@pytest.mark.parametrize("file", ["state.json", "checkpoint.pt"])
def test_replay_shows_all_ranks_of_the_last_step(folder: Path, tmp_path: Path, file: str) -> None:
    dataset = datasets.ImageFolder(folder, imagenet.train(16))
    seen: list[list[int]] = []
    for rank in range(2):
        with DataLoader(dataset, 2, shuffle=True, seed=9, shard=Shard(rank, 2), engine="torch", device="cpu") as loader:
            loader.set_epoch(3)
            batches = iter(loader)
            next(batches), next(batches)
            state = loader.state_dict()
            seen.append(loader.plan_at(3, 1).indices.tolist())
    path = tmp_path / file
    if path.suffix == ".json":
        path.write_text(json.dumps(state))
    else:
        torch.save({"model": {"w": torch.zeros(2)}, "loaders": {"train": state}}, path)
    out = tmp_path / "batch.html"
    done = command("replay", "imagenet.train:size=16", folder, path, "--out", out)
    assert done.exit_code == 0 and "epoch 3, step 1" in done.output, done.output
    assert shown(out.read_text()) == [*seen[0], *seen[1]]
    other = command("replay", "imagenet.train:size=32", folder, path, "--out", out)
    assert other.exit_code == 2 and "another pipeline" in other.output


def test_what_holds_no_state_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.pt").write_bytes(b"no checkpoint")
    (tmp_path / "empty.pt").touch()
    torch.save({"loader": Shard(0, 1)}, tmp_path / "objects.pt")
    neither = "is neither JSON nor a checkpoint of torch.save"
    for name, said in (
        ("a.json", "holds 0 states"),
        ("b.pt", neither),
        ("empty.pt", neither),
        ("objects.pt", "holds objects other than tensors and plain values; save what loader.state_dict() returns"),
        ("c.pt", "c.pt'; name a state or checkpoint"),
        (".", "is a folder; name a state or checkpoint"),
    ):
        done = command("replay", "imagenet.train", folder, tmp_path / name)
        assert done.exit_code == 2 and said in " ".join(done.output.split()), done.output
