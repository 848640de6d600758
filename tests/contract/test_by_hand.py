"""What a script's own Dataset does that trials have not shown: torch's loader and this one give the same."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_datasets import CARRIED, EVAL, RARE, RARELY, TRAIN, AnotherInstead, CopiesOpened, Photos
from PIL import Image
from support import BATCH, N, warned
from torch.utils.data import ConcatDataset, DataLoader as TorchLoader, Subset
from torchvision import datasets as tv, transforms as tvt
from torchvision.transforms import v2

from gpupipe import DataLoader
from gpupipe.errors import SampleError

pytest.importorskip("nvidia.dali")

ENGINES = ["dali", "torch"]


def batches(dataset: Any, engine: str, workers: int = 0, **options: Any) -> list[Any]:
    with DataLoader(dataset, BATCH, device="cpu", engine=engine, num_workers=workers, **options) as loader:
        return list(loader)


def close(got: list[Any], want: list[Any]) -> bool:
    """Whether two epochs are equal, images up to what is promised."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        parts = zip(torch.utils._pytree.tree_leaves(a), torch.utils._pytree.tree_leaves(b), strict=True)
        for x, y in parts:
            if isinstance(y, torch.Tensor) and y.is_floating_point():
                if x.shape != y.shape or (x - y).abs().max() > 2.02 / 255:
                    return False
            elif not (torch.equal(x, y) if isinstance(y, torch.Tensor) else x == y):
                return False
    return True


