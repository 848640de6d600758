"""RandomApply, RandomChoice and functions: what is drawn, and that images left out come out untouched."""

from __future__ import annotations

import functools
import itertools
import pickle
import random
from typing import Any, cast

import numpy as np
import pytest
import torch
from goodness import chi_square_p
from PIL import Image
from support import settings_of

from gpupipe import transforms as T
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.kernels.apply import apply_sample, apply_tail, head_and_tail
from gpupipe.testing.photos import photograph
from gpupipe.transforms import ops, orders
from gpupipe.transforms.compose import as_compose
from gpupipe.transforms.lambda_ import name_of

P = 1e-3
N = 4000


def resolve(pipeline: Any, n: int = N, size: tuple[int, int] = (40, 50)) -> tuple[tuple[Any, ...], np.ndarray]:
    found, images, _ = as_compose(pipeline).resolve(5, 0, np.arange(n, dtype=np.uint64), np.tile(size, (n, 1)))
    return found, images.sizes


def run(pipeline: Any, pictures: list[Image.Image]) -> list[np.ndarray]:
    sizes = np.array([(p.height, p.width) for p in pictures])
    found, *_ = as_compose(pipeline).resolve(5, 0, np.arange(len(pictures), dtype=np.uint64), sizes)
    head, tail = head_and_tail(found)
    made = [np.array(apply_sample(p.copy(), head, i)) for i, p in enumerate(pictures)]
    return [apply_tail(torch.from_numpy(x)[None], tail)[0].permute(1, 2, 0).numpy() for x in made]


def pictures(n: int = 24) -> list[Image.Image]:
    sizes = ((40, 50), (33, 61), (64, 48), (50, 50))
    return [Image.fromarray(photograph(*sizes[i % 4], i)) for i in range(n)]


def sizes_of(images: list[np.ndarray]) -> set[tuple[int, int]]:
    return {image.shape[:2] for image in images}


# ---- what is drawn


def test_random_apply_draws_its_transforms_together() -> None:
    (crop, flip), sizes = resolve(T.RandomApply([T.CenterCrop((8, 9)), T.RandomVerticalFlip(1.0)], p=0.3))
    assert chi_square_p([flip.mask.sum(), N - flip.mask.sum()], [0.3 * N, 0.7 * N]) > P
    assert (crop.height == np.where(flip.mask, 8, 40)).all() and (crop.width == np.where(flip.mask, 9, 50)).all()
    assert (sizes == np.where(flip.mask[:, None], (8, 9), (40, 50))).all()


def test_random_apply_at_its_ends() -> None:
    assert resolve(T.RandomApply([T.RandomGrayscale(1.0)], p=0.0))[0] == ()
    (to,), _ = resolve(T.RandomApply([T.ToTensor()], p=1.0))
    assert isinstance(to, ops.ToDtype)


@pytest.mark.parametrize("p", [None, [1, 2, 5], [0.0, 1.0, 0.25]])
def test_random_choice_takes_one(p: Any) -> None:
    members = [T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(1.0), T.RandomGrayscale(1.0)]
    found, _ = resolve(T.RandomChoice(members, p))
    taken = np.stack([op.mask for op in found])
    assert (taken.sum(axis=0) == 1).all()
    expected = np.array([x for x in (p or [1, 1, 1]) if x], float)
    assert chi_square_p(taken.sum(axis=1), expected / expected.sum() * N) > P


@pytest.mark.parametrize("n", range(1, 5))
def test_the_places_have_every_order_within_them_and_none_could_be_left_out(n: int) -> None:
    row = orders.PLACES[n]
    every = np.array([*itertools.permutations(range(n))], np.int64)

    def within(shorter: tuple[int, ...]) -> bool:
        return all(all(step in it for step in order) for order in every.tolist() for it in [iter(shorter)])

    assert within(row)
    assert not any(within(row[:i] + row[i + 1 :]) for i in range(len(row)))
    found = [(step, mask) for step, mask in orders.places(every)]
    assert [[step for step, mask in found if mask[i]] for i in range(len(every))] == every.tolist()


def test_each_transform_has_numbers_of_its_own() -> None:
    """One uniform for two of them would tie their draws together."""
    (a, b), _ = resolve(T.RandomApply([T.RandomHorizontalFlip(), T.RandomVerticalFlip()], p=1.0))
    counts = [(x & y).sum() for x in (a.mask, ~a.mask) for y in (b.mask, ~b.mask)]
    assert chi_square_p(counts, N / 4) > P


def test_nested_to_any_depth() -> None:
    inner = T.RandomChoice([T.Compose([T.RandomApply([T.CenterCrop(20)], p=0.5), T.Resize((30, 30))]), T.Pad(2)])
    pipeline = T.Compose([T.RandomApply([inner, T.RandomHorizontalFlip(), T.RandomGrayscale()], 0.6)])
    assert pipeline.output.size is None
    sizes = resolve(pipeline)[1]
    kinds = {tuple(s) for s in sizes.tolist()}
    assert kinds == {(40, 50), (30, 30), (44, 54)}
    images = run([*pipeline, T.PILToTensor()], [Image.fromarray(photograph(40, 50, i)) for i in range(40)])
    assert sizes_of(images) == kinds
    assert [image.shape[:2] for image in images] == [tuple(s) for s in sizes[:40].tolist()]


