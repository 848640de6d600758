"""Scripts' own datasets, arrangers and collate functions on gpupipe's engines: what they give is torch's."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from own_datasets import EVAL, Photos
from PIL import Image, ImageDraw, ImageFile
from support import BATCH, SIZES, N, warned
from torch.utils import data
from torchvision import datasets as tv, transforms as tvt

from gpupipe import DataLoader, FallbackWarning
from gpupipe.loader.native import NativeSession


class WithOpen(Photos):
    def opened(self, i: int) -> Image.Image:
        with open(self.paths[i], "rb") as file:
            return Image.open(file).convert("RGB")


class Gray(Photos):
    def opened(self, i: int) -> Image.Image:
        return Image.open(self.paths[i]).convert("L")


class Looks(Photos):
    """It changes the image before its transform, so what an engine gets is pixels."""

    def opened(self, i: int) -> Image.Image:
        image = super().opened(i)
        return image.rotate(90) if i % 2 else image


class Dicts(Photos):
    def __getitem__(self, i: int) -> Any:
        return {"image": self.transform(self.opened(i)), "id": f"photo {i}", "box": torch.tensor([i, 2.5])}


class Named(NamedTuple):
    image: Any
    label: int


class NamedTuples(Photos):
    def __getitem__(self, i: int) -> Any:
        return Named(self.transform(self.opened(i)), i)


class Deep(Photos):
    def __getitem__(self, i: int) -> Any:
        return i, [self.transform(self.opened(i)), {"name": (f"{i}", 1.5)}]


class Alone(Photos):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.opened(i))


class Twice:
    """Two views, as every contrastive method has them."""

    def __init__(self, one: Any, two: Any):
        self.one, self.two = one, two

    def __call__(self, image: Any) -> Any:
        return [self.one(image), self.two(image)]


class WeakStrong(Photos):
    def __init__(self, root: Path):
        super().__init__(root)
        self.strong = tvt.Compose([tvt.Resize((24, 20)), tvt.ToTensor(), tvt.Normalize((0.5,) * 3, (0.5,) * 3)])

    def __getitem__(self, i: int) -> Any:
        image = self.opened(i)
        return (self.transform(image), self.strong(image)), i


UNLIKE = tvt.Compose([tvt.Resize(40), tvt.CenterCrop(32), tvt.ToTensor()])
TWO = Twice(EVAL, tvt.Compose([tvt.Resize((20, 24)), tvt.ToTensor()]))

MAKE: dict[str, Callable[[Path], Any]] = {
    **{cls.__name__: cls for cls in (Photos, WithOpen, Gray, Looks, Dicts, NamedTuples, Deep, Alone, WeakStrong)},
    "Subset": lambda root: data.Subset(Dicts(root), [3, 1, 4, 1, 5, 9]),
    "ConcatDataset": lambda root: data.ConcatDataset([Photos(root), Photos(root)]),
    "folders after each other": lambda root: data.ConcatDataset(
        [tv.ImageFolder(str(root), EVAL), data.Subset(tv.ImageFolder(str(root), EVAL), [3, 1])]
    ),
    "StackDataset": lambda root: data.StackDataset(image=tv.ImageFolder(str(root), EVAL), more=torch.arange(N) / 4),
    "random_split": lambda root: data.random_split(Dicts(root), [N - 9, 9], torch.Generator().manual_seed(1))[1],
    "two views": lambda root: Photos(root, TWO),
    "two views of a folder": lambda root: tv.ImageFolder(str(root), TWO),
    "a preset": lambda root: tv.ImageFolder(str(root), Wrapped()),
    "own loader": lambda root: tv.ImageFolder(str(root), EVAL, loader=lambda path: Image.open(path).convert("RGB")),
    "convert": lambda root: Photos(root, tvt.Compose([lambda image: image.convert("RGB"), EVAL])),
    "FakeData": lambda _: tv.FakeData(11, (3, 40, 50), 3, EVAL),
}


class Wrapped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = EVAL

    def forward(self, image: Any) -> Any:
        return self.steps(image)


def same_batch(ours: Any, theirs: Any) -> None:
    """Same containers, types, shapes and values; images within the promises of a resize."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same_batch(a, b)
    elif isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        difference = (ours.double() - theirs.double()).abs()
        assert ours.ndim < 4 or float(difference.mean()) * 255 < 1
        assert ours.ndim == 4 or float(difference.max()) == 0
    else:
        assert ours == theirs


