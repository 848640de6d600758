"""Datasets that move images and masks by their own code: every value is what the code makes with the same draws."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torchvision")

from PIL import Image, ImageDraw
from torch.utils.data import default_collate
from torchvision import transforms as T, tv_tensors
from torchvision.transforms import functional as F, v2

from gpupipe import DataLoader, FallbackWarning, transforms as ours
from gpupipe.global_rng import lent, seed_all
from gpupipe.rng import stream
from gpupipe.transforms import ops
from gpupipe.transforms.boxes import BatchBoxes

from .corpus.targets import Detection, Files
from .corpus.written import DATASETS, Cut, Named, RandomFlip
from .harness.tree import make_tree

SEED, BATCH = 7, 6
LEVELS = 4.5 / 255 / 0.224
"""Four gray levels after Normalize: how far an image that DALI's engine resizes twice may be from Pillow's."""


def in_lists(batch: list[Any]) -> Any:
    return list(zip(*batch, strict=True))


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


def check(ds: Any, loader: Any, collate: Callable[[list[Any]], Any]) -> None:
    """Compare all values of two epochs with what the dataset's own code makes of the same draws."""
    for epoch in range(2):
        for n, made in enumerate(loader):
            with lent():
                samples = []
                for i in range(n * BATCH, min(len(ds), (n + 1) * BATCH)):
                    seed_all(stream(SEED, epoch, "opaque", i))
                    samples.append(ds[i])
            for got, theirs in zip(leaves(made), leaves(collate(samples)), strict=True):
                assert type(got) is type(theirs)
                if not isinstance(theirs, torch.Tensor):
                    assert got == theirs
                else:
                    is_image = theirs.dtype == torch.float32 and theirs.ndim >= 3
                    torch.testing.assert_close(got, theirs, atol=LEVELS if is_image else 0, rtol=0)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("written"))


