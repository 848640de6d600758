"""States, policies for bad samples, functions that scripts name or replace, and memory of worker processes."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_reference import Made
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T
from torchvision.transforms import functional as F

import gpupipe
from gpupipe import DataLoader
from gpupipe.live import trays

from .beside import form, same_batches, seeded, waits, write_jpegs

pytestmark = pytest.mark.usefixtures("exact")


class Pictures(Dataset[Any]):
    def __init__(self, root: Path):
        self.paths = sorted(root.glob("*.jpg"))
        self.transform = T.Compose([T.RandomCrop(12), T.RandomHorizontalFlip(), T.ToTensor()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        draws = random.random() + np.random.random()  # noqa: NPY002
        return self.transform(Image.open(self.paths[i]).convert("RGB")), i, draws


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_jpegs(tmp_path / "jpegs", 12)


def loader_of(data: Any, **options: Any) -> gpupipe.DataLoader:
    return gpupipe.DataLoader(data, **{"batch_size": 3, "shuffle": True, "device": "cpu", "engine": "dali", **options})


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_a_state_in_mid_epoch(root: Path, options: dict[str, Any], seed: int | None) -> None:
    """The rest of the epoch and the next one are what they were."""
    data = Pictures(root)
    seeded(1)
    with loader_of(data, seed=seed, **options) as loader:
        # Without a seed, nobody knows the generators of workers that have lived through an epoch.
        if seed is not None or "persistent_workers" not in options:
            list(loader)
        batches = iter(loader)
        next(batches), next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        want = [form(batch) for batch in [*batches, *loader]]
    seeded(99)
    with loader_of(data, seed=seed, **options) as loader:
        loader.load_state_dict(state)
        assert [form(batch) for batch in [*loader, *loader]] == want
    assert len(want) == 2 + 4


def broken_at(root: Path, *numbers: int) -> Pictures:
    """Files whose pixels are damaged, but not their heads."""
    data = Pictures(root)
    for number in numbers:
        content = data.paths[number].read_bytes()
        data.paths[number].write_bytes(content[: len(content) // 2])
    return data


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples(root: Path, workers: int) -> None:
    data = broken_at(root, 1, 7)
    same_batches(lambda Loader: Loader(data, batch_size=3, num_workers=workers))  # raises as torch's does
    for policy, want in (
        ("skip", [[0, 2], [3, 4, 5], [6, 8], [9, 10, 11]]),
        ("replace", [[0, 2, 2], [3, 4, 5], [6, 8, 8], [9, 10, 11]]),
    ):
        with loader_of(data, shuffle=False, on_error=policy, num_workers=workers) as loader:
            assert [y.tolist() for _, y, _ in loader] == want


class Careful(Pictures):
    """Opens another file where one is damaged."""

    def __getitem__(self, i: int) -> Any:
        try:
            return super().__getitem__(i)
        except OSError:
            return super().__getitem__(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_script_sees_errors_of_its_images(root: Path, workers: int) -> None:
    data = Careful(root)
    data.paths = broken_at(root, 1, 7).paths
    same_batches(lambda Loader: Loader(data, batch_size=3, shuffle=True, num_workers=workers))


def test_images_on_which_an_engine_fails(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's code makes the batch once more, and later draws are torch's."""
    from gpupipe.live.making import FailedImages

    failed: list[int] = []

    def result(self: Any) -> Any:
        if len(failed) < 2:
            failed.append(1)
            raise FailedImages({0: OSError("damaged")})
        return real(self)

    real = Made.result
    monkeypatch.setattr(Made, "result", result)
    for workers in (0, 2):
        failed.clear()
        same_batches(lambda Loader: Loader(Pictures(root), batch_size=3, shuffle=True, num_workers=workers))  # noqa: B023
        assert len(failed) == 2


def test_functions_that_were_imported_by_name_before_gpupipe(root: Path) -> None:
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import conftest
from pathlib import Path
from PIL.Image import open as read
from PIL.ImageOps import invert
from torchvision.transforms.functional import to_tensor, hflip, resize
class Data:
    paths = sorted(Path({str(root)!r}).glob("*.jpg"))
    def __len__(self): return 6
    def __getitem__(self, i): return to_tensor(hflip(invert(resize(read(self.paths[i]).convert("RGB"), [9, 9]))))
import gpupipe
loader = gpupipe.DataLoader(Data(), batch_size=3, device="cpu", engine="dali")
assert len(list(loader)) == 2
assert "6 of 6" in str(loader), str(loader)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


def test_a_function_that_the_script_replaces(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "hflip", lambda image: image.rotate(180))
    monkeypatch.setattr(F, "to_tensor", lambda image: torch.from_numpy(np.array(image)).sum())
    data = Pictures(root)
    data.transform = T.Compose([T.RandomHorizontalFlip(0.5), T.ToTensor()])
    same_batches(lambda Loader: Loader(data, batch_size=3, shuffle=True))


# ---- trays


class Opened(Pictures):
    def __getitem__(self, i: int) -> Any:
        return F.to_tensor(Image.open(self.paths[i]).convert("RGB").resize((9, 9)))


