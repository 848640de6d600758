"""A batch that DALI fails on: Pillow names the bad samples, and if there are none it makes the batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvidia.dali")

from exif_blocks import odd_exif
from PIL import Image
from support import BATCH, EVAL, TRAIN, Case, N, images_of, seen

from gpupipe import DataLoader, SampleError, engines, transforms as T
from gpupipe.datasets import ImageFolder, ImageList, VideoList
from gpupipe.engines.dali.engine import DaliEngine
from gpupipe.engines.dali.messages import clean
from gpupipe.engines.dali.runner import Runner
from gpupipe.errors import EngineError
from gpupipe.testing.photos import photograph

Fail = Callable[[Callable[[int], bool]], list[int]]
REFUSAL = (
    "Critical error in pipeline: encountered: [/opt/dali/x.cc:1] Nobody knows why. Current pipeline object is lost"
)


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """``fail(when)`` lets DALI fail on outputs by their number; gives a list of those that it was asked for."""

    def start(when: Callable[[int], bool]) -> list[int]:
        asked: list[int] = []
        real = Runner.outputs

        def outputs(self: Runner) -> Any:
            found = real(self)
            asked.append(len(asked))
            if when(asked[-1]):
                raise RuntimeError(REFUSAL)
            return found

        monkeypatch.setattr(Runner, "outputs", outputs)
        return asked

    return start


def identical(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)


PIPELINES = {
    "train": TRAIN,
    "eval": EVAL,
    "channels last": T.Compose([T.RandomResizedCrop(32), T.ToTensor()], memory_format="channels_last"),
    "views": T.MultiView(
        [T.Compose([T.Resize((30, 30)), T.PILToTensor()]), T.Compose([T.CenterCrop(40), T.ToTensor()])]
    ),
    "mixed": T.Compose([T.RandomResizedCrop(32), T.ToTensor(), T.MixUp(num_classes=N)]),
    "torch's part": T.Compose([T.Resize((32, 32)), T.ToTensor(), T.ColorJitter(hue=0.3), T.RandomErasing(p=1.0)]),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_batch_of_good_samples_is_the_reference(name: str, numbered: Path, fail: Fail) -> None:
    dataset = ImageFolder(numbered, PIPELINES[name])
    given: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 5, "device": "cpu"}
    with DataLoader(dataset, engine="torch", **given) as loader:
        want = list(loader)
    fail(lambda n: True)
    with DataLoader(dataset, engine="dali", **given) as loader:
        for ours, reference in zip(loader, want, strict=True):
            assert identical(ours, reference)


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_whatever_it_was_fed(kind: str, numbered: Path, fail: Fail) -> None:
    case, reference = Case("dali", kind, "cpu", numbered), Case("torch", kind, "cpu", numbered)
    try:
        want = [images_of(batch) for batch in reference.loader()]
        fail(lambda n: n == 2)
        batches = list(case.loader())
        assert torch.equal(images_of(batches[2]), want[2]) and len(batches) == len(want)
        assert all((images_of(a) - b).abs().mean() < 0.1 for a, b in zip(batches, want, strict=True))
    finally:
        case.close()
        reference.close()


def test_what_pillow_decoded_beside_what_dali_decodes(fail: Fail, tmp_path: Path) -> None:
    """Some rows are turned, others come as upright pixels of which the crop has been taken."""
    paths = [tmp_path / f"{i:02d}" for i in range(16)]
    for i, path in enumerate(paths):
        image = Image.fromarray(photograph(61 + i, 83, i))
        image.save(path, "PNG" if i % 3 == 0 else "JPEG", exif=odd_exif(1 + i % 8)[6 * (i % 3 == 0) :])
    pipeline = T.Compose([T.RandomResizedCrop(32), T.PILToTensor()])
    dataset = ImageList(paths, transform=pipeline, exif=True)
    given: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 5, "device": "cpu", "num_workers": 1}
    with DataLoader(dataset, engine="torch", **given) as loader:
        want = [images_of(batch) for batch in loader]
    fail(lambda n: True)
    with DataLoader(dataset, engine="dali", **given) as loader:
        assert all(identical(images_of(a), b) for a, b in zip(loader, want, strict=True))


def test_a_clip(videos: dict[str, Path], fail: Fail) -> None:
    path = next(iter(videos.values()))
    pipeline = T.Compose([T.RandomResizedCrop(32), T.RandomGrayscale(0.5), T.ToTensor()])  # not without DALI
    dataset = VideoList([path], frames=4, clips=3, sampling="uniform", transform=pipeline)
    given: dict[str, Any] = {"batch_size": 2, "seed": 5, "device": "cpu"}
    with DataLoader(dataset, engine="torch", **given) as loader:
        want = [images_of(batch) for batch in loader]
    fail(lambda n: True)
    with DataLoader(dataset, engine="dali", **given) as loader:
        assert all(identical(images_of(a), b) for a, b in zip(loader, want, strict=True))


def test_it_is_said_once_and_counted(numbered: Path, fail: Fail, caplog: pytest.LogCaptureFixture) -> None:
    fail(lambda n: n in (1, 3))
    with DataLoader(ImageFolder(numbered, TRAIN), batch_size=BATCH, engine="dali", device="cpu") as loader:
        with caplog.at_level(logging.INFO, "gpupipe"):
            assert sorted(i for batch in loader for i in seen(batch)) == list(range(N))
        told = [r for r in caplog.records if "DALI failed" in r.message]
        assert [r.levelno for r in told] == [logging.WARNING, logging.INFO]
        assert (
            "step 1" in told[0].message and "Nobody knows why" in told[0].message and "/opt/dali" not in told[0].message
        )
        assert "2 batches that DALI failed on" in repr(loader) and "2 batches" in repr(loader.report())
        assert loader.report().samples == []


@pytest.mark.parametrize("when", [(0,), (0, 1), (1, 2, 3), (4,)], ids=str)
def test_dali_goes_on_and_its_pipeline_is_built_anew_after_two_failures(
    when: tuple[int, ...], numbered: Path, fail: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuilt: list[int] = []
    real = Runner.rebuild
    monkeypatch.setattr(Runner, "rebuild", lambda self: (rebuilt.append(1), real(self))[1])
    dataset = ImageFolder(numbered, TRAIN)
    with DataLoader(dataset, batch_size=BATCH, engine="dali", device="cpu", seed=1) as loader:
        want = [images_of(batch).clone() for batch in loader]
    with DataLoader(dataset, batch_size=BATCH, engine="dali", device="cpu", seed=1) as loader:
        fail(lambda n: n in when)
        batches = [images_of(batch) for batch in loader]
    assert len(rebuilt) == (len(when) > 1)
    for step, (a, b) in enumerate(zip(batches, want, strict=True)):
        assert torch.equal(a, b) or step in when


def test_pillow_names_what_is_bad(numbered: Path, fail: Fail, tmp_path: Path) -> None:
    import shutil

    root = Path(shutil.copytree(numbered, tmp_path / "photos"))
    dataset = ImageFolder(root, TRAIN)
    photo = root / "class007" / "photo.jpg"
    photo.write_bytes(photo.read_bytes()[:300])
    with DataLoader(dataset, batch_size=BATCH, engine="dali", device="cpu", on_error="skip") as loader:
        assert sorted(i for batch in loader for i in seen(batch)) == [i for i in range(N) if i != 7]
        assert [(s.index, s.kind) for s in loader.report().samples] == [(7, "truncated")]
        assert loader.report().remarks == []  # it was no batch of good samples


def test_another_image_than_the_index_says_is_named(numbered: Path, fail: Fail, tmp_path: Path) -> None:
    import shutil

    root = Path(shutil.copytree(numbered, tmp_path / "photos"))
    dataset = ImageFolder(root, TRAIN)
    shutil.copyfile(root / "class001" / "photo.jpg", root / "class000" / "photo.jpg")
    fail(lambda n: True)
    with DataLoader(dataset, batch_size=2, engine="dali", device="cpu") as loader:
        with pytest.raises(SampleError) as e:
            next(iter(loader))
        assert [(s.index, s.kind) for s in e.value.samples] == [(0, "changed")]


def test_frames_of_a_gpu_cannot_be_decoded_again(numbered: Path) -> None:
    loader = DataLoader(ImageFolder(numbered, TRAIN), batch_size=2, engine="dali", device="cpu")
    setup = loader._session.resolved.setup  # type: ignore[attr-defined]
    engine = engines.Dali().build(setup)
    assert isinstance(engine, DaliEngine)
    engine.nvdec = True
    with pytest.raises(EngineError, match="frames that it decoded itself: Nobody knows why"):
        engine.decode_with_pillow(None, RuntimeError(REFUSAL))  # type: ignore[arg-type]
    loader.close()


def test_what_dali_says_is_made_one_sentence() -> None:
    assert clean(REFUSAL) == "Nobody knows why." and clean("[/opt/dali/a.cc:3] ") == "DALI gave no reason"
    assert clean("plain\nwords") == "plain words"


@pytest.mark.parametrize("mixed", [False, True])
def test_what_was_exchanged_is_not_given_to_dali(
    mixed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``mixed``: beside a file that Pillow decodes anyway."""
    paths = [tmp_path / f"{i}.jpg" for i in range(9)]
    for i, path in enumerate(paths):
        Image.fromarray(photograph(61, 83, i)).save(path, "PNG" if mixed and i == 0 else "JPEG")
    dataset = ImageList(paths, transform=T.Compose([T.RandomResizedCrop(32), T.PILToTensor()]))
    pixels = Image.open(paths[4]).convert("RGB")
    pixels.save(paths[4], "PNG")
    given: dict[str, Any] = {"batch_size": 3, "seed": 5, "device": "cpu"}
    with DataLoader(dataset, engine="torch", **given) as loader:
        want = [images_of(batch) for batch in loader]
    given_to_dali, schedule = list[bytes](), DaliEngine.schedule

    def noted(self: DaliEngine, ready: Any) -> Any:
        given_to_dali.extend(bytes(media).rstrip(b"\0") for media in ready.media)
        return schedule(self, ready)

    monkeypatch.setattr(DaliEngine, "schedule", noted)
    with DataLoader(dataset, engine="dali", **given) as loader:
        made = [images_of(batch) for batch in loader]
        again = [images_of(batch) for batch in loader]
    assert str(paths[4]).encode() not in given_to_dali and str(paths[6]).encode() in given_to_dali
    assert made[1].shape == want[1].shape and torch.equal(made[1][1], want[1][1])
    assert all((a.float() - b.float()).abs().mean() < 1 for a, b in zip(made, want, strict=True)) and len(again) == 3
    assert sum("4.jpg" in text and "have changed" in text for text in caplog.messages) == (not mixed)


def test_a_bomb_in_place_of_a_file_is_named_before_it_is_decoded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{i}.jpg" for i in range(4)]
    for i, path in enumerate(paths):
        Image.fromarray(photograph(61, 83, i)).save(path)
    dataset = ImageList(paths, transform=EVAL, max_pixels=10_000)
    Image.new("1", (300, 300)).save(paths[2], "PNG")
    monkeypatch.setattr(Runner, "outputs", lambda self: pytest.fail("DALI was asked"))
    with (
        DataLoader(dataset, batch_size=4, engine="dali", device="cpu") as loader,
        pytest.raises(SampleError, match="300x300 pixels") as caught,
    ):
        next(iter(loader))
    assert [(bad.index, bad.kind) for bad in caught.value.samples] == [(2, "bomb")]
