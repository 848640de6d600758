"""Batches that DALI makes in pieces, for the host to go on with: the same as in one, and bad samples of all of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support import BATCH, TRAIN, N, images_of, seen, settled

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import ImageFolder, ImageList
from gpupipe.engines.dali import pieces as module
from gpupipe.engines.dali.pieces import AHEAD
from gpupipe.engines.dali.runner import Runner
from gpupipe.errors import SampleError
from gpupipe.testing.photos import photograph

Given = dict[str, Any]
GIVEN: Given = {"batch_size": 9, "engine": "dali", "device": "cpu", "num_workers": 2, "shuffle": True, "seed": 5}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes pieces of two images; the number of images of each that is begun."""
    monkeypatch.setattr(module, "_BYTES", 1)
    monkeypatch.setattr(module, "_FOR_EACH_THREAD", 1)
    real, counts = Runner._begin, list[int]()

    def begin(self: Runner, piece: Any) -> None:
        counts.append(len(piece.fed["media"]))
        real(self, piece)

    monkeypatch.setattr(Runner, "_begin", begin)
    return counts


@pytest.fixture
def mixed(tmp_path: Path) -> list[Path]:
    """Photographs: some lie on their side, some Pillow decodes."""
    paths = [tmp_path / f"{i}.{'png' if i % 4 == 1 else 'jpg'}" for i in range(2 * 9 + 5)]
    for i, path in enumerate(paths):
        exif = Image.Exif()
        exif[0x0112] = 1 + i % 8
        Image.fromarray(photograph(48 + i, 70 - i, i)).save(path, exif=exif)
    return paths


def batches(dataset: Any, **given: Any) -> list[tuple[list[int], torch.Tensor]]:
    with DataLoader(dataset, **{**GIVEN, **given}) as loader:
        return [(seen(batch), images_of(batch).clone()) for batch in loader]


@pytest.mark.parametrize("last", ["float", "bytes", "user code"])
def test_they_make_the_same_batches(last: str, mixed: list[Path], request: pytest.FixtureRequest) -> None:
    ends = {
        "float": [T.ToTensor(), T.Normalize((0.5,) * 3, (0.2,) * 3), T.RandomErasing(0.5)],
        "bytes": [T.PILToTensor()],
        "user code": [T.Lambda(lambda image: image.rotate(7)), T.PILToTensor()],
    }
    pipeline = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), *ends[last]])
    dataset = ImageList(mixed, labels=range(len(mixed)), transform=pipeline, exif=True)
    want = batches(dataset)
    begun = request.getfixturevalue("begun")
    made = batches(dataset)
    assert max(begun) <= 2 and len(begun) > 9  # on a busy machine, Pillow takes over a few
    for (indices, images), (wanted, others) in zip(made, want, strict=True):
        assert indices == wanted and torch.equal(images, others)


def test_bad_samples_of_all_pieces_are_named(begun: list[int], numbered: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(numbered, tmp_path / "photos"))
    dataset = ImageFolder(root, TRAIN)
    for i in (1, 6):  # of the same number of bytes, so that only DALI sees it
        other = tmp_path / f"{i}.jpg"
        Image.fromarray(photograph(20, 30, i)).save(other)
        size = (root / f"class{i:03d}" / "photo.jpg").stat().st_size
        data = other.read_bytes()
        (root / f"class{i:03d}" / "photo.jpg").write_bytes(data + bytes(size - len(data)))
    with DataLoader(dataset, **{**GIVEN, "shuffle": False}) as loader:
        iterator = iter(loader)
        with pytest.raises(SampleError) as e:
            next(iterator)
        assert [(s.index, s.kind) for s in e.value.samples] == [(1, "changed"), (6, "changed")]
        assert seen(next(iterator)) == list(range(9, min(18, N)))
    assert len(begun) > N // 2


def test_what_is_made_of_another_image_fails_for_no_other_reason(
    begun: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that it does not fit into the batch."""
    paths = [tmp_path / f"{i}.jpg" for i in range(9)]
    for i, path in enumerate(paths):
        Image.fromarray(photograph(60, 80, i)).save(path, quality=95)
    with DataLoader(ImageList(paths, transform=T.Compose([T.PILToTensor()])), **{**GIVEN, "shuffle": False}) as loader:
        size = paths[3].stat().st_size
        Image.fromarray(photograph(50, 60, 3)).save(paths[3])
        paths[3].write_bytes(paths[3].read_bytes().ljust(size, b"\0"))
        with pytest.raises(SampleError, match=r"sample 3 .*changed"):
            next(iter(loader))


@pytest.mark.parametrize("piece", [0, 2, 4])
def test_dali_fails_on_a_piece(
    piece: int, begun: list[int], numbered: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its batch is Pillow's, and the next one comes as ever."""
    dataset = ImageFolder(numbered, TRAIN)
    want = batches(dataset, persistent_workers=False)
    real, asked, before = Runner.outputs, list[int](), len(begun)

    def outputs(self: Runner) -> Any:
        made = real(self)
        asked.append(len(asked))
        if asked[-1] == piece:
            raise RuntimeError("not today")
        return made

    monkeypatch.setattr(Runner, "outputs", outputs)
    made = batches(dataset, persistent_workers=False)
    assert [indices for indices, _ in made] == [indices for indices, _ in want]
    assert (made[0][1] - want[0][1]).abs().mean() < 0.05
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(made[1:], want[1:], strict=True))
    assert len(begun) - before == len(asked) == 5 + 5 + 3 - max(4 - piece - AHEAD, 0)
    assert sum("DALI failed on a batch" in text for text in caplog.messages) == 1


def test_all_that_is_in_flight_is_made_while_the_script_works_on_a_batch(begun: list[int], numbered: Path) -> None:
    given = {**GIVEN, "batch_size": BATCH, "prefetch_factor": 2}
    with DataLoader(ImageFolder(numbered, TRAIN), **given) as loader:
        iterator = iter(loader)
        next(iterator)
        assert settled(lambda: sum(begun), 3 * BATCH)
        next(iterator)
        assert settled(lambda: sum(begun), 4 * BATCH)