@pytest.mark.part("name", "engine", "workers", of=5)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ["dali", "torch"])
@pytest.mark.parametrize("name", MAKE)
@pytest.mark.filterwarnings("error::gpupipe.GpupipeWarning")
def test_batches_are_torchs(name: str, engine: Any, workers: int, numbered: Path) -> None:
    if workers and name not in ("Photos", "Dicts"):
        pytest.skip("what workers do is the same for all of them")
    with DataLoader(MAKE[name](numbered), BATCH, num_workers=workers, engine=engine, device="cpu") as loader:
        assert isinstance(loader._session, NativeSession)
        for ours, theirs in zip(loader, data.DataLoader(MAKE[name](numbered), BATCH), strict=True):
            same_batch(ours, theirs)


@pytest.mark.parametrize("name", ["Photos", "two views of a folder", "NamedTuples", "WeakStrong"])
@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_a_collate_function_gets_the_samples_of_the_dataset(name: str, engine: Any, numbered: Path) -> None:
    def whole(samples: list[Any]) -> Any:
        return [type(sample) for sample in samples], data.default_collate(samples)

    with DataLoader(MAKE[name](numbered), BATCH, collate_fn=whole, engine=engine, device="cpu") as loader:
        assert isinstance(loader._session, NativeSession)
        theirs = data.DataLoader(MAKE[name](numbered), BATCH, collate_fn=whole)
        for (kinds, ours), (their_kinds, their_batch) in zip(loader, theirs, strict=True):
            assert kinds == their_kinds
            same_batch(ours, their_batch)


def test_a_collate_function_draws_for_its_batch(numbered: Path, rng_untouched: None) -> None:
    def mixed(samples: list[Any]) -> Any:
        images, labels = data.default_collate(samples)
        return images, labels, torch.rand(2), random.random()

    def epoch(number: int) -> list[Any]:
        with DataLoader(Photos(numbered), BATCH, collate_fn=mixed, seed=4, device="cpu") as loader:
            loader.set_epoch(number)
            return [(drawn.tolist(), other) for _, _, drawn, other in loader]

    assert epoch(0) == epoch(0) != epoch(1)
    assert len({str(drawn) for drawn in epoch(0)}) == 5


class Refusing(Photos):
    """Each of these is left to torch's loader, and why is said."""

    def __init__(self, root: Path, how: str):
        super().__init__(root)
        self.how = how
        self.count = 1

    def __getitem__(self, i: int) -> Any:
        image = self.opened(i)
        if self.how == "counts":
            self.count += 1
        if self.how == "after":
            return self.transform(image).sqrt(), i
        return self.transform(image), i


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("counts", "reading a sample changes its count"),
        ("after", "computes with images after a transform that it holds .sqrt."),
    ],
)
def test_what_does_more_is_left_to_torch(how: str, why: str, numbered: Path) -> None:
    with pytest.warns(FallbackWarning, match=why) as seen:
        loader = DataLoader(Refusing(numbered, how), BATCH, device="cpu")
    assert len(seen) == 1
    assert len(list(loader)) == 5


def test_transforms_chosen_by_sample_are_recorded_as_they_run(numbered: Path) -> None:
    class Chooses(Photos):
        def __getitem__(self, i: int) -> Any:
            return (self.transform if i % 2 else UNLIKE)(self.opened(i)), i

    ds = Chooses(numbered)
    with DataLoader(ds, BATCH, device="cpu") as loader:
        assert "engine: dali" in repr(loader)
        for images, numbers in loader:
            want = torch.stack([ds[i][0] for i in numbers.tolist()])
            torch.testing.assert_close(images, want, atol=2.5 / 255, rtol=0)
        assert not loader.stats()["by_hand"]


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_a_sample_that_is_unlike_those_before_is_what_torch_makes_of_it(engine: Any, numbered: Path) -> None:
    class Rare(Photos):
        def __getitem__(self, i: int) -> Any:
            return (self.transform(self.opened(i)), i) if i != 2 else (i, self.transform(self.opened(i)))

    with (
        DataLoader(Rare(numbered), BATCH, device="cpu", engine=engine) as loader,
        pytest.raises(TypeError, match="expected Tensor as element 2"),
    ):
        next(iter(loader))
    with DataLoader(Rare(numbered), BATCH, device="cpu", engine=engine, collate_fn=list) as loader:
        samples = [sample for batch in loader for sample in batch]
        assert [sample[0] if i == 2 else sample[1] for i, sample in enumerate(samples)] == list(range(N))
        assert samples[2][1].shape == samples[3][0].shape and loader.stats()["by_hand"] == 1


def test_nothing_is_decoded_by_user_code(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Any) -> Any:
        raise AssertionError("decoded by Pillow")

    with DataLoader(Photos(numbered), BATCH, engine="dali", device="cpu") as loader:
        monkeypatch.setattr(ImageFile.ImageFile, "load", load)
        assert len(list(loader)) == 5


