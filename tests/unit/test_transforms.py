"""Transforms resolve to the numbers that torchvision would have used, or to numbers of the same distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from goodness import chi_square_p, ks_two_sample_p, ks_uniform_p
from PIL import Image
from support import settings_of

from gpupipe import transforms as T
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.rng import uniforms
from gpupipe.transforms import ops
from gpupipe.transforms.compose import as_compose

P = 1e-3
FLOAT = (T.ToTensor(), T.Normalize((0.5,), (0.5,)))


def resolve(pipeline: Any, sizes: Any, seed: int = 0, epoch: int = 0) -> tuple[tuple[Any, ...], np.ndarray]:
    sizes = np.asarray(sizes).reshape(-1, 2)
    found, images, _ = as_compose(pipeline).resolve(seed, epoch, np.arange(len(sizes), dtype=np.uint64), sizes)
    return found, images.sizes


# ---- RandomResizedCrop

CROPS = [
    ((375, 500), {}),
    ((500, 333), {"scale": (0.2, 1.0)}),
    ((64, 48), {"scale": (0.5, 1.0), "ratio": (0.5, 2.0)}),
    ((100, 900), {"scale": (0.6, 1.0)}),  # often no window fits, and the fallback is taken
    ((900, 100), {"scale": (0.6, 1.0)}),
    ((1, 1), {}),
]


@pytest.mark.part(of=3)
@pytest.mark.parametrize(("size", "options"), CROPS)
def test_random_resized_crop_draws_as_torchvision_does(
    size: tuple[int, int], options: dict[str, Any], torchvision_draws: None
) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    n, (h, w) = 3000, size
    theirs = v2.RandomResizedCrop(224, **options)
    image = torch.empty(3, h, w, dtype=torch.uint8)
    drawn = [theirs.make_params([image]) for _ in range(n)]
    want = {k: np.array([d[k] for d in drawn]) for k in ("top", "left", "height", "width")}
    (crop, resize), out = resolve(T.RandomResizedCrop(224, **options), [size] * n, seed=1)
    assert isinstance(crop, ops.Crop) and isinstance(resize, ops.Resize) and not crop.padded
    got = {k: getattr(crop, k).astype(int) for k in want}
    for mine in (want, got):
        assert (mine["top"] >= 0).all() and (mine["top"] + mine["height"] <= h).all() and (mine["height"] > 0).all()
        assert (mine["left"] >= 0).all() and (mine["left"] + mine["width"] <= w).all() and (mine["width"] > 0).all()
    assert (out == 224).all() and (resize.height == 224).all() and (resize.width == 224).all()
    for name in want:
        assert ks_two_sample_p(want[name], got[name]) > P, name
    area = [m["height"] * m["width"] / (h * w) for m in (want, got)]
    shape = [m["width"] / m["height"] for m in (want, got)]
    place = [(m["top"] + 0.5) / (h - m["height"] + 1) for m in (want, got)]
    for name, (a, b) in {"area": area, "shape": shape, "place": place}.items():
        assert ks_two_sample_p(a, b) > P, name


@pytest.mark.parametrize("size", [(37, 1000), (1000, 37), (10, 11), (3, 1), (1, 300), (224, 224)])
@pytest.mark.parametrize("ratio", [(3 / 4, 4 / 3), (1.0, 1.0), (0.3, 0.5), (2.0, 3.0)])
def test_random_resized_crop_fallback_is_torchvisions(
    size: tuple[int, int], ratio: tuple[float, float], torchvision_draws: None
) -> None:
    """With an area that never fits, torchvision's own last resort is all that is left."""
    v2 = pytest.importorskip("torchvision.transforms.v2")
    options = {"scale": (20.0, 30.0), "ratio": ratio}
    want = v2.RandomResizedCrop(8, **options).make_params([torch.empty(3, *size, dtype=torch.uint8)])
    (crop, _), _ = resolve(T.RandomResizedCrop(8, **options), [size])
    assert [int(getattr(crop, k)[0]) for k in ("top", "left", "height", "width")] == [
        want[k] for k in ("top", "left", "height", "width")
    ]