@pytest.mark.part("name", of=3)
@pytest.mark.parametrize("engine", ["dali", pytest.param("torch", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", DATASETS)
def test_every_value_is_what_the_code_makes(name: str, engine: str, tree: Path) -> None:
    ds = DATASETS[name](tree)
    options = {"collate_fn": in_lists} if name == "detr" else {}
    with DataLoader(ds, BATCH, seed=SEED, engine=engine, **options) as loader:
        check(ds, loader, options.get("collate_fn", default_collate))
        by_hand = loader.stats()["by_hand"]
    assert by_hand < len(ds) if name in ("sometimes", "strong") else not by_hand


class Pair(Files):
    """Both flipped, and what a subclass does to the image in between."""

    def between(self, image: Any) -> Any:
        return image

    def __getitem__(self, i: int) -> Any:
        image, mask = self.image(i).resize((40, 40)), self.mask(i).resize((40, 40), 0)
        if random.random() < 0.5:
            image, mask = F.hflip(image), F.hflip(mask)
        image = self.between(image)
        top, left = random.randint(0, 8), random.randint(0, 8)
        image, mask = F.crop(image, top, left, 32, 32), F.crop(mask, top, left, 32, 32)
        return F.to_tensor(image), np.array(mask), i


class Draws(Pair):
    """It writes to the image."""

    def between(self, image: Any) -> Any:
        ImageDraw.Draw(image).rectangle((4, 4, 30, 12), fill=(255, 0, 0))
        return image


class Decides(Pair):
    """It looks at a pixel, and goes on with the image."""

    def between(self, image: Any) -> Any:
        return F.vflip(image) if image.getpixel((3, 3))[0] > 128 else image


class Copies(Pair):
    """It keeps a copy that it writes to."""

    def between(self, image: Any) -> Any:
        image.copy().paste((0, 0, 0), (0, 0, 20, 20))
        return image


class Thumbnails(Pair):
    """It changes the image in place."""

    def between(self, image: Any) -> Any:
        image.thumbnail((36, 36))
        return image.resize((40, 40))


class Repeats(Pair):
    """It returns one image twice, and one further on."""

    def __getitem__(self, i: int) -> Any:
        image, mask, i = super().__getitem__(i)
        return image, image, image.flip(-1), mask, i


class Counts(Pair):
    """It has draws of its own, which go on from sample to sample."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.random = random.Random(3)

    def between(self, image: Any) -> Any:
        return F.vflip(image) if self.random.random() < 0.5 else image


class Closes(Pair):
    """It closes its files before anything is decoded."""

    def image(self, i: int) -> Image.Image:
        path = self.root / "images" / f"{self.names[i]}.jpg"
        if i % 2:
            with Image.open(path) as opened:
                return opened.resize((48, 44)) if opened.mode == "RGB" else opened.convert("RGB")
        with open(path, "rb") as file:
            image = Image.open(file)
            return image.resize((48, 44)) if image.mode == "RGB" else image.convert("RGB")


@pytest.mark.parametrize("kind", [Draws, Decides, Copies, Thumbnails, Repeats, Closes])
@pytest.mark.filterwarnings("ignore::gpupipe.GpupipeWarning")
def test_code_that_looks_or_writes_sees_the_image(kind: type, tree: Path) -> None:
    ds = kind(tree, None)
    with DataLoader(ds, BATCH, seed=SEED) as loader:
        if "engine: dali" in repr(loader):
            check(ds, loader, default_collate)
        else:
            assert kind not in (Repeats, Closes)


JOINT = v2.Compose([v2.RandomCrop(24), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.uint8)])


class Beside(Files):
    """A mask of the numbers of pixels, and another image that is transformed first, or returned first, or both."""

    def __init__(self, root: Any, way: str):
        super().__init__(root, JOINT)
        self.way, self.other = way, T.Compose([T.RandomCrop(24), T.PILToTensor()])

    def pixels(self, i: int) -> Any:
        return self.image(i).convert("RGB")

    def __getitem__(self, i: int) -> Any:
        image = self.pixels(i)
        numbers = torch.arange(image.width * image.height, dtype=torch.int32).view(image.height, image.width)
        second = self.image(i - 1) if "gray" not in self.way else self.image(i - 1).convert("L")
        if "before" in self.way:
            second = self.other(second)
        image, mask = self.transforms(image, tv_tensors.Mask(numbers))
        if "after" in self.way:
            second = self.other(second)
        return (second, image, mask, i) if "first" in self.way else (image, second, mask, i)


@pytest.mark.parametrize("way", ["before", "after", "before, first", "after, first", "gray, before, first"])
@pytest.mark.filterwarnings("ignore::gpupipe.GpupipeWarning")
def test_targets_follow_the_image_that_they_belong_to(way: str, tree: Path) -> None:
    ds = Beside(tree, way)
    with DataLoader(ds, BATCH, seed=SEED) as loader:
        for *images, masks, numbers in loader:
            for image, mask, i in zip(images["first" in way], masks, numbers.tolist(), strict=True):
                pixels = torch.from_numpy(np.array(ds.pixels(i))).view(-1, 3)
                assert torch.equal(pixels[mask.long()].permute(2, 0, 1), image)


class Views(Cut):
    """Two arrays with the same memory, of which one is changed in place."""

    def finish(self, image: Any) -> Any:
        array = np.array(image).astype(np.float32)
        view = array.transpose(2, 0, 1)
        array /= 255
        return torch.from_numpy(view)


class SharedMemory(Cut):
    """A tensor and an array with the same memory."""

    def finish(self, image: Any) -> Any:
        array = np.array(image).astype(np.float32)
        tensor = torch.from_numpy(array)
        array -= 3.5
        return tensor.permute(2, 0, 1)


class TensorViews(Cut):
    """A view of a tensor that is changed in place."""

    def finish(self, image: Any) -> Any:
        tensor = F.to_tensor(image)
        view = tensor.view(3, 32, 32)
        tensor.sub_(0.5).div_(torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1))
        return view


class Window(Cut):
    """A window of a tensor that is changed in place."""

    def finish(self, image: Any) -> Any:
        tensor = F.to_tensor(image)
        window = tensor[:, 8:24, 8:24]
        tensor.sub_(0.5)
        return window


class SameTensor(Cut):
    """A transform returns the tensor itself, which is then changed in place."""

    erase = T.RandomErasing(0.0)

    def finish(self, image: Any) -> Any:
        tensor = F.to_tensor(image)
        same = self.erase(tensor)
        tensor.sub_(0.5)
        return same


class CopyOfBefore(Cut):
    """A copy of a mask, which then changes in place, and the changed mask."""

    def __getitem__(self, i: int) -> Any:
        image = F.center_crop(self.image(i), 32)
        mask = F.to_tensor(F.center_crop(self.mask(i).convert("L"), 32))
        before = mask.clone()
        mask[mask > 0.01] = 1
        return F.to_tensor(image), mask - before, i


class SameTensorLater(SameTensor):
    def finish(self, image: Any) -> Any:
        tensor = F.to_tensor(image)
        self.erase(tensor).sub_(0.5)
        return tensor


class Branches(Cut):
    """It looks at values."""

    def finish(self, image: Any) -> Any:
        array = np.array(image).astype(np.float32)
        return torch.from_numpy((array / 255 if array.max() > 200 else array).transpose(2, 0, 1))


class Bytes(Cut):
    """Sums of bytes overflow."""

    def finish(self, image: Any) -> Any:
        return torch.from_numpy((np.array(image) * 2).transpose(2, 0, 1))


class Returned(Cut):
    """It returns an array."""

    def finish(self, image: Any) -> Any:
        return (np.array(image).astype(np.float32) / 255).transpose(2, 0, 1)


class Scaled(Cut):
    """It draws the number."""

    def finish(self, image: Any) -> Any:
        return torch.from_numpy((np.array(image) / 255 * random.uniform(0.5, 1.5)).transpose(2, 0, 1)).float()


class TypedTensors(Cut):
    """It asks for the type of a tensor, and changes a copy by numbers of another type."""

    def finish(self, image: Any) -> Any:
        tensor = torch.from_numpy(np.array(image).transpose((2, 0, 1)))
        tensor = tensor if isinstance(tensor, torch.FloatTensor) else tensor.float()
        tensor = tensor.clone().sub_(3).mul_(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64).view(3, 1, 1))
        return tensor / 255


class WrittenTensors(Cut):
    """Tensors that nothing else shares, changed in place."""

    def finish(self, image: Any) -> Any:
        tensor = F.to_tensor(image)
        tensor.sub_(0.5).div_(torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1))
        tensor *= 2
        return tensor


class TypedNumbers(Cut):
    """Numbers of numpy have types of their own."""

    def finish(self, image: Any) -> Any:
        array = np.array(image, np.float32) / np.float64(255) * np.float32(2) - 1
        array *= np.array([0.1, 0.2, 0.3])
        return torch.as_tensor(array.transpose(2, 0, 1))


LEFT = [
    Views,
    SharedMemory,
    TensorViews,
    Window,
    CopyOfBefore,
    SameTensor,
    SameTensorLater,
    Branches,
    Bytes,
    Returned,
    Scaled,
]


@pytest.mark.parametrize("kind", [*LEFT, TypedTensors, TypedNumbers, WrittenTensors], ids=lambda kind: kind.__name__)
@pytest.mark.filterwarnings("ignore::gpupipe.GpupipeWarning")
def test_arithmetic_is_bit_equal_or_left_to_torch(kind: type, tree: Path) -> None:
    """With the reference, which does to every image what the code does."""
    ds = kind(tree)
    with DataLoader(ds, BATCH, seed=SEED, engine="torch") as loader:
        if "own loader" in repr(loader):
            assert kind in LEFT
            return
        assert kind not in LEFT
        for epoch in range(2):
            for n, (images, masks, _) in enumerate(loader):
                with lent():
                    samples = []
                    for i in range(n * BATCH, min(len(ds), (n + 1) * BATCH)):
                        seed_all(stream(SEED, epoch, "opaque", i))
                        samples.append(ds[i])
                wanted = default_collate(samples)
                assert images.dtype == wanted[0].dtype
                assert torch.equal(images, wanted[0]) and torch.equal(masks, wanted[1])


class ByBoxes(Detection):
    """Crops that are drawn by boxes, with a mask of the numbers of pixels."""

    def __init__(self, root: Any, format: str, dtype: torch.dtype, steps: list[Any]):
        super().__init__(root, v2.Compose([*steps, v2.ToImage(), v2.SanitizeBoundingBoxes(min_size=2)]))
        self.format, self.dtype = format, dtype

    def target(self, i: int) -> dict[str, Any]:
        found = super().target(i)
        found["boxes"] = v2.functional.convert_bounding_box_format(found["boxes"], new_format=self.format).to(
            self.dtype
        )
        height, width = found["boxes"].canvas_size
        numbers = torch.arange(1, 1 + height * width, dtype=torch.int32).view(height, width)
        masks = [tv_tensors.Mask(numbers + k) for k in range(len(found["boxes"]))]
        return found | {"masks": tv_tensors.Mask(torch.stack(masks))}

    def moved(self, i: int, epoch: int) -> Any:
        """Return the sample as torchvision's functions make it with the numbers of gpupipe's native transforms."""
        image, target = self.image(i), self.target(i)
        values, format = target["boxes"].numpy(), self.format
        boxes = BatchBoxes(values, np.zeros(len(values), np.int64), format)  # type: ignore[arg-type]
        keys, sizes = np.array([i], np.uint64), np.array([[image.height, image.width]])
        for op in NATIVE.resolve(SEED, epoch, keys, sizes, boxes).ops:
            if isinstance(op, ops.Flip) and op.mask[0]:
                image, target = self._each(v2.functional.hflip, image, target)
            if not isinstance(op, ops.Crop) or op.passes(0):
                continue
            top, left, height, width = (int(n[0]) for n in (op.top, op.left, op.height, op.width))
            if op.padded:
                right, below = width + left - image.width, height + top - image.height
                image, target = self._each(
                    lambda x, s=(-left, -top, right, below): v2.functional.pad(x, [*s]), image, target
                )
                continue
            x1, y1, x2, y2 = v2.functional.convert_bounding_box_format(
                torch.Tensor(target["boxes"]).to(self.dtype), target["boxes"].format, "XYXY"
            ).unbind(-1)
            x, y = 0.5 * (x1 + x2), 0.5 * (y1 + y2)
            window = {"top": top, "left": left, "height": height, "width": width}
            inside = (left < x) & (x < left + width) & (top < y) & (y < top + height)
            assert inside.any()
            crop = v2.RandomIoUCrop()
            params = window | {"is_within_crop_area": inside}
            image, target = self._each(lambda x, p=params, c=crop: c.transform(x, p), image, target)
        return v2.SanitizeBoundingBoxes(min_size=2)(v2.functional.to_image(image), target)

    def _each(self, function: Any, image: Any, target: Any) -> Any:
        return function(image), target | {key: function(target[key]) for key in ("boxes", "masks")}


NATIVE = ours.Compose([ours.RandomZoomOut(side_range=(1, 2)), ours.RandomIoUCrop(), ours.RandomHorizontalFlip()])
SSD = [v2.RandomZoomOut(side_range=(1, 2)), v2.RandomIoUCrop(), v2.RandomHorizontalFlip()]


@pytest.mark.parametrize("engine", ["dali", "torch"])
@pytest.mark.parametrize(
    ("format", "dtype"), [("XYXY", torch.float32), ("XYWH", torch.int64), ("CXCYWH", torch.float64)]
)
def test_draws_by_boxes_are_those_of_the_native_transforms(
    engine: str, format: str, dtype: torch.dtype, tree: Path
) -> None:
    ds = ByBoxes(tree, format, dtype, SSD)
    cropped = 0
    with DataLoader(ds, BATCH, seed=SEED, engine=engine, collate_fn=in_lists) as loader:
        for epoch in range(2):
            made = [sample for batch in loader for sample in zip(*batch, strict=True)]
            for i, (image, target) in enumerate(made):
                wanted, theirs = ds.moved(i, epoch)
                torch.testing.assert_close(image, wanted, atol=1, rtol=0)
                assert target.keys() == theirs.keys() and torch.equal(target["labels"], theirs["labels"])
                for key in ("boxes", "masks"):
                    assert type(target[key]) is type(theirs[key]) and target[key].dtype == theirs[key].dtype
                    assert torch.equal(target[key], theirs[key]), (i, key)
                cropped += len(target["boxes"]) < len(ds.target(i)["boxes"])
        assert cropped > 2 and not loader.stats()["by_hand"]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([v2.ConvertBoundingBoxFormat("XYWH"), v2.RandomIoUCrop()], "before transforms that change boxes"),
        (
            [v2.RandomIoUCrop(), v2.ConvertBoundingBoxFormat("XYWH"), v2.RandomIoUCrop()],
            "before transforms that change",
        ),
    ],
)
def test_draws_by_changed_boxes_stay_with_torch(steps: list[Any], why: str, tree: Path) -> None:
    with pytest.warns(FallbackWarning, match=why):
        DataLoader(ByBoxes(tree, "XYXY", torch.float32, steps), BATCH, collate_fn=in_lists)


class InTwoCalls(ByBoxes):
    """The image is moved before the call that draws by boxes."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.flip = v2.RandomHorizontalFlip()

    def __getitem__(self, i: int) -> Any:
        image, target = self.image(i), self.target(i)
        image, target["boxes"], target["masks"] = self.flip(image, target["boxes"], target["masks"])
        return self.transforms(image, target)


class TwiceTheBoxes(ByBoxes):
    """It has boxes twice."""

    def __getitem__(self, i: int) -> Any:
        image, target = self.image(i), self.target(i)
        return self.transforms(image, target | {"more": target["boxes"]})


@pytest.mark.parametrize(("kind", "why"), [(InTwoCalls, "earlier call has moved"), (TwiceTheBoxes, "2 BoundingBoxes")])
def test_boxes_that_a_plan_cannot_have_stay_with_torch(kind: type, why: str, tree: Path) -> None:
    with pytest.warns(FallbackWarning, match=why):
        DataLoader(kind(tree, "XYXY", torch.float32, [v2.RandomIoUCrop()]), BATCH, collate_fn=in_lists)


def test_draws_of_a_generator_of_its_own_stay_with_torch(tree: Path) -> None:
    with pytest.warns(FallbackWarning, match="changes its"):
        DataLoader(Counts(tree, None), BATCH)


def test_a_replaced_method_runs(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crop(self: Image.Image, box: Any = None) -> Image.Image:
        return Image.new("RGB" if self.mode == "RGB" else "L", (32, 32), 7 if self.mode == "L" else (9, 9, 9))

    monkeypatch.setattr(Image.Image, "crop", crop)
    ds = Pair(tree, None)
    with DataLoader(ds, BATCH, seed=SEED) as loader:
        check(ds, loader, default_collate)


def test_nothing_stays_replaced(tree: Path) -> None:
    before = [Image.Image.crop, Image.Image.resize, F.to_tensor]
    with DataLoader(Pair(tree, None), BATCH) as loader:
        next(iter(loader))
    assert [Image.Image.crop, Image.Image.resize, F.to_tensor] == before


def test_workers_make_the_same_as_this_process(tree: Path) -> None:
    ds = Named(tree, lambda image, mask: (F.to_tensor(T.functional.resize(image, [24, 24])), np.array(mask).max()))
    ds.joint = Joined(ds.joint)
    made = []
    for workers in (0, 1):
        with DataLoader(ds, BATCH, seed=SEED, num_workers=workers) as loader:
            assert "engine: dali" in repr(loader)
            made.append([batch[0] for batch in loader])
    assert all(map(torch.equal, *made))


class Joined:
    def __init__(self, inner: Any):
        self.flip, self.inner = RandomFlip(F.hflip, 0.5), inner

    def __call__(self, image: Any, mask: Any) -> Any:
        return self.inner(*self.flip(image, mask))