def test_bad_files_are_named(tmp_path: Path, numbered: Path) -> None:
    root = Path(shutil.copytree(numbered, tmp_path / "photos"))
    sorted(root.rglob("*.jpg"))[7].write_bytes(b"nothing")
    with DataLoader(Photos(root), BATCH, on_error="skip", device="cpu") as loader:
        got = [int(i) for _, labels in loader for i in labels]
        assert got == [i for i in range(N) if i != 7]
        (bad,) = loader.report().samples
        assert bad.index == 7


class Maybe:
    """User code that draws, and most times does nothing: it must not be taken for what never does anything."""

    def __init__(self, share: float):
        self.share = share

    def __call__(self, image: Any) -> Any:
        return image.point(lambda value: 255 - value) if random.random() < self.share else image


class OnlyLarge:
    def __call__(self, image: Any) -> Any:
        return image.point(lambda value: 255 - value) if image.width > 75 else image


def inverted(images: torch.Tensor, plain: torch.Tensor) -> list[bool]:
    return [bool((a - (1 - b)).abs().mean() < 0.01) for a, b in zip(images, plain, strict=True)]


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_functions_that_seldom_do_something_are_called(engine: Any, numbered: Path) -> None:
    end = [tvt.Resize((32, 32)), tvt.ToTensor()]
    plain = next(iter(data.DataLoader(Photos(numbered, tvt.Compose(end)), N)))[0]

    def images(function: Any, epoch: int = 0) -> torch.Tensor:
        dataset = Photos(numbered, tvt.Compose([function, *end]))
        with DataLoader(dataset, N, engine=engine, seed=1, device="cpu") as loader:
            loader.set_epoch(epoch)
            found: torch.Tensor = next(iter(loader))[0]
            return found

    drawn = [inverted(images(Maybe(0.1), epoch), plain) for epoch in range(20)]
    assert 20 < sum(map(sum, drawn)) < 80  # 46 are expected
    assert inverted(images(OnlyLarge()), plain) == [SIZES[i % len(SIZES)][1] > 75 for i in range(N)]


class ErasesInArrays(Photos):
    """It seldom writes to an array of the image, after a draw."""

    share = 0.1

    def __getitem__(self, i: int) -> Any:
        pixels, draw = np.array(self.opened(i)), random.random()
        if draw < self.share:
            pixels[:8] = 0
        return self.transform(pixels), draw


class LeavesArrays(ErasesInArrays):
    share = 0.0


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_code_that_seldom_looks_at_an_array_does_so_as_often_as_it_draws(engine: Any, numbered: Path) -> None:
    def draws(kind: type[Photos]) -> Any:
        with DataLoader(
            kind(numbered, tvt.Compose([tvt.ToPILImage(), EVAL])), N, seed=1, engine=engine, device="cpu"
        ) as loader:
            return torch.stack([next(iter(loader))[1] for _ in range(6)])

    found = draws(ErasesInArrays)
    assert torch.equal(found, draws(LeavesArrays)) and (found < 0.1).any()


class Blackened(Photos):
    """It writes to an image after a transform, and transforms it again."""

    crop = tvt.Compose([tvt.RandomCrop(16), tvt.ToTensor()])

    def __getitem__(self, i: int) -> Any:
        image = self.opened(i)
        first = self.crop(image)
        self.blacken(image)
        return first, self.crop(image), i

    def blacken(self, image: Image.Image) -> None:
        image.paste((0, 0, 0), (0, 0, *image.size))


class BlackenedFiles(Blackened):
    def opened(self, i: int) -> Image.Image:
        return Image.open(self.paths[i])

    def blacken(self, image: Image.Image) -> None:
        ImageDraw.Draw(image).rectangle((0, 0, *image.size), fill=0)


class BlackenedPixels(BlackenedFiles):
    def opened(self, i: int) -> Image.Image:
        return Image.fromarray(np.array(Image.open(self.paths[i]).convert("RGB")))


@pytest.mark.parametrize("kind", [Blackened, BlackenedFiles, BlackenedPixels])
def test_a_transform_sees_the_image_as_it_was_then(kind: Any, numbered: Path) -> None:
    pytest.importorskip("nvidia.dali")
    with DataLoader(kind(numbered), batch_size=BATCH, engine="dali", device="cpu") as loader:
        for first, second, _ in loader:
            assert bool((first.amax((1, 2, 3)) > 0).all()) and float(second.max()) == 0


from_numpy, from_python = np.random.randint, random.randint  # as after "from numpy.random import randint"


class DrawsByName(Photos):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.opened(i)), (from_numpy(0, 1000), from_python(0, 999))


class HoldsDraws(Photos):
    def __init__(self, root: Path):
        super().__init__(root)
        self.draws = np.random.randint, random.randrange

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.opened(i)), tuple(draw(1000) for draw in self.draws)