# ---- images


def test_images_left_out_are_untouched() -> None:
    source = pictures()
    change = [T.Resize((16, 16)), T.RandomHorizontalFlip(1.0), lambda image: image.rotate(90)]
    found, _ = resolve(T.RandomApply(change, p=0.5), len(source))
    made = run([T.RandomApply(change, p=0.5), T.PILToTensor()], source)
    drawn = found[-1].mask
    assert 4 < drawn.sum() < 20
    for image, picture, taken in zip(made, source, drawn, strict=True):
        assert np.array_equal(image, np.asarray(picture)) != taken
        assert image.shape[:2] == ((16, 16) if taken else (picture.height, picture.width))


def test_a_chosen_one_gives_what_it_gives_alone() -> None:
    source = pictures()
    made = run([T.RandomChoice([T.Resize((16, 16)), T.Compose([T.CenterCrop(16), T.Grayscale(3)])])], source)
    alone = [run([T.Resize((16, 16))], source), run([T.CenterCrop(16), T.Grayscale(3)], source)]
    which = [[np.array_equal(x, y[i]) for y in alone] for i, x in enumerate(made)]
    assert all(sum(w) == 1 for w in which) and 0 < sum(w[0] for w in which) < len(source)


# ---- the skeleton does not take a draw for a rule


@pytest.mark.parametrize("p", [0.01, 0.5, 0.99])
def test_what_some_images_have_is_not_taken_for_all(p: float) -> None:
    pipeline = T.Compose([T.CenterCrop(32), T.RandomApply([T.Resize((16, 16))], p=p)])
    assert pipeline.output.size is None
    (_, resize) = pipeline.skeleton
    assert len(np.unique(resize.height)) == 2  # type: ignore[attr-defined]


# ---- refused

TENSOR = "changes the type of the image"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: T.RandomApply([]), "RandomApply: transforms is empty"),
        (lambda: T.RandomApply(T.RandomGrayscale()), "must be a list of transforms"),
        (lambda: T.RandomApply([T.Resize(3)], p=2), "between 0 and 1"),
        (lambda: T.RandomApply([3]), "RandomApply: 3 .* is not a gpupipe transform"),
        (lambda: T.RandomApply([T.RandomGrayscale]), "RandomGrayscale is a class; create an instance"),
        (lambda: T.RandomChoice([T.Resize(3)], [0.5, 0.5]), "2 probabilities for 1 transforms"),
        (lambda: T.RandomChoice([T.Resize(3)], [0]), "sum above 0"),
        (lambda: T.RandomChoice([T.Resize(3), T.Pad(1)], [-1, 2]), "at least 0"),
        (lambda: T.RandomChoice([T.MixUp(), T.Pad(1)]), "some on images"),
        (lambda: T.RandomApply([[T.Pad(1)], T.MixUp()]), "some on images"),
        (lambda: T.Compose([T.RandomApply([T.ToTensor()])]), TENSOR),
        (lambda: T.Compose([T.RandomApply([T.PILToTensor()])]), TENSOR),
        (lambda: T.Compose([T.RandomChoice([T.Grayscale(1), T.Pad(1)])]), TENSOR),
        (lambda: T.Compose([T.RandomApply([T.MultiView(T.CenterCrop(3), 2)])]), "several views"),
        (lambda: T.Lambda(3), "lambd must be callable, not 3"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, match: str) -> None:
    with pytest.raises((ConfigError, PipelineError), match=match):
        make()


def test_transforms_of_torchvision_are_no_functions() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    with pytest.raises(ConfigError, match="not a gpupipe transform"):
        T.RandomApply([v2.Resize(3)])


# ---- functions


def invert(image: Any) -> Any:
    return image.point(lambda v: 255 - v) if isinstance(image, Image.Image) else 255 - image


class Adds:
    def __init__(self, n: int):
        self.n = n

    def __call__(self, x: Any) -> Any:
        return x + self.n

    def method(self, x: Any) -> Any:
        return x


def test_names_have_no_addresses() -> None:
    assert name_of(invert) == f"{__name__}.invert"
    here = test_names_have_no_addresses
    assert name_of(lambda x: x) == f"{__name__}.{here.__name__}.<locals>.<lambda>:{here.__code__.co_firstlineno + 3}"
    assert name_of(Adds(1)) == f"{__name__}.Adds"
    assert name_of(Adds(1).method) == f"{__name__}.Adds.method"
    assert name_of(functools.partial(cast(Any, invert), 3, f=len, o=Adds(1))) == (
        f"partial({__name__}.invert, 3, f=len, o={__name__}.Adds)"
    )
    assert name_of(torch.nn.ReLU()) == "ReLU()"
    assert name_of(len) == "len"
    assert repr(T.Lambda(invert)) == f"Lambda({__name__}.invert)"


