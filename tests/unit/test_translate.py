"""What is read from torch's and torchvision's objects is what they hold; what cannot be said is refused by name."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from goodness import chi_square_p
from PIL import Image
from torch import nn
from torch.utils import data

import gpupipe
from gpupipe import datasets, from_torch, transforms as T
from gpupipe.errors import ConfigError, TranslationError
from gpupipe.loader.live_session import LiveSession
from gpupipe.loader.planned import PlannedSession
from gpupipe.planning.batches import Slices
from gpupipe.translate.datasets import fingerprint, translated
from gpupipe.translate.samplers import is_batch_sampler_of_torch, translate_sampler
from gpupipe.translate.transforms import translation

pytest.importorskip("torchvision")
from torchvision import datasets as tvd, transforms as v1, tv_tensors
from torchvision.transforms import InterpolationMode, v2

P = 1e-3
END = v1.ToTensor()
PIPELINE = v1.Compose([v1.Resize(20), v1.CenterCrop(16), v1.ToTensor()])
BOTH = pytest.mark.parametrize("tv", [v1, v2], ids=["v1", "v2"])


def translate_transform(t: Any) -> T.Compose:
    return translation(t).pipeline


def one(t: Any) -> Any:
    (only,) = translate_transform(t)
    return only


# ---- transforms


@BOTH
@pytest.mark.parametrize(
    ("name", "arguments", "want"),
    [
        ("RandomResizedCrop", {"size": 224}, T.RandomResizedCrop(224)),
        (
            "RandomResizedCrop",
            {"size": (9, 8), "scale": (0.2, 0.9), "ratio": (1, 2), "interpolation": InterpolationMode.BICUBIC},
            T.RandomResizedCrop((9, 8), (0.2, 0.9), (1, 2), "bicubic"),
        ),
        ("RandomResizedCrop", {"size": 8, "antialias": False}, T.RandomResizedCrop(8, antialias=False)),
        ("RandomResizedCrop", {"size": 8, "antialias": None}, T.RandomResizedCrop(8, antialias=False)),
        ("RandomResizedCrop", {"size": 8, "interpolation": 3}, T.RandomResizedCrop(8, interpolation="bicubic")),
        ("Resize", {"size": 256}, T.Resize(256)),
        ("Resize", {"size": [256]}, T.Resize(256)),
        ("Resize", {"size": (9, 8)}, T.Resize((9, 8))),
        ("Resize", {"size": 9, "max_size": 12}, T.Resize(9, max_size=12)),
        ("Resize", {"size": 9, "interpolation": InterpolationMode.NEAREST}, T.Resize(9, "nearest")),
        ("Resize", {"size": 9, "interpolation": InterpolationMode.NEAREST_EXACT}, T.Resize(9, "nearest-exact")),
        ("Resize", {"size": 9, "interpolation": Image.Resampling.LANCZOS.value}, T.Resize(9, "lanczos")),
        ("Resize", {"size": 9, "interpolation": InterpolationMode.BOX}, T.Resize(9, "box")),
        ("Resize", {"size": 9, "interpolation": InterpolationMode.HAMMING}, T.Resize(9, "hamming")),
        ("CenterCrop", {"size": 224}, T.CenterCrop(224)),
        ("CenterCrop", {"size": (3, 4)}, T.CenterCrop((3, 4))),
        ("RandomCrop", {"size": 32}, T.RandomCrop(32)),
        ("RandomCrop", {"size": 32, "padding": 4}, T.RandomCrop(32, 4)),
        ("RandomCrop", {"size": (3, 4), "padding": (1, 2), "fill": 9}, T.RandomCrop((3, 4), (1, 2), fill=9)),
        ("RandomCrop", {"size": 32, "padding": (1, 2, 3, 4)}, T.RandomCrop(32, (1, 2, 3, 4))),
        (
            "RandomCrop",
            {"size": 3, "padding": (1, 2, 3, 4), "padding_mode": "reflect"},
            T.RandomCrop(3, (1, 2, 3, 4), padding_mode="reflect"),
        ),
        ("RandomCrop", {"size": 3, "pad_if_needed": True, "padding_mode": "edge"},
         T.RandomCrop(3, pad_if_needed=True, padding_mode="edge")),
        ("Pad", {"padding": 3}, T.Pad(3)),
        ("Pad", {"padding": (1, 2), "fill": (1, 2, 3)}, T.Pad((1, 2), (1, 2, 3))),
        ("Pad", {"padding": (1, 2, 3, 4), "padding_mode": "symmetric"}, T.Pad((1, 2, 3, 4), padding_mode="symmetric")),
        ("RandomHorizontalFlip", {}, T.RandomHorizontalFlip()),
        ("RandomHorizontalFlip", {"p": 0.25}, T.RandomHorizontalFlip(0.25)),
        ("RandomVerticalFlip", {"p": 1.0}, T.RandomVerticalFlip(1.0)),
        ("Grayscale", {}, T.Grayscale()),
        ("Grayscale", {"num_output_channels": 3}, T.Grayscale(3)),
        ("RandomGrayscale", {"p": 0.2}, T.RandomGrayscale(0.2)),
        ("PILToTensor", {}, T.PILToTensor()),
    ],
)  # fmt: skip
def test_every_transform_of_both_generations(tv: Any, name: str, arguments: dict[str, Any], want: T.Transform) -> None:
    assert one(getattr(tv, name)(**arguments)) == want


@pytest.mark.filterwarnings("ignore:The transform `ToTensor")
@BOTH
def test_conversions(tv: Any) -> None:
    assert one(tv.ToTensor()) == T.ToTensor()
    pipeline = translate_transform(
        tv.Compose(
            [tv.PILToTensor(), tv.ConvertImageDtype(torch.float16), tv.Normalize([0.1, 0.2, 0.3], [1, 2, 3], True)]
        )
    )
    convert = T.ConvertImageDtype("float16") if tv is v1 else T.ToDtype("float16", scale=True)
    want = [T.PILToTensor(), convert, T.Normalize((0.1, 0.2, 0.3), (1, 2, 3), True)]
    assert list(pipeline) == want
    tensors = tv.Normalize(torch.tensor([0.5, 0.25, 0.125]), torch.tensor([1.0, 2.0, 4.0]))
    assert translate_transform([tv.ToTensor(), tensors])[1] == T.Normalize((0.5, 0.25, 0.125), (1, 2, 4))


def test_second_generation_only() -> None:
    pipeline = translate_transform(
        [v2.RGB(), v2.ToImage(), v2.Identity(), nn.Identity(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]
    )
    assert list(pipeline) == [T.ToImage(), T.ToDtype("float32", scale=True)]
    assert one(v2.Resize(None, max_size=10)) == T.Resize(None, max_size=10)
    assert one(v2.Resize(9, interpolation="bicubic")) == T.Resize(9, "bicubic")


@pytest.mark.filterwarnings("ignore:Got `dtype` values for `torch.Tensor` and either")
@pytest.mark.parametrize(
    ("before", "dtype", "want"),
    [
        ([v2.ToImage()], {tv_tensors.Image: torch.float32, "others": None}, "float32"),
        ([v2.ToImage()], {torch.Tensor: torch.float16, "others": torch.float32}, "float32"),
        ([v2.ToImage()], {tv_tensors.Mask: torch.int64, "others": None}, None),
        ([v2.PILToTensor()], {tv_tensors.Image: torch.float16, torch.Tensor: torch.float32}, "float32"),
        ([v2.ToImage(), v2.ToPureTensor()], {tv_tensors.Image: torch.float16, torch.Tensor: torch.float32}, "float32"),
    ],
)
def test_to_dtype_by_kind_of_image(before: list[Any], dtype: dict[Any, Any], want: str | None) -> None:
    """By what torchvision itself makes of an image."""
    theirs = v2.Compose([*before, v2.ToDtype(dtype)])
    pipeline = translate_transform(theirs)
    assert pipeline.output.dtype == (want or "uint8")
    made = theirs(Image.new("RGB", (4, 4)))
    assert str(made.dtype) == f"torch.{pipeline.output.dtype}"


def test_no_fill_stays_none_where_it_is_not_black() -> None:
    """On tensors torchvision blends the border with black twice, and without a fill once."""
    for name, arguments in (("RandomRotation", {"degrees": 9}), ("RandomAffine", {"degrees": 9}),
                            ("RandomPerspective", {})):  # fmt: skip
        assert one(getattr(v2, name)(**arguments, fill=None)).fill is None
        assert one(getattr(v2, name)(**arguments)).fill == (0.0,)
    assert one(v2.Pad(1, fill=None)) == T.Pad(1)


def test_a_parameter_that_ours_has_not_is_refused() -> None:
    """A later torchvision may add one, and what it does must not be left out in silence."""

    class RandomInvert(nn.Module):
        def __init__(self, p: float = 0.5, strength: float = 1.0):
            super().__init__()
            self.p, self.strength = p, strength

    RandomInvert.__module__ = "torchvision.transforms.v2._color"
    with pytest.raises(TranslationError, match="gpupipe's RandomInvert does not have strength"):
        translate_transform(RandomInvert())


def test_containers_in_any_depth() -> None:
    flip = nn.Sequential(v1.RandomHorizontalFlip(), v1.RandomVerticalFlip())
    crop = v1.CenterCrop(8)
    nested = v1.Compose(
        [v1.Compose([v1.Resize(9)]), flip, v2.Compose([crop, v2.Compose([v2.ToImage()])]), T.Grayscale(3)]
    )
    assert list(translate_transform(nested)) == [
        T.Resize(9), T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.CenterCrop(8), T.ToImage(), T.Grayscale(3),
    ]  # fmt: skip
    same = v1.CenterCrop(8)
    assert len(translate_transform(nn.Sequential(same, same))) == 2


def test_our_own_pass_through() -> None:
    ours = T.Compose([T.CenterCrop(3)], memory_format="channels_last")
    assert translate_transform(ours) is ours
    assert translate_transform(T.CenterCrop(3)) == T.Compose([T.CenterCrop(3)])
    assert translate_transform(None) == T.Compose([])


def test_presets_of_models() -> None:
    from torchvision.transforms._presets import ImageClassification

    theirs = ImageClassification(crop_size=20, resize_size=24, interpolation=InterpolationMode.BICUBIC)
    pipeline = translate_transform(theirs)
    assert pipeline.output.size == (20, 20) and pipeline.output.dtype == "float32"
    assert pipeline[0] == T.Resize(24, "bicubic") and pipeline[4] == T.Normalize(theirs.mean, theirs.std)


class Overridden(v1.Resize):
    """Another function in the place of the library's."""

    def __init__(self, size: int, function: Any):
        super().__init__(size)
        self.function = function

    def forward(self, img: Any) -> Any:
        return self.function(img)