def test_random_resized_crop_takes_the_first_attempt_that_fits() -> None:
    """By hand, from the same uniforms: torchvision's loop in Python."""
    sizes = [(100, 300), (300, 100), (50, 50), (200, 210)] * 50
    t = T.RandomResizedCrop(10, scale=(0.3, 1.0))
    u = uniforms(0, 0, "RandomResizedCrop#1", np.arange(len(sizes)), t.draws)
    (crop, _), _ = resolve(t, sizes)
    for i, (h, w) in enumerate(sizes):
        for k in range(10):
            area = h * w * (0.3 + 0.7 * u[i, 2 + k])
            shape = np.exp(np.log(3 / 4) + (np.log(4 / 3) - np.log(3 / 4)) * u[i, 12 + k])
            width, height = round(np.sqrt(area * shape)), round(np.sqrt(area / shape))
            if 0 < width <= w and 0 < height <= h:
                assert (crop.height[i], crop.width[i]) == (height, width)
                assert crop.top[i] == int(u[i, 0] * (h - height + 1))
                assert crop.left[i] == int(u[i, 1] * (w - width + 1))
                break


# ---- Resize

RESIZES: list[tuple[Any, int | None]] = [
    (256, None), ([256], None), (1, None), (7, 9), (224, 225), (256, 300), (32, 1000), (None, 100), (None, 1),
    ((20, 30), None), ((1, 1), None),
]  # fmt: skip


@pytest.mark.parametrize(("size", "max_size"), RESIZES)
def test_resize_gives_torchvisions_sizes(size: Any, max_size: int | None) -> None:
    functional = pytest.importorskip("torchvision.transforms.functional")
    rng = np.random.default_rng(0)
    edges = [(1, 1), (1, 1000), (1000, 1), (256, 256), (375, 500), (500, 375), (333, 500), (3, 2), (2, 3)]
    sizes = np.concatenate([edges, rng.integers(1, 1500, (3000, 2))])
    (op,), out = resolve(T.Resize(size, max_size=max_size), sizes)
    as_list = [size] if isinstance(size, int) else size if size is None else list(size)
    for (h, w), got in zip(sizes.tolist(), out.tolist(), strict=True):
        want = functional._compute_resized_output_size((h, w), as_list, max_size=max_size, allow_size_none=size is None)
        assert got == [max(n, 1) for n in want], (h, w)  # torchvision fails on a size of zero; we keep one pixel
    assert np.array_equal(np.stack([op.height, op.width], 1), out)


def test_resize_of_tensors_and_of_pil_images() -> None:
    """PIL always filters when it reduces; tensors only where asked."""
    (before,), _ = resolve([T.Resize(5, antialias=False)], [(9, 9)])
    (_, after), _ = resolve([T.ToTensor(), T.Resize(5, antialias=False)], [(9, 9)])
    assert isinstance(before, ops.Resize) and (before.kind, before.antialias) == ("pil", True)
    assert isinstance(after, ops.Resize) and (after.kind, after.antialias) == ("tensor", False)
    with pytest.raises(PipelineError, match=r"Resize\(size=5.*PIL images only"):
        T.Compose([T.ToImage(), T.Resize(5, interpolation="box")])


# ---- CenterCrop


def numbered(h: int, w: int) -> Image.Image:
    """Every pixel tells where it was: (row + 1, column + 1, 1), so that a filled pixel is zero."""
    rows, columns = np.meshgrid(np.arange(1, h + 1), np.arange(1, w + 1), indexing="ij")
    return Image.fromarray(np.stack([rows, columns, np.ones_like(rows)], 2).astype(np.uint8))