@pytest.mark.parametrize("kind", [DrawsByName, HoldsDraws])
def test_functions_of_the_global_generators_may_be_held_and_named(kind: Any, numbered: Path) -> None:
    pytest.importorskip("nvidia.dali")
    random.seed(3), np.random.seed(3)  # noqa: NPY002
    with DataLoader(kind(numbered), batch_size=BATCH, engine="dali", device="cpu") as loader:
        epochs = [torch.cat([torch.stack(numbers) for _, numbers in loader], 1) for _ in range(2)]
    for numbers in torch.cat(epochs, 1).tolist():
        assert len(set(numbers)) > N, "one number is drawn again and again"


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_views_of_functions_that_differ_in_what_they_hold(engine: Any, numbered: Path) -> None:
    end = [tvt.Resize((32, 32)), tvt.ToTensor()]
    views = Twice(tvt.Compose([Maybe(0.0), *end]), tvt.Compose([Maybe(1.0), *end]))
    with DataLoader(Photos(numbered, views), N, engine=engine, device="cpu") as loader:
        (one, two), _ = next(iter(loader))
    assert all(inverted(two, one))


TURN = tvt.Compose([tvt.RandomHorizontalFlip(), tvt.ToTensor()])


class Turned(Photos):
    def __getitem__(self, i: int) -> Any:
        return TURN(self.opened(i))


class NotTurned(Turned):
    """Its own method comes before that of the class that it derives from, whose transform is marked."""

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.opened(i)), i


class SeveralOfOne(Photos):
    """Parts of one random result: only one of them goes on as a tensor."""

    def __init__(self, root: Path):
        super().__init__(root, tvt.Compose([tvt.Resize((24, 24)), tvt.RandomHorizontalFlip(), tvt.ToTensor()]))
        self.end = tvt.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))

    def __getitem__(self, i: int) -> Any:
        image = self.transform(self.opened(i))
        return image, self.end(image)


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_the_method_of_a_derived_class_is_the_one_that_runs(engine: Any, numbered: Path) -> None:
    dataset = NotTurned(numbered, tvt.Compose([tvt.Resize((20, 20)), tvt.ToTensor()]))
    with DataLoader(dataset, N, engine=engine, device="cpu") as loader:
        images, numbers = next(iter(loader))
    assert images.shape == (N, 3, 20, 20) and numbers.tolist() == list(range(N))


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_a_result_and_what_is_made_of_it(engine: Any, numbered: Path) -> None:
    with DataLoader(SeveralOfOne(numbered), N, engine=engine, device="cpu") as loader:
        image, end = next(iter(loader))
    assert loader.stats()["by_hand"] == 0
    torch.testing.assert_close((image - 0.5) / 0.25, end)


class Tiny(data.Dataset[Any]):
    """A script's own, which computes images from one array."""

    def __init__(self, size: int, *before: Any):
        self.images = np.random.default_rng(0).integers(0, 256, (12, size, size, 3), np.uint8)
        self.transform = tvt.Compose([*before, tvt.RandomCrop(8), tvt.ToTensor()])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Any:
        return self.transform(Image.fromarray(255 - self.images[i])), i


@pytest.mark.parametrize(("size", "options", "taken"), [
    (32, {}, "torch"), (33, {}, "dali"), (32, {"exclude": [1]}, "dali"), (32, {"on_error": "skip"}, "dali"),
])  # fmt: skip
def test_torchs_loader_takes_small_images_in_memory(size: int, options: dict[str, Any], taken: str) -> None:
    with warned() as told, DataLoader(Tiny(size), 4, device="cpu", **options) as loader:
        assert isinstance(loader._session, NativeSession) == (taken == "dali")
        assert len(list(loader)) == 3
    assert ["#small-images" in text for text in told] == ([True] if taken == "torch" else [])
    with DataLoader(Tiny(size), 4, device="cpu", engine="dali") as loader:
        assert loader.engine == "dali"


@pytest.mark.parametrize(("before", "taken"), [
    ([tvt.RandomRotation(9), tvt.RandomHorizontalFlip()], "torch"), ([tvt.ColorJitter(0.2)], "dali"),
    ([tvt.RandomApply([tvt.GaussianBlur(3)])], "dali"), ([tvt.Resize(64), tvt.CenterCrop(64)], "torch"),
])  # fmt: skip
def test_but_none_whose_transforms_take_their_time(before: list[Any], taken: str) -> None:
    with warned(), DataLoader(Tiny(32, *before), 4, device="cpu") as loader:
        assert isinstance(loader._session, NativeSession) == (taken == "dali")
        assert len(list(loader)) == 3


def test_nor_if_they_make_large_images() -> None:
    dataset = Tiny(32)
    dataset.transform = tvt.Compose([tvt.Resize(65), tvt.ToTensor()])
    with DataLoader(dataset, 4, device="cpu") as loader:
        assert isinstance(loader._session, NativeSession) and len(list(loader)) == 3
