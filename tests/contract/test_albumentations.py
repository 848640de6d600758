"""Own Datasets that read arrays and hand them to albumentations: the files and the transforms go to the engine.

With the package itself if it is there, and with one that is like it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import albumentations_like
import numpy as np
import pytest
import torch
from PIL import Image
from support import BATCH, write_photos
from torch.utils.data import DataLoader as TorchLoader

from gpupipe import DataLoader
from gpupipe.engines import Dali
from gpupipe.errors import GpupipeError
from gpupipe.interop import translate_dataset

pytest.importorskip("nvidia.dali")

# It asks the network for a newer release when it is imported.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")


def _real() -> Any:
    module = pytest.importorskip("albumentations")
    module.ToTensorV2 = importlib.import_module("albumentations.pytorch").ToTensorV2
    return module


@pytest.fixture(params=[albumentations_like.package, _real], ids=["like", "real"])
def A(request: pytest.FixtureRequest) -> Any:
    return request.param()


def fixed(A: Any) -> Any:
    return A.Compose([A.CenterCrop(31, 32), A.HorizontalFlip(p=1.0), A.ToTensorV2()])


def drawing(A: Any) -> Any:
    return A.Compose([A.RandomCrop(32, 32), A.HorizontalFlip(p=0.5), A.ToTensorV2()])


class Photos:
    """``read`` makes an array of a path."""

    def __init__(self, root: Path, transform: Any, read: Any):
        self.files, self.transform, self.read = sorted(root.rglob("*.*g")), transform, read

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Any:
        return self.transform(image=self.read(self.files[i]))["image"], i


def by_pillow(path: Path) -> Any:
    return np.array(Image.open(path).convert("RGB"), dtype=np.uint8)


def as_opened(path: Path) -> Any:
    return np.asarray(Image.open(path))


def looked_at(path: Path) -> Any:
    image = np.array(Image.open(path).convert("RGB"))
    return image if image.mean() > 20 else 255 - image


def darkened(path: Path) -> Any:
    return np.array(Image.open(path).convert("RGB")) // 2


def through_pillow(path: Path) -> Any:
    return np.array(Image.fromarray(np.array(Image.open(path).convert("RGB"))))


def looks_and_catches(path: Path) -> Any:
    image = np.array(Image.open(path).convert("RGB"))
    try:
        return image if image.max() > 300 else 255 - image
    except Exception:
        return image


def gone_on(path: Path) -> Any:
    """Compiled code refuses what is no array, and somebody catches it."""
    image = np.array(Image.open(path).convert("RGB"))
    try:
        return torch.from_numpy(image).flip(0).numpy()
    except TypeError:
        return image


def gone_on_with_another(path: Path) -> Any:
    image = np.array(Image.open(path).convert("RGB"))
    try:
        memoryview(image)
    except TypeError:
        image = np.array(Image.open(next(path.parent.parent.rglob("*.jpg"))).convert("RGB"))
    return image


def by_cv2(path: Path) -> Any:
    cv2 = importlib.import_module("cv2")
    return cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)


def turned_by_hand(path: Path) -> Any:
    return importlib.import_module("cv2").imread(path, 1)[:, :, ::-1]


def blue_first(path: Path) -> Any:
    return importlib.import_module("cv2").imread(str(path))


def resized(path: Path) -> Any:
    cv2 = importlib.import_module("cv2")
    return cv2.resize(cv2.imread(str(path)), (48, 48))


READS = [
    by_pillow, as_opened, looked_at, darkened, through_pillow, looks_and_catches, gone_on, gone_on_with_another,
]  # fmt: skip
CV2_READS = [by_cv2, turned_by_hand, blue_first, resized]
NOT_DECODED = (by_pillow, as_opened, by_cv2, turned_by_hand)


@pytest.mark.parametrize("read", READS + CV2_READS)
@pytest.mark.filterwarnings("error::gpupipe.GpupipeWarning")
def test_the_same_pixels_from_whatever_opens_them(A: Any, read: Any, tmp_path: Path) -> None:
    if read in CV2_READS:
        pytest.importorskip("cv2")
    dataset: Any = Photos(write_photos(tmp_path), fixed(A), read)
    want = list(TorchLoader(dataset, batch_size=BATCH))
    for engine in ("auto", "torch"):
        with DataLoader(dataset, batch_size=BATCH, device="cpu", engine=engine) as loader:  # type: ignore[arg-type]
            assert ("engine: dali" in repr(loader)) == (engine == "auto")
            for (images, numbers), (images_want, numbers_want) in zip(loader, want, strict=True):
                assert torch.equal(images, images_want) and torch.equal(numbers, numbers_want)
    media, number, *_ = translate_dataset(dataset).fetch(2)
    assert number == 2 and isinstance(media, bytes) == (read in NOT_DECODED)


def test_numbers_belong_to_the_sample(A: Any, tmp_path: Path, rng_untouched: None) -> None:
    dataset: Any = Photos(write_photos(tmp_path), drawing(A), by_pillow)
    runs = []
    for engine, workers in (("dali", 0), ("dali", 2), ("torch", 2)):
        with DataLoader(
            dataset,
            BATCH,
            shuffle=True,
            seed=3,
            engine=engine,
            device="cpu",
            num_workers=workers,  # type: ignore[arg-type]
        ) as loader:
            runs.append([[images for images, _ in loader] for _ in range(2)])
    for run in runs[1:]:
        for epoch, want in zip(run, runs[0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(epoch, want, strict=True))
    assert not torch.equal(runs[0][0][0], runs[0][1][0])
    for n in range(len(runs[0][0])):
        with DataLoader(dataset, BATCH, shuffle=True, seed=3, device="cpu") as loader:
            it = iter(loader)
            for _ in range(n):
                next(it)
            state = loader.state_dict()
        with DataLoader(dataset, BATCH, shuffle=True, seed=3, device="cpu") as loader:
            loader.load_state_dict(state)
            rest = [images for images, _ in loader]
            assert all(torch.equal(a, b) for a, b in zip(rest, runs[0][0][n:], strict=True))


Steps = list[tuple[Any, ...]]
FIXED: dict[str, tuple[Steps, str]] = {
    "resize": ([("Resize", 40, 52)], "antialias=False"),
    "larger": ([("Resize", 140, 111)], "Resize(size=(140, 111)"),
    "nearest": ([("Resize", 41, 53, {"interpolation": 0})], "'nearest'"),
    "same size": ([("CenterCrop", 40, 41), ("Resize", 40, 41)], "Resize"),
    "smallest": ([("SmallestMaxSize", 37), ("CenterCrop", 35, 36)], "SmallestMaxSize(max_size=37"),
    "longest": ([("LongestMaxSize", 37), ("Resize", 35, 36)], "LongestMaxSize(max_size=37"),
    "window": ([("Resize", 64, 64), ("RandomResizedCrop", (32, 30), (1, 1), (1, 1))], "RandomResizedCrop"),
    "too wide": ([("Resize", 30, 95), ("RandomResizedCrop", (32, 32), (1, 1), (1, 1.01))], "RandomResizedCrop"),
    "flips": ([("Resize", 32, 33), ("HorizontalFlip", {"p": 1}), ("VerticalFlip", {"p": 1})], "VerticalFlip(p=1"),
    "crop": ([("Resize", 32, 32), ("RandomCrop", 32, 32)], "RandomCrop(size=(32, 32)"),
    "normalize": ([("Resize", 32, 32), ("Normalize",)], "Normalize"),
    "normalize bytes": (
        [("Resize", 32, 32), ("Normalize", {"mean": 3.5, "std": 9, "max_pixel_value": 1})],
        "mean=(3.5,)",
    ),
    "after normalizing": ([("CenterCrop", 33, 32), ("Normalize",), ("HorizontalFlip", {"p": 1})], "Normalize"),
    "to float": ([("Resize", 32, 32), ("ToFloat",), ("Normalize", {"max_pixel_value": 1.0})], "ToFloat"),
    "within": ([("Compose", [("Resize", 32, 32), ("VerticalFlip", {"p": 1})])], "VerticalFlip"),
}


def made(A: Any, step: tuple[Any, ...]) -> Any:
    name, *rest = step
    named = rest.pop() if rest and isinstance(rest[-1], dict) else {}
    rest = [[made(A, inner) for inner in part] if isinstance(part, list) else part for part in rest]
    return getattr(A, name)(*rest, **named)


@pytest.mark.parametrize("name", FIXED)
def test_every_step_does_what_theirs_does(name: str, tmp_path: Path) -> None:
    """On a CPU all pixels are equal; DALI's own resize differs from OpenCV's by a level each time."""
    A = _real()
    given, shows = FIXED[name]
    pipeline = A.Compose([*(made(A, step) for step in given), A.ToTensorV2()])
    dataset: Any = Photos(write_photos(tmp_path), pipeline, by_cv2)
    want = list(TorchLoader(dataset, batch_size=BATCH))
    scale = 1.0 if want[0][0].dtype == torch.uint8 else float(want[0][0].max() - want[0][0].min()) / 200
    resizes = sum("Resize" in step or "Max" in step for step, *_ in given)
    for engine, levels in (("dali", 0.0), ("torch", 0.0), (Dali(graph="whole"), max(resizes, 1.0))):
        with DataLoader(dataset, batch_size=BATCH, device="cpu", engine=engine) as loader:  # type: ignore[arg-type]
            assert shows in repr(loader)
            for (images, _), (images_want, _) in zip(loader, want, strict=True):
                assert images.dtype == images_want.dtype and images.shape == images_want.shape
                apart = (images.float() - images_want.float()).abs().max()
                assert apart <= (levels + (images.dtype != torch.uint8) * 1e-4) * scale, engine


def windows_of_theirs(step: Any, size: tuple[int, int], count: int) -> Iterator[tuple[int, ...]]:
    for _ in range(count):
        left, top, right, bottom = step.get_params_dependent_on_data({"shape": size}, {})["crop_coords"]
        yield top, left, bottom - top, right - left


@pytest.mark.parametrize(
    "step",
    [
        ("RandomResizedCrop", (32, 32)),
        ("RandomResizedCrop", (32, 32), (0.5, 0.6), (2, 4)),
        ("RandomResizedCrop", (32, 32), (0.9, 1.0), (3.9, 4)),
        ("RandomCrop", 70, 50),
    ],
)
def test_windows_have_the_same_distribution(step: tuple[Any, ...]) -> None:
    """Each number of a window, and its area: the largest distance of two distributions is what chance makes."""
    A = _real()
    from gpupipe.interop.albumentations import of_albumentations
    from gpupipe.transforms import Compose

    size, count = (97, 131), 6000
    theirs = made(A, step)
    theirs.set_random_seed(5)
    want = np.array(list(windows_of_theirs(theirs, size, count)))
    pipeline = Compose(of_albumentations(theirs, type(theirs)))
    crop: Any = pipeline.resolve(1, 0, np.arange(count, dtype=np.uint64), np.array([size] * count)).ops[0]
    got = np.stack([crop.top, crop.left, crop.height, crop.width], axis=1)
    for a, b in zip((*got.T, got[:, 2] * got[:, 3]), (*want.T, want[:, 2] * want[:, 3]), strict=True):
        at = np.union1d(a, b)
        below = [np.searchsorted(np.sort(x), at, side="right") / count for x in (a, b)]
        assert np.abs(below[0] - below[1]).max() < 1.95 * (2 / count) ** 0.5  # one in a thousand


def test_what_some_images_draw(tmp_path: Path) -> None:
    A = _real()
    steps = [A.Resize(40, 40), A.SmallestMaxSize(64, p=0.4), A.VerticalFlip(p=0.3), A.RandomCrop(40, 40)]
    dataset: Any = Photos(write_photos(tmp_path), A.Compose([*steps, A.ToTensorV2()]), by_pillow)
    pipeline = translate_dataset(dataset).transform
    ops: Any = pipeline.resolve(2, 0, np.arange(4000, dtype=np.uint64), np.full((4000, 2), 90)).ops
    _, resize, flip, _ = ops
    assert abs((resize.height == 64).mean() - 0.4) < 0.04 and set(resize.height.tolist()) == {40, 64}
    assert abs(flip.mask.mean() - 0.3) < 0.04


@pytest.mark.parametrize("how", ["lambda", "object", "closure"])
def test_an_adapter_around_a_folder(A: Any, how: str, tmp_path: Path) -> None:
    tvd = pytest.importorskip("torchvision.datasets")
    aug = fixed(A)

    class Adapter:
        def __init__(self, transform: Any):
            self.transform = transform

        def __call__(self, image: Any) -> Any:
            return self.transform(image=np.array(image))["image"]

    def adapted(image: Any, transform: Any = aug) -> Any:
        array = np.asarray(image)
        return transform(image=array)["image"]

    ways: dict[str, Any] = {
        "object": Adapter(aug), "closure": adapted, "lambda": lambda image: aug(image=np.array(image))["image"],
    }  # fmt: skip
    dataset = tvd.ImageFolder(write_photos(tmp_path), ways[how])
    want = list(TorchLoader(dataset, batch_size=BATCH))
    with DataLoader(dataset, batch_size=BATCH, device="cpu") as loader:
        assert "engine: dali" in repr(loader) and "Lambda" not in repr(loader)
        for (images, _), (images_want, _) in zip(loader, want, strict=True):
            assert torch.equal(images, images_want)


def test_what_stays_with_torchs_own_loader(A: Any, tmp_path: Path) -> None:
    class Mine(A.HorizontalFlip):  # type: ignore[misc]
        def apply(self, img: Any, **_: Any) -> Any:
            return img

    class Masks(Photos):
        def __getitem__(self, i: int) -> Any:
            image = self.read(self.files[i])
            return self.transform(image=image, mask=image)["image"], i

    class After(Photos):
        def __getitem__(self, i: int) -> Any:
            return super().__getitem__(i)[0].float().sqrt(), i

    class Gray(Photos):
        def __getitem__(self, i: int) -> Any:
            image = np.array(Image.open(self.files[i]).convert("L"))
            return self.transform(image=image)["image"], i

    root, whole = write_photos(tmp_path), fixed(A)
    crop, flip, tensor = whole.transforms
    padded = A.CenterCrop(32, 32, pad_if_needed=True)
    cases: list[tuple[Any, str]] = [
        (Photos(root, A.Compose([crop, A.CoarseDropout(p=1), tensor]), by_pillow), "CoarseDropout.*no such transform"),
        (Photos(root, A.Compose([crop, Mine(), tensor]), by_pillow), "subclass of HorizontalFlip with its own .*apply"),
        (Photos(root, A.Compose([padded, tensor]), by_pillow), "pad_if_needed=True"),
        (Photos(root, A.Compose([crop, A.ToTensorV2(p=0.5)]), by_pillow), "p=0.5"),
        (Photos(root, A.Compose([crop, tensor], p=0.5), by_pillow), "p below 1"),
        (Photos(root, A.Compose([crop, tensor], save_applied_params=True), by_pillow), "saved parameters"),
        (Photos(root, A.ReplayCompose(fixed(A).transforms), by_pillow), "ReplayCompose.*no such transform"),
        (Photos(root, A.Compose([crop, flip]), by_pillow), "ends with an array"),
        (Masks(root, whole, by_pillow), "it gives image, mask to albumentations"),
        (After(root, whole, by_pillow), "computes with images after a transform"),
        (Gray(root, whole, by_pillow), "than an image uint8"),
    ]
    for dataset, why in cases:
        with pytest.raises(GpupipeError, match=why):
            DataLoader(dataset, BATCH, device="cpu", engine="dali")


def test_arguments_without_a_form_are_named(tmp_path: Path) -> None:
    A = _real()
    root = write_photos(tmp_path)
    cases = [
        (A.Resize(32, 32, interpolation=2), "interpolation=2"),
        (A.Resize(32, 32, area_for_downscale="image"), "area_for_downscale='image'"),
        (A.SmallestMaxSize([32, 48]), "one number for max_size"),
        (A.SmallestMaxSize(max_size_hw=(32, 48)), "one number for max_size"),
        (A.Normalize(normalization="image"), "normalization='image'"),
        (A.ToFloat(max_value=7), "max_value=7"),
        (A.Compose([A.VerticalFlip()], additional_targets={"other": "image"}), "additional targets"),
    ]
    for step, why in cases:
        dataset: Any = Photos(root, A.Compose([step, A.ToTensorV2()]), by_pillow)
        with pytest.raises(GpupipeError, match=why):
            DataLoader(dataset, BATCH, device="cpu", engine="dali")


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_opencv_turns_images_upright(A: Any, orientation: int, tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    exif = Image.Exif()
    exif[0x112] = orientation
    for path in write_photos(tmp_path).rglob("*.jpg"):
        Image.open(path).save(path, quality=90, exif=exif)
    for read in (by_cv2, by_pillow):
        dataset: Any = Photos(tmp_path, fixed(A), read)
        want = list(TorchLoader(dataset, batch_size=BATCH))
        with DataLoader(dataset, batch_size=BATCH, device="cpu", engine="dali") as loader:
            for (images, _), (images_want, _) in zip(loader, want, strict=True):
                assert torch.equal(images, images_want)


def _saved(path: Path, kind: str) -> None:
    image = Image.open(path).convert("RGB")
    if kind == "png":
        image.save(path.with_suffix(".png"))
    elif kind == "alpha":
        image.putalpha(77)
        image.save(path.with_suffix(".png"))
    elif kind == "16 bit":
        Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 200).save(path.with_suffix(".png"))
    else:
        image.convert({"cmyk": "CMYK", "gray": "L"}[kind]).save(path.with_suffix(".jpeg"), quality=90)
    path.unlink()


@pytest.mark.parametrize("kind", ["png", "alpha", "16 bit", "cmyk", "gray"])
def test_files_that_are_coded_otherwise(kind: str, tmp_path: Path) -> None:
    """Among JPEG files in color: OpenCV's own pixels, and Pillow's."""
    for k, path in enumerate(sorted(write_photos(tmp_path).rglob("*.jpg"))):
        if k % 3 == 1:
            _saved(path, kind)
    for read in (by_pillow, by_cv2) if importlib.util.find_spec("cv2") else (by_pillow,):
        dataset: Any = Photos(tmp_path, fixed(albumentations_like.package()), read)
        want = list(TorchLoader(dataset, batch_size=BATCH))
        with DataLoader(dataset, batch_size=BATCH, device="cpu", engine="dali") as loader:
            for (images, _), (images_want, _) in zip(loader, want, strict=True):
                assert torch.equal(images, images_want), read
