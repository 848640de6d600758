"""Transforms that scripts write by hand: what is recognized, what is not, and that nothing is believed unproven."""

from __future__ import annotations

import functools
import random
import sys
import threading
import time
from collections.abc import Callable
from random import random as any_number
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor
from torchvision import transforms as tvt
from torchvision.transforms import functional as TF

from gpupipe import transforms as T
from gpupipe.errors import ConfigError, PipelineError, TranslationError
from gpupipe.interop import draws, tracing, translate_transform
from gpupipe.kernels.apply import apply_sample
from gpupipe.transforms import Lambda, ops
from gpupipe.transforms.handwritten import HandWritten, Path, Step

BLUR = T.PILGaussianBlur((0.1, 2.0))


class Blur:
    """MoCo's, SimSiam's."""

    def __init__(self, sigma: Any = (0.1, 2.0)):
        self.sigma = sigma

    def __call__(self, x: Any) -> Any:
        sigma = random.uniform(self.sigma[0], self.sigma[1])
        return x.filter(ImageFilter.GaussianBlur(radius=sigma))


class MaybeBlur:
    """BYOL's, Barlow Twins'."""

    def __init__(self, p: float):
        self.p = p

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            return img.filter(ImageFilter.GaussianBlur(random.random() * 1.9 + 0.1))
        return img


class DinoBlur:
    """DINO's, DeiT's."""

    def __init__(self, p: float = 0.5):
        self.prob, self.radius_min, self.radius_max = p, 0.1, 2.0

    def __call__(self, img: Any) -> Any:
        do_it = random.random() <= self.prob
        if not do_it:
            return img
        return img.filter(ImageFilter.GaussianBlur(radius=random.uniform(self.radius_min, self.radius_max)))


class Solarize:
    def __init__(self, p: float):
        self.p = p

    def __call__(self, img: Any) -> Any:
        return ImageOps.solarize(img) if np.random.rand() < self.p else img  # noqa: NPY002


class HeldGray:
    """DeiT's: a transform of torchvision's, by a draw of its own."""

    def __init__(self, p: float):
        self.p, self.transf = p, tvt.Grayscale(3)

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            return self.transf(img)
        return img


class Module(torch.nn.Module):
    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, image: Any) -> Any:
        if torch.rand(1).item() < self.p:
            return TF.hflip(image)
        return image


def choose(image: Any) -> Any:
    name = random.choice(["mirror", "equalize", "bright"])
    if name == "mirror":
        return ImageOps.mirror(image)
    if name == "equalize":
        return ImageOps.equalize(image)
    return ImageEnhance.Brightness(image).enhance(1.5)


def imported_by_name(image: Any) -> Any:
    return ImageOps.invert(image) if any_number() < 0.25 else image


def posterized(image: Any, bits: int) -> Any:
    return ImageOps.posterize(image, bits)


def two(image: Any) -> Any:
    if random.random() < 0.3:
        image = ImageOps.invert(image)
    if torch.rand(1) < 0.2:
        image = ImageOps.solarize(image, 100)
    return image


def chain(u: float, high: tuple[Any, ...], low: tuple[Any, ...]) -> tuple[Path, ...]:
    """By one number: ``low`` below u, ``high`` above."""
    return (Path(((0, 0.0, u),), low), Path(((0, u, 1.0),), high))


def steps(*transforms: Any) -> tuple[Step, ...]:
    return tuple(t if isinstance(t, Step) else Step(t) for t in transforms)


INVERT, SOLARIZE = Step(T.RandomInvert(1.0)), Step(T.RandomSolarize(100, 1.0))