@pytest.mark.parametrize("generation", ["torchvision.transforms", "torchvision.transforms.v2"])
def test_center_crop_is_where_torchvision_cuts(generation: str) -> None:
    transforms = pytest.importorskip(generation)
    for want in (1, 2, 5, 6, (4, 7)):
        theirs = transforms.CenterCrop(want)
        sizes = [(h, w) for h in range(1, 13) for w in (1, 4, 7, 10, 11)]
        (crop,), out = resolve(T.CenterCrop(want), sizes)
        for i, (h, w) in enumerate(sizes):
            pixels = np.asarray(theirs(numbered(h, w)))
            rows, columns = np.nonzero(pixels[..., 2])
            assert pixels.shape[:2] == tuple(out[i])
            assert pixels[rows[0], columns[0], 0] - 1 - rows[0] == crop.top[i], (h, w, want)
            assert pixels[rows[0], columns[0], 1] - 1 - columns[0] == crop.left[i], (h, w, want)


# ---- RandomCrop, Pad


def test_random_crop_is_uniform_over_all_places() -> None:
    (crop,), _ = resolve(T.RandomCrop((5, 8)), [(9, 20)] * 20_000)
    assert chi_square_p(np.bincount(crop.top, minlength=5), 20_000 / 5) > P
    assert chi_square_p(np.bincount(crop.left, minlength=13), 20_000 / 13) > P
    assert (crop.height == 5).all() and (crop.width == 8).all() and not crop.padded
    assert abs(np.corrcoef(crop.top, crop.left)[0, 1]) < 0.03


@pytest.mark.parametrize("padding", [4, (1, 2), (1, 2, 3, 4), (0, 0, 9, 0)])
@pytest.mark.parametrize("size", [(32, 32), (20, 31)])
def test_random_crop_windows_reach_into_the_padding(padding: Any, size: tuple[int, int]) -> None:
    four = (padding,) * 4 if isinstance(padding, int) else padding * 2 if len(padding) == 2 else padding
    left, top, right, bottom = four
    (crop,), out = resolve(T.RandomCrop(18, padding, fill=7, padding_mode="edge"), [size] * 5000)
    assert crop.padded and crop.fill == (7.0,) and crop.mode == "edge" and (out == 18).all()
    assert (crop.top.min(), crop.top.max()) == (-top, size[0] + bottom - 18)
    assert (crop.left.min(), crop.left.max()) == (-left, size[1] + right - 18)


@pytest.mark.parametrize("size", [(5, 20), (20, 5), (3, 3), (10, 10), (1, 1)])
@pytest.mark.parametrize("padding", [None, 1])
def test_random_crop_pads_what_is_missing_as_torchvision_does(
    size: tuple[int, int], padding: int | None, torchvision_draws: None
) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    theirs = v2.RandomCrop(10, padding, pad_if_needed=True)
    want = set()
    for _ in range(1500):
        p = theirs.make_params([torch.empty(3, *size, dtype=torch.uint8)])
        left, top = (p["padding"][0], p["padding"][1]) if p["needs_pad"] else (0, 0)
        want.add((p["top"] - top, p["left"] - left))
    (crop,), _ = resolve(T.RandomCrop(10, padding, pad_if_needed=True), [size] * 3000)
    got = set(zip(crop.top.tolist(), crop.left.tolist(), strict=True))
    assert {a for a, _ in want} == {a for a, _ in got}
    assert {b for _, b in want} == {b for _, b in got}


def test_random_crop_of_a_small_image_is_an_error_that_names_the_size() -> None:
    t = T.RandomCrop(10)
    with pytest.raises(
        PipelineError, match=r"RandomCrop\(size=\(10, 10\).*image of 9x30 pixels is smaller.*pad_if_nee"
    ):
        resolve(t, [(10, 10), (9, 30)])