class OverriddenParams(v2.RandomResizedCrop):
    def make_params(self, flat_inputs: Any) -> Any:
        return {"top": 0, "left": 0, "height": 1, "width": 1}


def hooked() -> Any:
    t = v1.CenterCrop(3)
    t.register_forward_hook(lambda *_: None)
    return t


def a_function(image: Any) -> Any:
    return image


@pytest.mark.parametrize(
    ("t", "why"),
    [
        (v1.LinearTransformation(torch.eye(3), torch.zeros(3)), "no such transform"),
        (v2.Transform(), "no such transform"),
        (v1.RandomApply([v1.CenterCrop(3), v2.RandomIoUCrop()]), "needs bounding boxes"),
        (7, "it cannot be called"),
        (Overridden(3, None), "it is a subclass"),
        (OverriddenParams(3), "it is a subclass"),
        (hooked(), "forward hooks"),
        (v2.MixUp(num_classes=3), "it needs a batch"),
        (v2.Pad(1, fill={Image.Image: 3, "others": 0}), "fill="),
        (v2.Pad(1, fill=(1, 2)), "fill"),
        (v2.Compose([v2.ToImage(), v2.ToDtype(torch.float64)]), "float64"),
        (v2.Compose([v2.ToImage(), v2.ToDtype({tv_tensors.Mask: torch.int64})]), "no data type for Image"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_named(t: Any, why: str) -> None:
    with pytest.raises(TranslationError) as e:
        translate_transform([v1.RandomHorizontalFlip(), t])
    text = str(e.value)
    assert why in text and "[1]" in text
    assert "gpupipe.transforms" in text


def test_all_that_cannot_be_translated_are_named_at_once() -> None:
    with pytest.raises(TranslationError) as e:
        translate_transform(v1.Compose([v1.Resize(3), v1.Compose([v2.RandomIoUCrop(), v1.ToTensor()]), 7]))
    text = str(e.value)
    assert text.startswith("2 of 4 transforms cannot be translated:")
    assert "[1][0]: RandomIoUCrop" in text and "[2]: 7" in text


def test_numbers_of_a_large_matrix_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    whitening = v1.LinearTransformation(torch.eye(48), torch.zeros(48))
    monkeypatch.setattr(type(whitening), "__repr__", lambda self: pytest.fail("it would show every number"))
    with pytest.raises(TranslationError, match=r"LinearTransformation\(\.\.\.\)"):
        translate_transform(v1.Compose([v1.RandomHorizontalFlip(), whitening]))


# ---- datasets


def test_image_folder(photos: Path) -> None:
    theirs = tvd.ImageFolder(str(photos), v1.Compose([v1.Resize(20), v1.CenterCrop(16), v1.ToTensor()]))
    ours = translate_dataset(theirs)
    assert isinstance(ours, datasets.ImageFolder)
    assert ours.samples == theirs.samples and ours.class_to_idx == theirs.class_to_idx
    assert list(ours.transform) == [T.Resize(20), T.CenterCrop(16), T.ToTensor()]


def translate_dataset(theirs: Any) -> Any:
    found = translated(theirs)
    assert found is not None
    return found


def same_samples(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    for i in range(len(theirs)):
        path, label = ours.fetch(i)
        assert Path(path) == Path(theirs.samples[i][0]).absolute() and label == theirs.samples[i][1]


def test_image_folder_of_a_relative_root(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos.parent)
    theirs = tvd.ImageFolder(photos.name, END)
    ours = translate_dataset(theirs)
    assert isinstance(ours, datasets.ImageFolder)
    same_samples(ours, theirs)


def test_image_folder_filtered_by_a_function(photos: Path) -> None:
    theirs = tvd.ImageFolder(str(photos), END, is_valid_file=lambda p: p.endswith("0.jpg"))
    ours = translate_dataset(theirs)
    assert isinstance(ours, datasets.ImageList) and 0 < len(ours) < 36
    same_samples(ours, theirs)


@pytest.mark.parametrize("in_place", [False, True])
def test_image_folder_whose_list_was_changed(photos: Path, in_place: bool) -> None:
    theirs = tvd.ImageFolder(str(photos), END)
    if in_place:
        random.Random(0).shuffle(theirs.samples)
        theirs.samples[0] = (theirs.samples[0][0], 99)
    else:
        theirs.samples = theirs.samples[::-2]
    ours = translate_dataset(theirs)
    assert isinstance(ours, datasets.ImageList)
    same_samples(ours, theirs)


def test_dataset_folder(photos: Path) -> None:
    theirs = tvd.DatasetFolder(str(photos), tvd.folder.default_loader, (".jpg",), END)
    same_samples(translate_dataset(theirs), theirs)
    one_class = tvd.DatasetFolder(
        str(photos), tvd.folder.pil_loader, transform=END, is_valid_file=lambda p: "class01" in p, allow_empty=True
    )
    same_samples(translate_dataset(one_class), one_class)


class Reads(tvd.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0]


class Own(data.Dataset[Any]):
    def __len__(self) -> int:
        return 3


def _patched(path: str) -> Any:
    ds = tvd.ImageFolder(path, END)
    ds.__getitem__ = lambda i: 3  # type: ignore[method-assign]
    return ds


@pytest.mark.parametrize(
    "make",
    [
        lambda p: tvd.ImageFolder(p, END, loader=a_function),
        lambda p: Reads(p, END),
        lambda p: _patched(p),
        lambda p: tvd.ImageFolder(p, END, target_transform=lambda t: t),
        lambda p: tvd.ImageFolder(p, None),
        lambda p: tvd.ImageFolder(p, v1.Compose([END, a_function])),
        lambda p: tvd.ImageFolder(p, v1.Compose([v1.RandomApply([v1.Lambda(a_function)]), END])),
        lambda p: tvd.ImageFolder(p, v2.Compose([v2.FiveCrop(3), v2.ToImage()])),
        lambda p: tvd.ImageFolder(p, v2.Compose([v2.JPEG(50), END])),
        lambda p: tvd.ImageFolder(p, v2.Compose([v2.ElasticTransform(), END])),
        lambda p: tvd.ImageFolder(p, v2.Compose([v2.RandomChannelPermutation(), END])),
        lambda p: tvd.ImageFolder(p, v2.Compose([v2.RandomOrder([v2.RandomInvert(), v2.RandomEqualize()]), END])),
        lambda p: tvd.ImageFolder(p, v2.Compose([v1.ToTensor(), v2.GaussianNoise()])),
        lambda p: tvd.ImageFolder(p, v1.Compose([v1.Normalize((0.5,), (0.5,)), v1.ToTensor()])),
        lambda p: data.ConcatDataset([tvd.ImageFolder(p, END), tvd.ImageFolder(p, PIPELINE)]),
        lambda p: data.Subset(data.ConcatDataset([tvd.ImageFolder(p, END), cifar()]), [0]),
        lambda p: data.Subset(tvd.ImageFolder(p, END), [-1]),
        lambda p: Own(),
        lambda p: tvd.FakeData(3, transform=END),
        lambda p: [1, 2],
    ],
)
def test_datasets_that_are_not_known(photos: Path, make: Any) -> None:
    assert translated(make(str(photos))) is None


def test_what_a_script_changes_shows_in_the_fingerprint(photos: Path) -> None:
    ds = tvd.ImageFolder(str(photos), END)
    seen = [fingerprint(ds)]
    assert fingerprint(ds) == seen[0]
    ds.samples[0], ds.samples[1] = ds.samples[1], ds.samples[0]
    seen.append(fingerprint(ds))
    ds.transform = PIPELINE
    seen.append(fingerprint(ds))
    PIPELINE.transforms.append(v1.RandomErasing())
    seen.append(fingerprint(ds))
    PIPELINE.transforms.pop()
    ds.target_transform = a_function
    seen.append(fingerprint(ds))
    assert len(set(seen)) == 5
    labels = cifar()
    before = fingerprint(data.Subset(labels, [0, 1]))
    labels.targets[0] = 7
    assert fingerprint(data.Subset(labels, [0, 1])) != before != fingerprint(data.Subset(cifar(), [0, 2]))


@pytest.mark.parametrize(
    ("arguments", "session"),
    [
        ({}, PlannedSession),
        ({"shuffle": True, "drop_last": True, "generator": torch.Generator()}, PlannedSession),
        ({"sampler": data.SequentialSampler(range(4))}, PlannedSession),
        ({"batch_sampler": data.BatchSampler(data.SequentialSampler(range(4)), 2, False)}, PlannedSession),
        ({"collate_fn": data.default_collate}, PlannedSession),
        ({"epoch_length": 3}, PlannedSession),
        ({"live": True}, LiveSession),
        ({"sampler": [1, 2]}, LiveSession),
        ({"batch_sampler": [[1, 2]]}, LiveSession),
        ({"collate_fn": list}, LiveSession),
        ({"batch_size": None}, LiveSession),
        ({"worker_init_fn": print, "num_workers": 1}, LiveSession),
        ({"timeout": 3, "num_workers": 1}, LiveSession),
    ],
)
def test_a_known_dataset_is_planned_if_all_around_it_is_torchs(
    photos: Path, arguments: dict[str, Any], session: type, recwarn: pytest.WarningsRecorder
) -> None:
    with gpupipe.DataLoader(tvd.ImageFolder(str(photos), PIPELINE), **arguments, device="cpu") as loader:
        assert type(loader._session) is session
    assert not recwarn.list


def test_live_is_for_datasets_with_code(photos: Path) -> None:
    with pytest.raises(ConfigError, match="live=True runs a dataset's own code"):
        gpupipe.DataLoader(datasets.ImageFolder(str(photos), PIPELINE), live=True)


def test_a_known_dataset_that_becomes_unknown_goes_on_live(photos: Path) -> None:
    ds = tvd.ImageFolder(str(photos), PIPELINE)
    with gpupipe.DataLoader(ds, batch_size=18, device="cpu", seed=1) as loader:
        assert isinstance(loader._session, PlannedSession) and len(list(loader)) == 2
        ds.target_transform = lambda label: label + 100
        ((_, first), _) = list(loader)
        assert isinstance(loader._session, LiveSession) and int(first.min()) >= 100 and loader.stats()["batches"] == 4


def test_folders_after_each_other_are_one_list(photos: Path) -> None:
    """No worker process has to open their images."""
    whole = tvd.ImageFolder(str(photos), END)
    found = translate_dataset(data.ConcatDataset([whole, data.Subset(whole, [4, 2])]))
    assert found.kind == "files"
    assert found.labels is not None
    assert found.labels.tolist() == [*whole.targets, whole.targets[4], whole.targets[2]]
    assert [found.describe(i) for i in range(len(found))][-2:] == [whole.samples[4][0], whole.samples[2][0]]


def cifar() -> Any:
    return bare(tvd.CIFAR10, data=np.zeros((3, 32, 32, 3), np.uint8), targets=[0, 1, 2], transform=END)


def bare(cls: Any, **attributes: Any) -> Any:
    """A torchvision dataset with data of our own, since its files cannot be downloaded here."""
    ds = cls.__new__(cls)
    vars(ds).update({"transform": None, "target_transform": None, "transforms": None, "root": "", **attributes})
    return ds


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
LABELS = [3, 1, 4, 1, 5, 9]


@pytest.mark.parametrize(
    "theirs",
    [
        bare(tvd.CIFAR10, data=PIXELS, targets=LABELS),
        bare(tvd.CIFAR100, data=PIXELS, targets=LABELS),
        bare(tvd.SVHN, data=PIXELS.transpose(0, 3, 1, 2), labels=np.array(LABELS)),
        # torchvision's STL10 swaps the axes of what it reads.
        bare(tvd.STL10, data=PIXELS.transpose(0, 3, 2, 1).swapaxes(2, 3), labels=np.array(LABELS, np.uint8)),
        bare(tvd.STL10, data=PIXELS.transpose(0, 3, 1, 2), labels=np.array([-1] * 6)),  # split="unlabeled"
        bare(tvd.USPS, data=PIXELS[..., 0], targets=LABELS),
    ],
)  # fmt: skip
def test_small_images_are_arrays(theirs: Any) -> None:
    theirs.transform = v1.Compose([v1.Pad(2), v1.ToTensor()])
    assert isinstance(translate_dataset(theirs), datasets.Arrays)
    images, targets = data.default_collate([theirs[i] for i in range(6)])
    for engine in ("torch", "dali"):
        with gpupipe.DataLoader(theirs, batch_size=6, device="cpu", engine=engine) as loader:
            ((made, target),) = list(loader)
        assert made.dtype == images.dtype and torch.equal(made, images)
        assert target.dtype == targets.dtype and torch.equal(target, targets)


def test_stl10_without_labels_is_not_translated_as_arrays() -> None:
    theirs = bare(tvd.STL10, data=PIXELS.transpose(0, 3, 1, 2), labels=None)
    theirs.transform = END
    assert translated(theirs) is None


def mnist(transform: Any) -> Any:
    return bare(
        tvd.MNIST, data=torch.from_numpy(PIXELS[..., 0].copy()), targets=torch.tensor(LABELS), transform=transform
    )


@pytest.mark.parametrize(
    "transform",
    [
        v1.Compose([v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))]),
        v1.Compose([v1.CenterCrop(28), v1.PILToTensor()]),
        v1.Compose([v1.Grayscale(3), v1.ToTensor(), v1.Normalize((0.1, 0.2, 0.3), (1, 2, 3))]),
        v1.Compose([v1.Grayscale(1), v1.ToTensor()]),
        v1.Compose([v1.CenterCrop(20), v1.Grayscale(3), v1.PILToTensor()]),
        v2.Compose([v2.RGB(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
        v1.Compose([v1.Pad(2), v1.ToTensor()]),
    ],
)
def test_mnist_is_gray_as_in_torchvision(transform: Any) -> None:
    """Equal to the last bit through the reference engine, with as many channels."""
    theirs = mnist(transform)
    want = torch.stack([torch.as_tensor(theirs[i][0]) for i in range(6)])
    with gpupipe.DataLoader(theirs, batch_size=6, device="cpu", engine="torch") as loader:
        ((images, target),) = list(loader)
    assert translate_dataset(theirs).transform.output.channels == want.shape[1]
    assert images.dtype == want.dtype and torch.equal(images, want)
    assert target.tolist() == LABELS


def test_mnist_where_gray_images_have_no_form() -> None:
    assert translated(mnist(v1.Compose([v1.ToTensor(), v1.Normalize((0.1, 0.2, 0.3), (1, 2, 3))]))) is None


def test_subset_in_any_depth(photos: Path) -> None:
    theirs = tvd.ImageFolder(str(photos), v1.Compose([v1.CenterCrop(8), END]))
    inner = data.Subset(theirs, list(range(0, 36, 2)))
    outer = data.Subset(inner, [17, 3, 3])
    ours = translate_dataset(outer)
    assert isinstance(ours, datasets.Subset)
    assert [ours.fetch(i)[0] for i in range(3)] == [theirs.samples[k][0] for k in (34, 6, 6)]
    assert list(ours.transform) == [T.CenterCrop(8), T.ToTensor()]
    native = datasets.Arrays(PIXELS, LABELS)
    part, _ = data.random_split(native, [4, 2], generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    assert translate_dataset(part).labels.tolist() == [LABELS[i] for i in part.indices]  # type: ignore[union-attr]
    assert translate_dataset(native) is native


# ---- samplers


def drawn(sampler: Any, n: int, seed: int = 0, epoch: int = 0) -> list[int]:
    plan = translate_sampler(sampler, n)
    order = plan.order(seed, epoch)
    assert len(order) == plan.length
    indices, keys = order.at(np.arange(len(order)))
    assert len(set(keys.tolist())) == len(keys)
    return [int(i) for i in indices]


def test_sequential_sampler() -> None:
    assert drawn(data.SequentialSampler(range(5)), 5) == [0, 1, 2, 3, 4]


def test_random_sampler(rng_untouched: None) -> None:
    sampler = data.RandomSampler(range(50), generator=torch.Generator().manual_seed(7))
    a, b, c = drawn(sampler, 50), drawn(sampler, 50, epoch=1), drawn(sampler, 50)
    assert a == c != b and sorted(a) == sorted(b) == list(range(50))
    assert translate_sampler(sampler, 50).generator is sampler.generator
    assert translate_sampler(data.RandomSampler(range(50)), 50).generator is None
    assert translate_sampler(sampler, 50).name == "shuffled"


def test_random_sampler_with_replacement() -> None:
    sampler = data.RandomSampler(range(20), replacement=True, num_samples=10_000)
    a = drawn(sampler, 20)
    assert len(a) == 10_000 and a != drawn(sampler, 20, epoch=1) and a != drawn(sampler, 20, seed=1)
    assert chi_square_p(np.bincount(a, minlength=20), 500) > P


@pytest.mark.parametrize("count", [3, 10, 11, 25, 30])
def test_random_sampler_of_another_length(count: int) -> None:
    """As torch: whole permutations, then a part of one."""
    a = drawn(data.RandomSampler(range(10), num_samples=count), 10)
    assert len(a) == count
    for first in range(0, count, 10):
        part = a[first : first + 10]
        assert len(set(part)) == len(part)
    assert a[:10] != a[10:20]


def test_subset_random_sampler() -> None:
    chosen = [4, 8, 15, 16, 23, 42]
    sampler = data.SubsetRandomSampler(chosen, generator=torch.Generator().manual_seed(3))
    seen = Counter(tuple(drawn(sampler, 50, seed=s)) for s in range(200))
    assert all(sorted(order) == chosen for order in seen) and len(seen) > 100
    assert translate_sampler(sampler, 50).generator is sampler.generator
    with pytest.raises(ConfigError, match="index 42 at position 5; this dataset has 40"):
        translate_sampler(sampler, 40)


def test_weighted_random_sampler() -> None:
    weights = [1.0, 0.0, 3.0, 6.0]
    a = drawn(data.WeightedRandomSampler(weights, 10_000), 4)
    count = np.bincount(a, minlength=4)
    assert count[1] == 0 and chi_square_p(count[[0, 2, 3]], [1000, 3000, 6000]) > P
    assert sorted(drawn(data.WeightedRandomSampler(weights, 3, replacement=False), 4)) == [0, 2, 3]
    with pytest.raises(ConfigError, match="only 3 weights are above zero"):
        translate_sampler(data.WeightedRandomSampler(weights, 4, replacement=False), 4)


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("n", "world", "batch"), [(20, 2, 5), (23, 4, 3), (7, 8, 1), (16, 4, 4), (103, 3, 8)])
def test_distributed_sampler_gives_what_torchs_gives(
    shuffle: bool, drop_last: bool, n: int, world: int, batch: int
) -> None:
    """The same batches, in the same order, on every rank."""
    if drop_last and n < world:
        pytest.skip("torch has no samples left then")
    for rank in range(world):
        sampler = data.DistributedSampler(range(n), world, rank, shuffle=shuffle, seed=5, drop_last=drop_last)
        batches = list(data.BatchSampler(sampler, batch, drop_last=False))
        plan = translate_sampler(sampler, n)
        assert plan.shard == gpupipe.Shard(rank, world)
        order = plan.order(0, 0)
        slices = Slices(len(order), batch, plan.shard, drop_last=False, strided=True)
        assert [order.at(slices.take(s)[0])[0].tolist() for s in range(len(slices))] == batches


def test_distributed_sampler_tells_its_epoch() -> None:
    sampler = data.DistributedSampler(range(10), 2, 1)
    plan = translate_sampler(sampler, 10)
    assert plan.epoch_of() == 0
    sampler.set_epoch(4)
    assert plan.epoch_of() == 4


def test_sampler_made_for_a_larger_dataset() -> None:
    for sampler in (
        data.SequentialSampler(range(6)),
        data.RandomSampler(range(6)),
        data.WeightedRandomSampler([1.0] * 6, 2),
        data.DistributedSampler(range(6), 1, 0),
    ):
        with pytest.raises(ConfigError, match="was made for 6 samples, but this dataset has 5"):
            translate_sampler(sampler, 5)
        assert max(drawn(sampler, 7)) < 6


class Epochs:
    """A sampler that somebody wrote, with an epoch as torch's has."""

    def __init__(self) -> None:
        self.epoch = 0
        self.reads = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        self.reads += 1
        return iter([self.epoch % 5, 4, 4])

    def __len__(self) -> int:
        return 3


def test_a_sampler_of_ones_own() -> None:
    sampler = Epochs()
    plan = translate_sampler(sampler, 5)
    assert plan.length == 3 and plan.name == "Epochs" and plan.shard is None and plan.generator is None
    assert sampler.reads == 0
    for epoch in (0, 3):
        sampler.set_epoch(epoch)
        assert plan.epoch_of() == epoch
        assert plan.order(0, 99).at(np.arange(3))[0].tolist() == [epoch, 4, 4], "the epoch that the script has set"
    assert plan.set_epoch(2) and sampler.epoch == 2


@pytest.mark.parametrize("indices", [[2, 0, 1], (2, 0, 1), np.array([2, 0, 1]), torch.tensor([2, 0, 1])])
def test_lists_of_indices(indices: Any) -> None:
    assert drawn(indices, 3) == [2, 0, 1]
    assert translate_sampler(indices, 3).epoch_of() is None


def test_a_subclass_of_torchs_sampler_is_read() -> None:
    class Backwards(data.RandomSampler):
        def __iter__(self) -> Any:
            return iter(range(len(self.data_source) - 1, -1, -1))

    assert drawn(Backwards(range(3)), 3) == [2, 1, 0]


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (iter([1, 2]), "only once, for one epoch; pass list"),
        ((i for i in range(3)), "only once"),
        (3, "must be a torch sampler or a list of indices"),
        (data.BatchSampler(range(3), 2, False), "pass its sampler= and batch_size= instead"),
        ([[0, 1], [2]], r"gave \[0, 1\] at position 0; it must give integers; pass sampler= and batch_size="),
        ([0, 1.5], r"gave 1.5 at position 1"),
        ([0, 5], r"index 5 at position 1; this dataset has 3 samples"),
    ],
)
def test_samplers_that_are_refused(sampler: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        translate_sampler(sampler, 3).order(0, 0)


def test_batch_sampler() -> None:
    inner = data.SequentialSampler(range(5))
    assert is_batch_sampler_of_torch(data.BatchSampler(inner, 2, True))

    class Buckets(data.BatchSampler):
        pass

    for other in (Buckets(inner, 2, True), [[0, 1], [2]]):
        assert not is_batch_sampler_of_torch(other)


# ---- loaders


@pytest.fixture
def folder(photos: Path) -> Any:
    return tvd.ImageFolder(str(photos), PIPELINE)


def test_from_torch_gives_the_same_batches(folder: Any) -> None:
    theirs = data.DataLoader(folder, batch_size=10)
    with from_torch(theirs, device="cpu", engine="torch") as mine:
        assert len(mine) == 4 and mine.dataset is folder
        got = [(x, t) for x, t in mine]
    assert [len(t) for _, t in got] == [10, 10, 10, 6]
    assert torch.cat([t for _, t in got]).tolist() == folder.targets
    assert got[0][0].shape == (10, 3, 16, 16)


def test_from_torch_takes_every_setting(folder: Any) -> None:
    theirs = data.DataLoader(
        folder, batch_size=8, shuffle=True, num_workers=2, drop_last=True, prefetch_factor=3, persistent_workers=True,
        generator=torch.Generator().manual_seed(11),
    )  # fmt: skip
    with from_torch(theirs, device="cpu", engine="null") as mine:
        assert (mine.batch_size, mine.num_workers, mine.drop_last, mine.prefetch_factor, mine.seed) == (
            8,
            2,
            True,
            3,
            11,
        )
        assert len(mine) == 4
        assert hasattr(mine.sampler, "set_epoch")
    with from_torch(theirs, device="cpu", engine="null", seed=3, shard=gpupipe.Shard(1, 2)) as mine:
        assert (mine.seed, mine.shard, len(mine)) == (3, gpupipe.Shard(1, 2), 2)


def test_from_torch_keeps_a_sampler(folder: Any) -> None:
    sampler = data.WeightedRandomSampler([1.0] * 36, 20, generator=torch.Generator().manual_seed(2))
    with from_torch(data.DataLoader(folder, batch_size=8, sampler=sampler), device="cpu", engine="null") as mine:
        assert (len(mine), mine.seed, mine.sampler) == (3, 2, sampler)
    distributed = data.DistributedSampler(folder, 4, 2)
    with from_torch(data.DataLoader(folder, batch_size=3, sampler=distributed), device="cpu", engine="null") as mine:
        assert (mine.shard, len(mine), mine.sampler) == (gpupipe.Shard(2, 4), 3, distributed)
    own = data.RandomSampler(folder, generator=torch.Generator().manual_seed(9))
    with from_torch(data.DataLoader(folder, batch_size=3, sampler=own), device="cpu", engine="null") as mine:
        assert (mine.seed, mine.sampler) == (9, own)


class Stream(data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(3))


class OwnLoader(data.DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([])


def test_from_torch_refuses(folder: Any) -> None:
    with pytest.raises(ConfigError, match=r"takes a torch\.utils\.data\.DataLoader, not builtins\.list"):
        from_torch([])
    with pytest.raises(ConfigError, match="has its own __iter__"):
        from_torch(OwnLoader(folder))


def test_from_torch_leaves_to_torch_what_is_torchs(folder: Any) -> None:
    streamed = from_torch(data.DataLoader(Stream()), device="cpu")
    assert list(streamed) == [torch.tensor([i]) for i in range(3)]
    single = from_torch(data.DataLoader(folder, batch_size=None), device="cpu")
    image, label = next(iter(single))
    assert image.shape == (3, 16, 16)
    assert label == 0
    both = data.DataLoader(folder, collate_fn=a_function)
    for ours, theirs in zip(from_torch(both, device="cpu"), both, strict=True):
        assert (ours[0][0] - theirs[0][0]).abs().mean() < 1 / 255 and ours[0][1] == theirs[0][1]
    with pytest.raises(NotImplementedError):  # as torch's own says, and not earlier
        list(from_torch(data.DataLoader(Own()), device="cpu"))
