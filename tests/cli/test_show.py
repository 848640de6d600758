"""Pages about a batch: ``loader.show()``."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpupipe import DataLoader, datasets, targets, transforms as T
from gpupipe.errors import ConfigError

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