@pytest.mark.parametrize(
    ("padding", "want"), [(3, (3, 3, 3, 3)), ((1, 2), (1, 2, 1, 2)), ([5], (5,) * 4), ((1, 2, 3, 4), (1, 2, 3, 4))]
)
def test_pad(padding: Any, want: tuple[int, ...]) -> None:
    left, top, right, bottom = want
    t = T.Pad(padding, fill=(1, 2, 3))
    (crop,), out = resolve(t, [(10, 20)])
    assert out.tolist() == [[10 + top + bottom, 20 + left + right]]
    assert (crop.top[0], crop.left[0], crop.height[0], crop.width[0]) == (-top, -left, *out[0])
    assert crop.padded and crop.fill == (1.0, 2.0, 3.0) and crop.mode == "constant"
    pad = pytest.importorskip("torchvision.transforms.v2").Pad(list(want))
    assert pad(numbered(10, 20)).size == (out[0, 1], out[0, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: T.Pad(-1), "none negative"),
        (lambda: T.Pad((1, 2, 3)), "one, two or four"),
        (lambda: T.Pad(1, fill=(1, 2)), "a number or three"),
        (lambda: T.Pad(1, fill="red"), "a number or three"),
        (lambda: T.Pad(1, padding_mode="wrap"), "padding_mode must be one of constant, edge, reflect, symmetric"),
        (lambda: T.RandomCrop(3, padding=1.5), "padding"),
        (lambda: T.CenterCrop(0), "CenterCrop: size must be a positive integer or a pair"),
        (lambda: T.CenterCrop((2.5, 2)), "CenterCrop: size"),
        (lambda: T.RandomHorizontalFlip(1.5), "RandomHorizontalFlip: p must be a number between 0 and 1"),
        (lambda: T.RandomVerticalFlip(True), "between 0 and 1, not True"),
        (lambda: T.RandomGrayscale("x"), "between 0 and 1"),
        (lambda: T.Grayscale(2), "must be 1 or 3"),
        (lambda: T.Normalize((0, 0), (1, 1)), "one or three numbers each"),
        (lambda: T.CenterCrop(2.5), "CenterCrop: size"),
        (lambda: T.CenterCrop(None), "CenterCrop: size"),
        (lambda: T.Resize("x"), "Resize: size"),
        (lambda: T.RandomResizedCrop(3, scale=0.5), "not 0.5"),
        (lambda: T.RandomResizedCrop(8, scale=(0.5, 0.1)), r"must be \(low, high\) with 0 < low <= high"),
        (lambda: T.RandomResizedCrop(8, scale=(0, 1)), r"must be \(low, high\) with 0 < low <= high"),
        (lambda: T.RandomResizedCrop(8, ratio=(2, 1)), r"must be \(low, high\) with 0 < low <= high"),
        (lambda: T.RandomResizedCrop(8, scale=(1,)), r"must be \(low, high\) with 0 < low <= high"),
        (lambda: T.Resize(0), "positive integer"),
        (lambda: T.Resize((1, 2, 3)), "pair"),
        (lambda: T.Resize(10, max_size=10), "must be greater than size=10"),
        (lambda: T.Resize((10, 20), max_size=30), "needs a single number"),
        (lambda: T.Resize(None), "needs max_size"),
        (lambda: T.Resize(3, "cubic"), "interpolation must be one of"),
        (lambda: T.Normalize((0, 0, 0), (1, 1, 0)), "divide by zero"),
        (lambda: T.ToDtype("int32"), "dtype must be one of uint8, float16, bfloat16, float32"),
    ],
)
def test_wrong_arguments_are_refused_when_they_are_given(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


# ---- flips and color


@pytest.mark.parametrize("cls", [T.RandomHorizontalFlip, T.RandomVerticalFlip, T.RandomGrayscale])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_happens_with_its_probability(cls: Any, p: float) -> None:
    n = 20_000
    (op,), _ = resolve(cls(p), [(4, 4)] * n)
    share = op.mask.mean()
    assert op.mask.dtype == np.bool_
    assert share == p if p in (0, 1) else chi_square_p([share * n, n - share * n], [p * n, n - p * n]) > P


def test_flip_axes() -> None:
    found, _ = resolve([T.RandomHorizontalFlip(), T.RandomVerticalFlip()], [(4, 4)] * 500)
    assert [op.axis for op in found] == ["horizontal", "vertical"]  # type: ignore[attr-defined]
    assert 0.4 < (found[0].mask == found[1].mask).mean() < 0.6  # type: ignore[attr-defined]


def test_grayscale() -> None:
    pipeline = T.Compose([T.Grayscale(), T.RandomGrayscale(1.0), T.ToTensor(), T.Normalize(0.5 * np.ones(1), 0.5)])
    assert pipeline.output.channels == 1
    assert [type(op).__name__ for op in pipeline.skeleton] == ["Gray", "ToDtype", "Normalize"]
    assert T.Compose([T.Grayscale(3)]).output.channels == 3


# ---- data types


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([T.Normalize((0.5,), (0.5,)), T.ToTensor()], "Normalize.*is a PIL image at this point"),
        ([T.PILToTensor(), T.Normalize((0.5,), (0.5,))], "Normalize.*is uint8 at this point"),
        ([T.ToDtype("float32")], "ToDtype.*put ToImage"),
        ([T.ToTensor(), T.ToTensor()], "ToTensor.*already a tensor"),
        ([T.ToTensor(), T.PILToTensor()], "PILToTensor.*already a tensor"),
        ([T.ToTensor(), T.ToDtype("uint8")], "cannot become uint8 again"),
        ([T.Grayscale(), T.ToTensor(), T.Normalize((0.1,) * 3, (1.0,) * 3)], r"3 numbers for an image of 1 channel"),
        ([T.CenterCrop(8), T.RandomCrop(9)], "8x8 pixels is smaller"),
    ],
)
def test_transforms_that_do_not_fit_together(transforms: list[T.Transform], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        T.Compose(transforms)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", torch.float32, torch.float16, torch.bfloat16])
def test_to_dtype(dtype: Any) -> None:
    pipeline = T.Compose([T.ToImage(), T.ToDtype(dtype, scale=True)])
    assert pipeline.output.dtype == str(dtype).removeprefix("torch.")
    assert pipeline.skeleton[0].settings() == {"dtype": pipeline.output.dtype, "scale": True, "kind": "tensor"}
    assert T.Compose([T.ToImage(), T.ToDtype("uint8")]).skeleton == ()


# ---- Compose


def test_compose_flattens() -> None:
    a, b, c = T.Resize(8), T.CenterCrop(8), T.ToTensor()
    nested = T.Compose([T.Compose([a]), T.Compose([T.Compose([b, c])])])
    flat = T.Compose([a, b, c])
    assert nested.transforms == (a, b, c) and nested == flat and hash(nested) == hash(flat)
    assert nested.fingerprint == flat.fingerprint
    assert list(flat) == [a, b, c] and flat[1] is b and len(flat) == 3


def test_compose_equality_and_fingerprint_follow_every_argument() -> None:
    variants = [
        T.Compose([]),
        T.Compose([], memory_format="channels_last"),
        T.Compose([T.CenterCrop(8)]),
        T.Compose([T.CenterCrop(9)]),
        T.Compose([T.CenterCrop(8), *FLOAT]),
        T.Compose([T.CenterCrop(8), T.ToTensor(), T.Normalize((0.5,), (0.25,))]),
        T.Compose([T.RandomHorizontalFlip(0.5)]),
        T.Compose([T.RandomVerticalFlip(0.5)]),
        T.Compose([T.Resize(8)]),
        T.Compose([T.Resize(8, interpolation="bicubic")]),
    ]
    assert len({v.fingerprint for v in variants}) == len(variants)
    assert all((a == b) == (i == j) for i, a in enumerate(variants) for j, b in enumerate(variants))
    assert all(len(v.fingerprint) == 16 for v in variants)


def test_compose_equality_ignores_how_an_argument_was_written() -> None:
    interpolation = pytest.importorskip("torchvision.transforms").InterpolationMode
    assert T.Resize(8, interpolation.BICUBIC) == T.Resize(8, "bicubic")
    assert T.CenterCrop(8) == T.CenterCrop((8, 8)) == T.CenterCrop([8])
    assert T.ToDtype(torch.float16) == T.ToDtype("float16")


def test_compose_output() -> None:
    assert T.Compose([T.Resize(256)]).output.size is None
    out = T.Compose([T.Resize(256), T.CenterCrop((200, 224)), *FLOAT]).output
    assert (out.size, out.channels, out.dtype) == ((200, 224), 3, "float32")
    assert T.Compose([T.RandomCrop(4000)]).output.size == (4000, 4000)


def test_compose_skeleton_does_not_depend_on_the_images() -> None:
    pipeline = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.RandomGrayscale(), *FLOAT])
    for sizes in ([(10, 10)], [(500, 3), (3, 500), (1, 1)]):
        found, _ = resolve(pipeline, sizes, seed=9, epoch=3)
        assert settings_of(found) == settings_of(pipeline.skeleton)