def test_a_function_in_the_list_becomes_a_lambda() -> None:
    one, other = T.Compose([invert]), T.Compose([T.Lambda(invert)])
    assert one == other and one.fingerprint == other.fingerprint
    assert one.fingerprint != T.Compose([len]).fingerprint


@pytest.mark.parametrize("before", [[], [T.PILToTensor()]], ids=["pil", "tensor"])
def test_a_function_gets_what_torchvision_would_hand_it(before: Any) -> None:
    got: list[Any] = []
    source = pictures(3)
    made = run([*before, lambda x: (got.append(x), invert(x))[1]], source)
    for image, picture, given in zip(made, source, got, strict=True):
        assert np.array_equal(image, 255 - np.asarray(picture))
        if before:
            assert type(given) is torch.Tensor and given.shape == (3, picture.height, picture.width)
            assert given.is_contiguous() and given.dtype == torch.uint8
        else:
            assert isinstance(given, Image.Image) and given.mode == "RGB"


def test_a_function_may_write_into_its_image() -> None:
    """Neither the dataset's pixels nor the other views see it."""
    pixels = photograph(20, 20, 1)
    before = pixels.copy()
    key = np.arange(1, dtype=np.uint64)
    found, *_ = T.Compose([T.PILToTensor(), lambda x: x.zero_()]).resolve(0, 0, key, [[20, 20]])
    assert not np.array(apply_sample(pixels, head_and_tail(found)[0], 0)).any() and np.array_equal(pixels, before)

    def blacken(image: Any) -> Any:
        image.paste((0, 0, 0), (0, 0, 20, 20))
        return image

    views = T.Compose([T.MultiView([[blacken], [T.RandomHorizontalFlip(0.0)]])])
    found, *_ = views.resolve(0, 0, key, [[20, 20]])
    black, clean = apply_sample(Image.fromarray(pixels), found, 0)
    assert not np.array(black).any() and np.array_equal(clean, before)


@pytest.mark.parametrize(
    ("function", "pipeline", "match"),
    [
        (lambda x: np.asarray(x), [], "it got a PIL image and returned an object of type ndarray|must keep"),
        (lambda x: x.resize((3, 3)), [], "of mode RGB and 3x3 pixels"),
        (lambda x: x.convert("L"), [], "of mode L"),
        (lambda x: x.float(), [T.PILToTensor()], r"it got a tensor uint8\[3, 40, 50\] and returned a tensor float32"),
        (lambda x: x[:, 1:], [T.ToTensor()], r"returned a tensor float32\[3, 39, 50\]"),
        (lambda x: None, [T.ToTensor()], "returned an object of type NoneType"),
        (lambda x: 1 / 0, [], r"failed on a PIL image.*ZeroDivisionError: division by zero \(test_containers.py, line"),
    ],
)
def test_a_function_that_does_something_else_is_named(function: Any, pipeline: Any, match: str) -> None:
    with pytest.raises(PipelineError, match=rf"{__name__}.<lambda>:\d+ .*({match})"):
        run([*pipeline, function, T.RandomVerticalFlip()], pictures(1))


def draws(image: Any) -> Any:
    values = [random.randrange(256), int(np.random.randint(256)), int(torch.randint(256, ()))]  # noqa: NPY002
    return Image.new("RGB", image.size, tuple(values))


def test_what_a_function_draws_belongs_to_the_sample(rng_untouched: None) -> None:
    source = pictures(6)
    one, again = (run([draws], source) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert len({tuple(image[0, 0]) for image in one}) == 6
    twice = run([draws, T.RandomApply([draws], p=0.5)], source)  # another function of the list draws other numbers
    assert 0 < sum(np.array_equal(a, b) for a, b in zip(one, twice, strict=True)) < 6


def test_plans_travel_without_functions() -> None:
    from gpupipe.planning.epoch import resolve_missing, resolve_plan
    from gpupipe.types import Plan

    pipeline = T.Compose([T.MultiView([[lambda x: x, T.RandomResizedCrop(8)], [T.RandomResizedCrop(9)]])])
    plan = Plan(1, 2, 0, np.arange(3), np.arange(3, dtype=np.uint64), 3, 3)
    plan = resolve_plan(plan, pipeline, np.full((3, 2), 40, np.int32))
    sent = pickle.loads(pickle.dumps(plan))
    assert sent.ops is None and plan.ops is not None
    there = resolve_missing(sent, pipeline)
    for a, b in zip(ops.by_view(plan.ops), ops.by_view(there.ops), strict=True):
        assert settings_of(a) == settings_of(b)
        for x, y in zip(a, b, strict=True):
            assert all(np.array_equal(v, y.numbers()[k]) for k, v in x.numbers().items())
    simple = resolve_plan(replaced(plan), T.Compose([T.RandomResizedCrop(8)]), np.full((3, 2), 40, np.int32))
    assert pickle.loads(pickle.dumps(simple)).ops is not None


def replaced(plan: Any) -> Any:
    from dataclasses import replace

    return replace(plan, ops=None)