@pytest.fixture
def damaged(tmp_path: Path, numbered: Path) -> Path:
    """As ``numbered``, with one file that ends too early."""
    for path in sorted(numbered.rglob("*.jpg")):
        target = tmp_path / path.relative_to(numbered)
        target.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes()
        target.write_bytes(content[: len(content) // 2] if path == sorted(numbered.rglob("*.jpg"))[RARE] else content)
    return tmp_path


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its file is Pillow's to close
@pytest.mark.part("kind", "engine", "workers", of=5)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", CARRIED + RARELY)
def test_it_is_what_torch_gives(kind: type[Photos], engine: str, workers: int, damaged: Path, numbered: Path) -> None:
    dataset = kind(damaged if kind is AnotherInstead else numbered)
    want = list(TorchLoader(dataset, BATCH))
    with DataLoader(dataset, BATCH, device="cpu", engine=engine, num_workers=workers) as loader:  # type: ignore[arg-type]
        for _ in range(2):
            assert close(list(loader), want)
        by_hand = loader.stats()["by_hand"]
        assert "engine: " + engine in repr(loader)
    assert (by_hand > 0) == (kind in RARELY and kind is not CopiesOpened)


class NotesFailures(Photos):
    """Takes the next file that can be read, and keeps a list of the others."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.failed: list[int] = []

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            self.failed.append(index)
            return self[index + 1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its file is Pillow's to close
@pytest.mark.parametrize("engine", ENGINES)
def test_a_dataset_that_changes_where_a_file_fails(engine: str, damaged: Path) -> None:
    """The batch is asked for again with the samples that the script must make, after the change was followed."""
    sorted(damaged.rglob("*.jpg"))[RARE - 1].write_bytes(
        b"not an image"
    )  # fails where it is opened, and changes the list
    want = list(TorchLoader(NotesFailures(damaged), BATCH))
    assert close(batches(NotesFailures(damaged), engine, prefetch_factor=2), want)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.slow
def test_other_ways_to_start_workers(method: str, numbered: Path) -> None:
    """Transforms are told by their places, since every process has objects of its own."""
    want = batches(Photos(numbered, TRAIN), "dali", 2, seed=3)
    got = batches(Photos(numbered, TRAIN), "dali", 2, seed=3, multiprocessing_context=method)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(got, want, strict=True))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its file is Pillow's to close
@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_the_script_does_not_catch_is_a_bad_sample(engine: str, damaged: Path) -> None:
    with DataLoader(Photos(damaged), BATCH, device="cpu", engine=engine) as loader:  # type: ignore[arg-type]
        iterator = iter(loader)
        got, errors = [], []
        while True:
            try:
                got.append(next(iterator))
            except SampleError as e:
                errors += e.samples
            except StopIteration:
                break
    assert [bad.index for bad in errors] == [RARE] and len(got) == N // BATCH


@pytest.mark.parametrize("engine", ENGINES)
def test_samples_of_another_structure_go_to_the_collate_function(engine: str, numbered: Path) -> None:
    class SometimesNone(Photos):
        def __getitem__(self, i: int) -> Any:
            return None if i % 6 == RARE else super().__getitem__(i)

    def filtered(samples: list[Any]) -> Any:
        return torch.utils.data.default_collate([sample for sample in samples if sample is not None])

    want = list(TorchLoader(SometimesNone(numbered), BATCH, collate_fn=filtered))
    assert close(batches(SometimesNone(numbered), engine, 2, collate_fn=filtered), want)


TO_SQUARES = tvt.Compose([tvt.Resize(32), tvt.CenterCrop(32)])
KINDS: dict[str, Any] = {
    "own Dataset": lambda root: Photos(root, TO_SQUARES),
    "folder": lambda root: tv.ImageFolder(str(root), TO_SQUARES),
    "subset": lambda root: Subset(tv.ImageFolder(str(root), TO_SQUARES), [3, 1, 4]),
    "joined": lambda root: ConcatDataset([tv.ImageFolder(str(root), TO_SQUARES)] * 2),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_images_for_a_collate_function_that_takes_pil_images(engine: str, kind: str, numbered: Path) -> None:
    """Such as ``fast_collate`` of NVIDIA's examples."""

    def fast_collate(samples: list[Any]) -> Any:
        assert all(isinstance(image, Image.Image) for image, _ in samples)
        return torch.stack([torch.from_numpy(np.array(image)) for image, _ in samples])

    dataset = KINDS[kind](numbered)
    want = list(TorchLoader(dataset, BATCH, collate_fn=fast_collate))
    got = batches(dataset, engine, collate_fn=fast_collate)
    assert all((a.int() - b.int()).abs().max() <= 1 for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_untransformed_images_for_a_collate_function(engine: str, numbered: Path) -> None:
    dataset = tv.ImageFolder(str(numbered))

    def first(samples: list[Any]) -> Any:
        image, label = samples[0]
        return image.mode, image.size, label

    assert batches(dataset, engine, collate_fn=first) == list(TorchLoader(dataset, BATCH, collate_fn=first))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_collate_function_gets_torchvisions_images(engine: str, numbered: Path) -> None:
    steps = [v2.ToImage(), v2.Resize((32, 32)), v2.ToDtype(torch.float32, scale=True)]
    dataset = tv.ImageFolder(str(numbered), v2.Compose(steps))

    def types(samples: list[Any]) -> Any:
        return [type(image) for image, _ in samples]

    assert batches(dataset, engine, collate_fn=types) == list(TorchLoader(dataset, BATCH, collate_fn=types))
    assert all(type(images) is torch.Tensor for images, _ in batches(dataset, engine))


@pytest.mark.parametrize("engine", ENGINES)
def test_moved_axes_make_contiguous_batches(engine: str, numbered: Path) -> None:
    class ChannelsLast(Photos):
        def __getitem__(self, i: int) -> Any:
            image, label = super().__getitem__(i)
            return image.permute(1, 2, 0), label

    dataset = ChannelsLast(numbered)
    got = batches(dataset, engine)
    assert close(got, list(TorchLoader(dataset, BATCH)))
    assert all(images.is_contiguous() for images, _ in got)


@pytest.mark.parametrize("engine", ENGINES)
def test_images_of_bfloat16(engine: str, numbered: Path) -> None:
    class Halved(Photos):
        def __getitem__(self, i: int) -> Any:
            image, label = super().__getitem__(i)
            return image.to(torch.bfloat16), label

    dataset = Halved(numbered)
    for (a, _), (b, _) in zip(batches(dataset, engine), TorchLoader(dataset, BATCH), strict=True):
        assert a.dtype == b.dtype
        assert (a.float() - b.float()).abs().max() <= 3 / 255


def test_draws_are_shared_only_where_the_script_shares_them(numbered: Path) -> None:
    class Views(Photos):
        def __init__(self, root: Path):
            super().__init__(root, tvt.ToTensor())
            self.crop = tvt.RandomCrop(24)
            self.color = tvt.ColorJitter(0.9)

        def __getitem__(self, i: int) -> Any:
            image = self.opened(i)
            cropped = self.crop(image)
            one = self.transform(cropped)
            return one, one, self.transform(self.color(cropped)), self.transform(self.color(cropped)), i

    first, again, bright, other, _ = (torch.cat(parts) for parts in zip(*batches(Views(numbered), "dali"), strict=True))
    assert torch.equal(first, again) and first.data_ptr() != again.data_ptr()
    assert (bright - other).abs().mean() > 0.05

    def pattern(x: torch.Tensor) -> torch.Tensor:  # brightness scales, and keeps what is dark in place
        return x / x.mean(dim=(1, 2, 3), keepdim=True)

    same_window = (pattern(bright) - pattern(first)).abs().mean()
    another = (pattern(first).roll(1, 0) - pattern(first)).abs().mean()
    assert same_window < another / 3


class Same:
    """An arranger as autoencoders and denoisers have it: the image, and the image to be found."""

    def __init__(self, transform: Any, *, looks: bool = False):
        self.transform, self.looks = transform, looks

    def __call__(self, image: Image.Image) -> Any:
        x = self.transform(image)
        if self.looks:
            with contextlib.suppress(Exception):
                return x, x / x.max()
        return x, x


def test_an_arranger_that_returns_one_image_twice(numbered: Path) -> None:
    images = {str(path): 0 for path in sorted(numbered.rglob("*.jpg"))}
    folder = tv.DatasetFolder(str(numbered), tv.folder.default_loader, (".jpg",), transform=Same(TRAIN))
    assert len(folder) == len(images)
    for (one, other), _ in batches(folder, "dali", seed=2):
        assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()


def test_an_arranger_that_looks_and_catches_what_that_raises(numbered: Path) -> None:
    folder = tv.DatasetFolder(str(numbered), tv.folder.default_loader, (".jpg",), transform=Same(EVAL, looks=True))
    assert close(batches(folder, "auto"), list(TorchLoader(folder, BATCH)))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_script_computes_belongs_to_the_pixels_that_it_gets(engine: str, numbered: Path) -> None:
    class Measures(Photos):
        def __getitem__(self, i: int) -> Any:
            x = self.transform(self.opened(i))
            return x, (float(x.mean()) if i % 10 == RARE else -1.0)

    for images, means in batches(Measures(numbered, TRAIN), engine, 2, seed=1):
        for image, mean in zip(images, means.tolist(), strict=True):
            assert mean == -1 or abs(float(image.mean()) - mean) < 1e-6


def test_results_that_a_script_keeps_stay_as_they_are(numbered: Path) -> None:
    class Keeps(Photos):
        """Its cache is there only after a while, so trials do not see it."""

        cache: dict[int, Any] | None = None

        def __getitem__(self, i: int) -> Any:
            if self.cache is None:
                return super().__getitem__(i)
            if i not in self.cache:
                self.cache[i] = self.transform(self.opened(i))
            return self.cache[i], i

    dataset = Keeps(numbered, TRAIN)
    with DataLoader(dataset, BATCH, device="cpu", engine="dali", seed=1) as loader:
        list(loader)
    recorded = loader._session.resolved.setup.dataset  # type: ignore[attr-defined]
    recorded._standing.cache = {}
    first = recorded.fetch(3)
    kept = recorded._standing.cache[3]
    assert not isinstance(first, tuple) or kept.pending is not None
    again = recorded.fetch(3)
    assert torch.equal(again.views[0], kept) and torch.equal(recorded.fetch(3).views[0], kept)


class TestTracesOfTrials:
    """A loader that is made leaves the script's objects alone."""

    def test_counters_and_lists(self, numbered: Path) -> None:
        class Notes(Photos):
            def __init__(self, root: Path):
                super().__init__(root)
                self.count, self.log, self.seen = 0, [], {"n": 0}
                self.order = list(range(len(self.paths)))

            def __getitem__(self, i: int) -> Any:
                if not self.count:
                    random.Random(3).shuffle(self.order)
                self.count += 1
                self.log.append(i)
                self.seen["n"] += 1
                return super().__getitem__(self.order[i])

        dataset, other = Notes(numbered), Notes(numbered)
        with DataLoader(dataset, BATCH, device="cpu") as loader:
            assert (dataset.count, dataset.log, dataset.seen, dataset.order) == (0, [], {"n": 0}, list(range(N)))
            assert "torch's own loader as it is" in repr(loader)
            assert close(list(loader), list(TorchLoader(other, BATCH)))
            assert dataset.log == other.log and dataset.count == N

    def test_lists_deep_in_long_lists(self, numbered: Path) -> None:
        class Notes(Photos):
            def __init__(self, root: Path):
                super().__init__(root)
                self.notes = [(i, (i, [])) for i in range(2000)]

            def __getitem__(self, i: int) -> Any:
                self.notes[i][1][1].append(i)
                return super().__getitem__(i)

        dataset = Notes(numbered)
        with DataLoader(dataset, BATCH, device="cpu"):
            assert not any(noted for _, (_, noted) in dataset.notes)

    def test_images_that_a_script_keeps_open(self, numbered: Path) -> None:
        class Open(Photos):
            def __init__(self, root: Path):
                super().__init__(root)
                self.images = [Image.open(path) for path in self.paths]

            def __getitem__(self, i: int) -> Any:
                return self.transform(self.images[i].convert("RGB")), i

        dataset = Open(numbered)
        with DataLoader(dataset, BATCH, device="cpu", engine="dali") as loader:
            first = list(loader)
        assert close(list(TorchLoader(dataset, BATCH)), first)
        for image in dataset.images:
            image.close()


def refused(dataset: Any) -> str:
    with pytest.raises(Exception) as e:  # noqa: PT011
        DataLoader(dataset, BATCH, device="cpu", engine="dali")
    return str(e.value)


class TestRefused:
    """The script decides what its transforms draw, or what it gets depends on what no stand-in can be."""

    @pytest.mark.parametrize("rarely", [False, True])
    def test_seeds_by_index(self, rarely: bool, numbered: Path) -> None:
        class Repeats(Photos):
            def __getitem__(self, i: int) -> Any:
                if not rarely or i == RARE:
                    torch.manual_seed(i)
                return super().__getitem__(i)

        assert "sets the state of a random generator" in refused(Repeats(numbered, TRAIN))
        batches(Repeats(numbered, EVAL), "dali")  # which draws nothing

    def test_seeds_in_a_method_that_is_decorated_like_another(self, numbered: Path) -> None:
        def logged(method: Any) -> Any:
            return lambda *given: method(*given)

        class Repeats(Photos):
            @logged
            def __getitem__(self, i: int) -> Any:
                return self.transform(self.load(i)), i

            @logged
            def load(self, i: int) -> Any:
                if i == RARE:
                    torch.manual_seed(i)
                return self.opened(i)

        assert "sets the state of a random generator" in refused(Repeats(numbered, TRAIN))

    def test_seeds_in_a_setter(self, numbered: Path) -> None:
        class Repeats(Photos):
            @property
            def last(self) -> int:
                return 0

            @last.setter
            def last(self, i: int) -> None:
                if i == RARE:
                    torch.manual_seed(i)

            def __getitem__(self, i: int) -> Any:
                self.last = i
                return super().__getitem__(i)

        assert "sets the state of a random generator" in refused(Repeats(numbered, TRAIN))

    def test_two_views_with_one_seed(self, numbered: Path) -> None:
        def draw(state: Any = None) -> Any:
            restore = getattr(torch, "set_rng_" + "state")
            return torch.get_rng_state() if state is None else restore(state)

        class Alike(Photos):
            def __getitem__(self, i: int) -> Any:
                state = draw()
                one = self.transform(self.opened(i))
                draw(state)
                return one, self.transform(self.opened(i)), i

        assert "sets the state of a random generator" in refused(Alike(numbered, TRAIN))

    def test_types_that_are_compared(self, numbered: Path) -> None:
        class Compares(Photos):
            def __getitem__(self, i: int) -> Any:
                x = self.transform(self.opened(i))
                return (x if type(x) is torch.Tensor else x / 2), i

        assert "asks for the type()" in refused(Compares(numbered))

    def test_what_stand_ins_change(self, numbered: Path) -> None:
        kind = "__class__"  # a name that is not in the code

        class Differs(Photos):
            def __getitem__(self, i: int) -> Any:
                x = self.transform(self.opened(i))
                return x, (1 if "Pending" in str(getattr(x, kind)) else 0)

        assert "makes a different sample" in refused(Differs(numbered))

    def test_most_samples_are_looked_at(self, numbered: Path) -> None:
        class LooksAlways(Photos):
            def __getitem__(self, i: int) -> Any:
                x = self.transform(self.opened(i))
                return x, float(x.std())

        assert "computes with images after a transform that it holds (std)" in refused(LooksAlways(numbered))


def test_torch_takes_over_if_most_samples_are_made_by_hand(
    numbered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpupipe.loader import native

    monkeypatch.setattr(native, "_ENOUGH", 16)

    look = tmp_path / "look"

    class Later(Photos):
        def __getitem__(self, i: int) -> Any:
            x = self.transform(self.opened(i))
            return (x.sqrt().square() if look.exists() else x), i

    dataset = Later(numbered)
    with DataLoader(dataset, BATCH, device="cpu") as loader:
        want = list(loader)
        look.touch()
        with warned() as texts:
            for _ in range(3):
                assert close(list(loader), want)
        (text,) = texts
        assert "Later's own code made" in text and "torch's own loader as it is" in repr(loader)