def test_compose_draws_by_name_so_that_adding_a_transform_changes_no_other() -> None:
    sizes = [(300, 400)] * 40
    short, _ = resolve([T.RandomResizedCrop(8), T.RandomHorizontalFlip()], sizes)
    long, _ = resolve(
        [T.RandomVerticalFlip(), T.RandomResizedCrop(8), T.RandomGrayscale(), T.RandomHorizontalFlip()], sizes
    )
    assert np.array_equal(short[0].numbers()["top"], long[1].numbers()["top"])
    assert np.array_equal(short[2].numbers()["mask"], long[4].numbers()["mask"])
    twice, _ = resolve([T.RandomHorizontalFlip(), T.RandomHorizontalFlip()], sizes)
    assert not np.array_equal(twice[0].numbers()["mask"], twice[1].numbers()["mask"])


def test_compose_resolves_each_sample_by_itself(rng_untouched: None) -> None:
    pipeline = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip()])
    sizes = np.random.default_rng(0).integers(20, 200, (50, 2))
    whole, *_ = pipeline.resolve(4, 2, np.arange(50, dtype=np.uint64), sizes)
    some = np.array([49, 0, 7])
    part, *_ = pipeline.resolve(4, 2, some.astype(np.uint64), sizes[some])
    for a, b in zip(whole, part, strict=True):
        assert all(np.array_equal(v[some], b.numbers()[k]) for k, v in a.numbers().items())