@pytest.mark.parametrize("size", [1, 5])
def test_trays_are_used_again(root: Path, size: int) -> None:
    """More batches than trays, of files that differ in size."""
    data = Opened(root)
    data.paths = data.paths * 5
    rng = random.Random(0)
    rng.shuffle(data.paths)
    same_batches(lambda Loader: Loader(data, batch_size=size, num_workers=2), epochs=1)


class KeepsCrops(Opened):
    """As torchreid's RandomPatch, which keeps up to 50,000 of them."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.kept: list[Image.Image] = []

    def __getitem__(self, i: int) -> Any:
        self.kept.append(Image.open(self.paths[i]).convert("RGB").crop((2, 3, 6, 7)))
        return super().__getitem__(i)


def test_crops_that_the_script_keeps_do_not_keep_files(root: Path) -> None:
    data = KeepsCrops(root)
    loader = DataLoader(data, batch_size=2, device="cpu")
    list(loader)
    assert [*map(waits, data.kept)] == [False] * (len(data) - 2) + [True] * 2
    assert loader.stats()["images"]["looks"] == {"images that are kept": len(data) - 2}
    theirs = [Image.open(path).convert("RGB").crop((2, 3, 6, 7)) for path in data.paths]
    assert [x.tobytes() for x in data.kept] == [x.tobytes() for x in theirs]


class Keeps(Opened):
    """Keeps the images of earlier batches, and looks at them in later ones."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.kept: list[Any] = []

    def __getitem__(self, i: int) -> Any:
        self.kept.append(Image.open(self.paths[i]).convert("RGB"))
        old = self.kept[i // 2 % len(self.kept)]
        return super().__getitem__(i), np.asarray(old).sum(), F.to_tensor(old.resize((5, 5)))


def test_images_that_the_script_keeps(root: Path) -> None:
    data = Keeps(root)
    data.paths = data.paths * 3
    for workers in (0, 1):
        data.kept.clear()
        same_batches(lambda Loader: Loader(Keeps(root), batch_size=2, num_workers=workers), epochs=1)  # noqa: B023


@pytest.fixture
def own_trays(monkeypatch: pytest.MonkeyPatch) -> trays.Trays:
    made = trays.Trays()
    monkeypatch.setattr(trays, "_writer", None)
    trays.begin(made)
    return made


def sent_and_arrived(*images: bytes) -> tuple[trays.Sent, list[Any]]:
    sent = trays.sent(images)
    return sent, trays.arrived(sent)


def test_a_tray_is_free_when_nobody_uses_it(own_trays: trays.Trays) -> None:
    first, got = sent_and_arrived(b"a" * 100, b"b" * 50)
    second, others = sent_and_arrived(b"c" * 100)
    assert second.tray != first.tray and [bytes(x[:1]) for x in (*got, *others)] == [b"a", b"b", b"c"]
    del got
    third, _ = sent_and_arrived(b"d" * 150)
    assert third.tray == first.tray and bytes(others[0]) == b"c" * 100


def test_images_are_read_to_a_tray(own_trays: trays.Trays) -> None:
    one, two = trays.room(3), trays.room(2)
    assert one is not None and two is not None and trays.room(trays._SIZE) is None
    one[:], two[:] = b"abc", b"de"
    sent = trays.sent([two, one])
    assert (sent.tray, sent.starts) == (0, [3, 0]) and list(map(bytes, trays.arrived(sent))) == [b"de", b"abc"]
    assert not own_trays.held
    kept = trays.room(3)  # as "one" and "two", which keep the first tray
    assert trays.sent([b"f"]).tray == 2 and trays.sent([b"g"]).tray == 3 and kept is not None


def test_more_batches_than_trays(own_trays: trays.Trays) -> None:
    kept = [sent_and_arrived(bytes([k]) * 40) for k in range(trays._COUNT + 5)]
    assert [sent.tray for sent, _ in kept[-5:]] == [-1] * 5
    assert [bytes(images[0]) for _, images in kept] == [bytes([k]) * 40 for k in range(trays._COUNT + 5)]


def test_a_worker_that_ended_needs_no_trays(own_trays: trays.Trays) -> None:
    lost, (_, kept) = trays.sent([b"a"]), sent_and_arrived(b"b")
    own_trays.free()
    assert trays.sent([b"c"]).tray == lost.tray == 0 and trays.sent([b"d"]).tray == 2 and bytes(kept[0]) == b"b"


def test_a_fork_gives_nothing_back(own_trays: trays.Trays) -> None:
    _, kept = sent_and_arrived(b"a")
    if not (child := os.fork()):
        kept.clear()
        os._exit(0)
    os.waitpid(child, 0)
    assert own_trays.in_use[0] and kept


def test_later_workers_get_the_trays_of_earlier_ones(root: Path) -> None:
    loader = DataLoader(Opened(root), batch_size=2, num_workers=2, device="cpu")
    made: list[trays.Trays] = loader._session.loader.trays  # type: ignore[attr-defined]
    numbers = []
    for _ in range(3):
        list(loader)
        gc.collect()
        assert not any(one.held or one.in_use.any() for one in made)
        numbers.append(sorted(one.number for one in made))
    assert numbers == [numbers[0]] * 3 and len(numbers[0]) == 2
    loader.close()
    assert not made