KNOWN: dict[str, tuple[Any, tuple[Path, ...]]] = {
    "blur": (Blur(), (Path((), (Step(BLUR, (0,)),)),)),
    "blur by chance": (MaybeBlur(0.1), chain(0.1, (), (Step(BLUR, (1,)),))),
    "blur always": (DinoBlur(1.0), (Path((), (Step(BLUR, (1,)),)),)),
    "blur never": (DinoBlur(0.0), (Path((), ()),)),
    "numpy": (Solarize(0.2), chain(0.2, (), steps(T.RandomSolarize(128, 1.0)))),
    "torch": (Module(0.5), chain(0.5, (), steps(T.RandomHorizontalFlip(1.0)))),
    "a transform within": (HeldGray(0.2), chain(0.2, (), steps(T.Grayscale(3)))),
    "imported by name": (imported_by_name, chain(0.25, (), (INVERT,))),
    "partial": (functools.partial(posterized, bits=3), (Path((), steps(T.RandomPosterize(3, 1.0))),)),
    "gray": (lambda image: image.convert("L").convert("RGB"), (Path((), steps(T.RandomGrayscale(1.0))),)),
    "autocontrast": (lambda image: ImageOps.autocontrast(image), (Path((), steps(T.RandomAutocontrast(1.0))),)),
    "flips": (
        lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        (Path((), steps(T.RandomVerticalFlip(1.0))),),
    ),
    "sharpness": (
        lambda image: ImageEnhance.Sharpness(image).enhance(2.0),
        (Path((), steps(T.RandomAdjustSharpness(2, 1.0))),),
    ),
    "factor": (
        lambda image: ImageEnhance.Color(image).enhance(1 + 0.4 * np.random.uniform(-1, 1)),  # noqa: NPY002
        (Path((), (Step(T.ColorJitter(saturation=(0.6, 1.4)), (0,) * 8),)),),
    ),
    "two": (
        two,
        (
            Path(((0, 0.0, 0.3), (1, 0.0, 0.2)), (INVERT, SOLARIZE)),
            Path(((0, 0.0, 0.3), (1, 0.2, 1.0)), (INVERT,)),
            Path(((0, 0.3, 1.0), (1, 0.0, 0.2)), (SOLARIZE,)),
            Path(((0, 0.3, 1.0), (1, 0.2, 1.0)), ()),
        ),
    ),
    "one of three": (
        choose,
        (
            Path(((0, 0.0, 1 / 3),), steps(T.RandomHorizontalFlip(1.0))),
            Path(((0, 1 / 3, 2 / 3),), steps(T.RandomEqualize(1.0))),
            Path(((0, 2 / 3, 1.0),), steps(T.ColorJitter(brightness=(1.5, 1.5)))),
        ),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_recognized(name: str) -> None:
    function, paths = KNOWN[name]
    made = list(translate_transform([function]))
    if not any(path.steps for path in paths):
        assert made == []
        return
    (found,) = made
    assert isinstance(found, HandWritten) and found.paths == paths


@pytest.mark.parametrize(
    ("function", "made"),
    [
        (lambda x: x * 2 - 1, T.Normalize((0.5,), (0.5,))),
        (lambda x: 2 * x - 1, T.Normalize((0.5,), (0.5,))),
        (lambda x: (x - 0.5) / 0.5, T.Normalize((0.5,), (0.5,))),
        (lambda x: x.sub(torch.tensor([0.5, 0.25, 0.75]).view(3, 1, 1)), T.Normalize((0.5, 0.25, 0.75), (1, 1, 1))),
    ],
)
def test_arithmetic_of_tensors(function: Any, made: T.Transform) -> None:
    found = translate_transform([tvt.ToTensor(), function])[1]
    assert isinstance(found, HandWritten) and found.paths == (Path((), (Step(made),)),)


def test_gray_of_one_channel() -> None:
    found = translate_transform([lambda image: ImageOps.grayscale(image), tvt.ToTensor()])
    assert found.output.channels == 1 and not any(isinstance(t, Lambda) for t in found)


class Counts:
    def __init__(self) -> None:
        self.n = 0

    def __call__(self, image: Any) -> Any:
        self.n += 1
        return ImageOps.invert(image)


class Notes(Counts):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, image: Any) -> Any:
        self.seen.append(1)
        return ImageOps.invert(image)


class OwnGenerator:
    def __init__(self, generator: Any):
        self.generator = generator

    def __call__(self, image: Any) -> Any:
        return image if self.generator.random() < 0.5 else ImageOps.invert(image)


class Slots:
    __slots__ = ("p",)

    def __init__(self) -> None:
        self.p = 0.5

    def __call__(self, image: Any) -> Any:
        return ImageOps.invert(image) if random.random() < self.p else image


SETTINGS = {"p": 0.5}
STATE = np.random.RandomState(0)
their_rand = STATE.rand
OWN = random.Random(0)
their_random = OWN.random


def prints(image: Any) -> Any:
    print(end="")
    return ImageOps.invert(image)


def catches(image: Any) -> Any:
    try:
        return image.resize((8, 8))
    except Exception:
        return ImageOps.invert(image)


def looks(image: Any) -> Any:
    return ImageOps.invert(image) if image.getpixel((0, 0)) == (1, 2, 3) else image


def clock(image: Any) -> Any:
    return ImageOps.invert(image) if time.time() > 0 else image


def until(image: Any) -> Any:
    while random.random() < 0.5:
        image = ImageOps.invert(image)
    return image


def imports(image: Any) -> Any:
    import time as t

    return ImageOps.invert(image) if t.time() > 0 else image


class Later:
    """As augmentation that begins after some epochs."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, image: Image.Image) -> Image.Image:
        self.calls += 1
        return ImageOps.invert(image) if self.calls > 1000 else image


CHANGE: dict[str, Any] = {
    "a counter": Counts(),
    "one that does nothing at first": Later(),
    "a list": Notes(),
    "a generator": OwnGenerator(random.Random(0)),
    "numpy's": OwnGenerator(np.random.default_rng(0)),
    "a method of numpy's": lambda image: image if their_rand() < 0.5 else ImageOps.invert(image),
    "a method of a generator": lambda image: image if their_random() < 0.5 else ImageOps.invert(image),
}
UNKNOWN: dict[str, Any] = {
    "slots": Slots(),
    "a setting": lambda image: ImageOps.invert(image) if random.random() < SETTINGS["p"] else image,
    "print": prints,
    "except": catches,
    "pixels": looks,
    "clock": clock,
    "a loop": until,
    "import": imports,
    "another filter": lambda image: image.filter(ImageFilter.MaxFilter(3)),
    "a box": lambda image: image.filter(ImageFilter.BoxBlur(2)),
    "cutoff": lambda image: ImageOps.autocontrast(image, cutoff=2),
    "another draw": lambda image: ImageOps.invert(image) if random.gauss(0, 1) < 0 else image,
    "one that seldom does something": lambda image: (
        ImageOps.invert(image) if random.Random().random() < 1e-3 else image
    ),
    "a new generator": lambda image: ImageOps.invert(image) if random.Random().random() < 0.5 else image,
    "whole numbers": lambda image: ImageOps.posterize(image, int(random.random() * 4) + 4),
    "a product": lambda image: ImageEnhance.Color(image).enhance(random.random() * random.random()),
    "a drawn threshold": lambda image: ImageOps.solarize(image, random.uniform(0, 256)),
    "many ways": lambda image: ImageOps.posterize(image, random.randint(1, 100) % 8),
    "worker": lambda image: image if torch.utils.data.get_worker_info() else ImageOps.invert(image),
    "a function of Pillow's by another name": functools.partial(ImageOps.posterize, bits=3),
    "turned": lambda image: image.rotate(90),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_stays_user_code(name: str) -> None:
    (found,) = translate_transform([UNKNOWN[name]])
    assert isinstance(found, Lambda)


@pytest.mark.parametrize("name", CHANGE)
def test_what_changes_itself_is_called_in_the_order_of_torch(name: str) -> None:
    with pytest.raises(TranslationError, match="changes itself") as e:
        translate_transform([CHANGE[name]])
    assert e.value.reasons[0].code == "changes-itself"
    assert OWN.getstate() == random.Random(0).getstate()  # a trial draws from a copy


@pytest.mark.parametrize(
    "function",
    [lambda x: x * 255, lambda x: x * x, lambda x: x.clamp(0, 0.5), lambda x: x - x.mean(), lambda x: x.mul_(2)],
)
def test_arithmetic_that_is_not_the_same_in_every_bit(function: Any) -> None:
    assert isinstance(translate_transform([tvt.ToTensor(), function])[1], Lambda)


# ---- nothing is believed


@pytest.mark.parametrize(
    ("place", "name", "other"),
    [
        (tracing._OPS, "solarize", lambda image, threshold=127: image.step(T.RandomSolarize(threshold, 1.0))),
        (tracing._OPS, "equalize", lambda image: image.step(T.RandomAutocontrast(1.0))),
        (tracing._OPS, "mirror", lambda image: image),
    ],
)
def test_what_was_seen_wrongly_is_not_used(place: Any, name: str, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    functions: dict[str, Callable[[Any], Any]] = {
        "solarize": lambda image: ImageOps.solarize(image),
        "equalize": lambda image: ImageOps.equalize(image),
        "mirror": lambda image: ImageOps.mirror(image),
    }
    assert isinstance(translate_transform([functions[name]])[0], HandWritten)
    monkeypatch.setitem(place, name, other)
    assert isinstance(translate_transform([functions[name]])[0], Lambda)


def test_a_wrong_probability_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    is_below = draws.TracedRun.is_below
    monkeypatch.setattr(draws.TracedRun, "is_below", lambda run, k, limit: is_below(run, k, limit + 0.05))
    assert isinstance(translate_transform([MaybeBlur(0.5)])[0], Lambda)


def test_a_wrong_strength_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws.Draw, "range", property(lambda self: (self.shift, self.shift + 1.2 * self.scale)))
    assert isinstance(translate_transform([Blur()])[0], Lambda)


# ---- what it makes


@pytest.mark.parametrize("name", KNOWN)
def test_the_same_numbers_make_the_same_image(name: str) -> None:
    """The function with numbers replayed, and the ops of a plan."""
    function, paths = KNOWN[name]
    if "within" in name:
        pytest.skip("what it holds draws by itself")
    made = HandWritten(name, paths)
    u = np.random.default_rng(5).random((64, max(made.draws, 2)))
    sizes = np.tile(np.array([[20, 30]]), (64, 1))
    picture = np.random.default_rng(6).integers(0, 256, (20, 30, 3), np.uint8)
    made_ops, _ = made.resolve(u, T.transform.Images(sizes))
    for i, row in enumerate(u.tolist()):
        left = iter(row)
        with draws.replaced(draws.functions_from(lambda left=left: next(left)), [globals()]):
            theirs = np.asarray(function(Image.fromarray(picture)))
        assert np.array_equal(theirs, apply_sample(picture, made_ops, i)), i


def test_what_several_paths_have_stands_once() -> None:
    made = HandWritten("two", KNOWN["two"][1])
    u = np.random.default_rng(0).random((200, 2))
    found, _ = made.resolve(u, T.transform.Images(np.full((200, 2), 9)))
    invert, solarize = found
    assert isinstance(invert, ops.Invert) and isinstance(solarize, ops.Solarize)
    assert np.array_equal(invert.mask, u[:, 0] < 0.3) and np.array_equal(solarize.mask, u[:, 1] < 0.2)


def test_in_containers() -> None:
    (found,) = translate_transform([tvt.RandomApply([Blur()], p=0.3)])
    assert isinstance(found, T.RandomApply) and isinstance(found.transforms[0], HandWritten)
    assert found.draws == 2


def test_repr_says_what_it_is() -> None:
    name = f"{__name__}.MaybeBlur"
    shown = repr(translate_transform([MaybeBlur(0.1)])[0])
    blur = "PILGaussianBlur(radius=(0.1, 2.0)) by u1"
    assert shown == f"HandWritten({name}: if u0 < 0.1: {blur}; if u0 >= 0.1: nothing)"


# ---- what is left as it was


def test_generators_and_modules_are_as_before() -> None:
    torch.manual_seed(3)
    before = (random.getstate(), torch.get_rng_state().tolist(), random.random, ImageOps.solarize, torch.rand)
    for function, _ in KNOWN.values():
        translate_transform([function])
    after = (random.getstate(), torch.get_rng_state().tolist(), random.random, ImageOps.solarize, torch.rand)
    assert before[:2] == after[:2] and all(a is b for a, b in zip(before[2:], after[2:], strict=True))
    assert vars(sys.modules[__name__])["any_number"] is random.random


def test_other_threads_draw_as_ever() -> None:
    found: list[float] = []
    with draws.replayed([0.25], []):
        thread = threading.Thread(target=lambda: found.append(random.random()))
        state = random.getstate()
        thread.start()
        thread.join()
        assert random.random() == 0.25
    random.setstate(state)
    assert found == [random.random()]


def test_blur_of_pillow() -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8))
    made = T.Compose([BLUR]).resolve(0, 0, np.arange(1, dtype=np.uint64), np.array([[40, 50]])).ops
    (op,) = made
    assert isinstance(op, ops.BoxBlur) and 0.1 <= op.radius[0] <= 2.0
    want = picture.filter(ImageFilter.GaussianBlur(float(op.radius[0])))
    assert np.array_equal(apply_sample(picture, made, 0), np.asarray(want))
    for radius in (-1, (2, 1), (1, 2, 3)):
        with pytest.raises(ConfigError, match="radius"):
            T.PILGaussianBlur(radius)
    with pytest.raises(PipelineError, match="tensor"):
        T.Compose([T.ToTensor(), BLUR])


def test_a_tensor_is_not_looked_at() -> None:
    x = tracing.TracedTensor.of(draws.TracedRun())
    for look in (lambda: x.shape, lambda: x.mean(), lambda: torch.stack([x]), lambda: x + x, lambda: float(x)):
        with pytest.raises((draws.NotUnderstood, TypeError)):
            look()
    assert isinstance(x, Tensor)