def test_compose_of_an_empty_batch() -> None:
    found, out = resolve([T.RandomResizedCrop(8), T.RandomHorizontalFlip()], np.empty((0, 2)))
    assert len(found) == 3 and out.shape == (0, 2)


def test_compose_refuses_what_is_no_transform() -> None:
    with pytest.raises(ConfigError, match=r"is not a gpupipe transform; a dataset's transform= takes"):
        T.Compose([3])
    with pytest.raises(ConfigError, match="memory_format must be contiguous_format or channels_last"):
        T.Compose([], memory_format="nhwc")
    with pytest.raises(ConfigError, match="transform:"):
        as_compose(3)


def test_compose_memory_format() -> None:
    pipeline = T.Compose([T.CenterCrop(3)], memory_format=torch.channels_last)
    assert pipeline.memory_format == "channels_last"
    assert repr(pipeline) == "Compose(\n    CenterCrop(size=(3, 3)),\n    memory_format='channels_last',\n)"
    assert repr(T.Compose([])) == "Compose()"


def test_as_compose() -> None:
    t = T.CenterCrop(3)
    assert as_compose(None) == T.Compose([])
    assert as_compose(t) == as_compose([t]) == as_compose((t,)) == T.Compose([t])
    whole = T.Compose([t])
    assert as_compose(whole) is whole


def test_transforms_are_frozen_values() -> None:
    with pytest.raises(AttributeError):
        T.CenterCrop(3).size = 4  # type: ignore[misc]
    assert repr(T.RandomResizedCrop(8)) == (
        "RandomResizedCrop(size=(8, 8), scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), "
        "interpolation='bilinear', antialias=True)"
    )


def test_crop_position_uses_the_whole_range() -> None:
    (crop,), _ = resolve(T.RandomCrop(1), [(1_000_000, 1)] * 20_000)
    assert ks_uniform_p((crop.top + 0.5) / 1_000_000) > P and (crop.left == 0).all()
