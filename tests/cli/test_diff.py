"""Lock files: what a run reads is pinned, and ``gpupipe diff`` names every kind of change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from gpupipe import DataLoader, Shard, datasets, transforms as T
from gpupipe.cli import app
from gpupipe.errors import ConfigError, StateError
from gpupipe.lock.differences import differences
from gpupipe.lock.record import Lock

PHOTOS = 24


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for i in range(PHOTOS):
        path = tmp_path / "photos" / f"class{i % 3}" / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).save(path)
    return tmp_path / "photos"


def loader(folder: Path, size: int = 16, **options: Any) -> DataLoader:
    steps = [T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ToTensor()]
    given = {"batch_size": 8, "shuffle": True, "seed": 3, "engine": "torch", "device": "cpu", **options}
    return DataLoader(datasets.ImageFolder(folder, steps), **given)


def locked(folder: Path, path: Path, **options: Any) -> Lock:
    with loader(folder, **options) as made:
        made.lock(path)
    return Lock.load(path)


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_the_same_run_agrees_wherever_it_reads(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "a" / "data.lock"
    first = locked(folder, file)
    written = file.read_text()
    assert first.versions["engine"] == "torch" and first.settings["transforms"].startswith("Compose(")
    assert len(written) < 40_000 and list(first.steps) == [f"epoch 0, step {k}" for k in range(3)]
    assert all(len(samples) == 8 for samples in first.steps.values())
    shutil.copytree(folder, tmp_path / "elsewhere")
    for options in ({}, {"num_workers": 2}, {"global_batch_size": 8, "batch_size": 1, "shard": Shard(0, 2)}):
        with loader(tmp_path / "elsewhere", **options) as made:
            state = made.state_dict()
            made.lock(file)
            assert made.state_dict() == state
    assert file.read_text() == written
    with loader(folder, shard=Shard(1, 2), batch_size=4) as other:
        other.lock(tmp_path / "not written")  # the first rank does
    assert not (tmp_path / "not written").exists()
    done = command("diff", file, file)
    assert done.exit_code == 0 and "read the same: 24 samples, 24 of them compared" in done.output


CHANGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "setting": ({"seed": 4}, "setting", "seed: 3 -> 4"),
    "order": ({"shuffle": False}, "order", "sequential"),
    "draws": ({"size": 12}, "draws", "Resize"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_the_loader_are_named(folder: Path, tmp_path: Path, change: str) -> None:
    options, kind, text = CHANGES[change]
    a, b = locked(folder, tmp_path / "a.lock"), locked(folder, tmp_path / "b.lock", **options)
    found = differences(a, b)
    assert kind in {each.kind for each in found} and any(text in str(each) for each in found), found
    with loader(folder, **options) as made, pytest.raises(StateError, match=r"does not read what .*a\.lock pins"):
        made.lock(tmp_path / "a.lock")
    done = command("diff", tmp_path / "a.lock", tmp_path / "b.lock")
    assert done.exit_code == 1


def test_changes_of_files_are_named(folder: Path, tmp_path: Path) -> None:
    before = locked(folder, tmp_path / "a.lock")
    path = folder / "class1" / "07.png"
    Image.fromarray(np.random.default_rng(7).integers(0, 256, (20, 24, 3), np.uint8)).save(path)
    after = locked(folder, tmp_path / "b.lock")
    found = differences(before, after)
    assert [each.where.rpartition("/")[2] for each in found if each.kind == "pixels"] == ["07.png"]
    assert {each.kind for each in found} <= {"pixels", "dataset"} and "mean" in str(found[-1])
    # A file more: everything else follows from it, and the number of samples says so.
    shutil.copy(path, folder / "class1" / "99.png")
    found = differences(after, locked(folder, tmp_path / "c.lock"))
    assert "number of samples: 24 -> 25" in map(str, found)
    assert any(each.kind == "dataset" and each.where.startswith("samples 16") for each in found)
    done = command("diff", tmp_path / "b.lock", tmp_path / "c.lock", "--most", 2)
    assert done.exit_code == 1 and "order: other samples (" in done.output and "more" in done.output


def test_versions_alone_are_no_difference(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    lock = locked(folder, path)
    other = json.loads(path.read_text())
    other["versions"]["torch"] = "2.99"
    path.write_text(json.dumps(other))
    with loader(folder) as made:
        made.lock(path)
    lock.save(tmp_path / "b.lock")
    done = command("diff", path, tmp_path / "b.lock")
    assert done.exit_code == 0 and "2.99" in done.output and "read the same" in done.output
    other["steps"]["epoch 0, step 0"][0]["pixels"] = ["0"]
    path.write_text(json.dumps(other))
    with loader(folder) as made, pytest.raises(StateError, match=r"mean(.|\n)*torch: 2\.99 -> 2"):
        made.lock(path)


def test_clear_errors(folder: Path, tmp_path: Path) -> None:
    with loader(folder, seed=None) as made, pytest.raises(ConfigError, match="pass seed= to the loader"):
        made.lock(tmp_path / "a.lock")
    for content, text in (("{}", "is no lock file"), ("no", "is no lock file"), ('{"version": 1}', "damaged")):
        (tmp_path / "wrong").write_text(content)
        with loader(folder) as made, pytest.raises(ConfigError, match=text):
            made.lock(tmp_path / "wrong")
    done = command("diff", tmp_path / "missing", tmp_path / "wrong")
    assert done.exit_code == 2 and "cannot read" in " ".join(done.output.split())
    with loader(folder) as made, pytest.raises(ConfigError, match="steps must be an integer of at least 1"):
        made.lock(tmp_path / "a.lock", steps=0)


def test_every_kind_of_dataset(tmp_path: Path) -> None:
    pixels = np.zeros((40, 8, 8, 3), np.uint8)
    views = T.Compose([T.MultiView([T.RandomCrop(6), T.ToTensor()], 2)])
    mixture = datasets.Mixture({datasets.Arrays(pixels): 0.5, datasets.Arrays(pixels + 9): 0.5}, stop=20)
    for k, dataset in enumerate(
        (datasets.Arrays(pixels, range(40)), datasets.Arrays(pixels, transform=views), mixture)
    ):
        with DataLoader(dataset, 4, seed=0, engine="torch", device="cpu") as made:
            made.lock(tmp_path / f"{k}.lock")
            made.lock(tmp_path / f"{k}.lock")
