"""Orders in buckets: aspect ratios, shapes in turn, token budgets."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import native_session
from torchvision.transforms import functional as F

from gpupipe import DataLoader, SampleError, Shard, collate, samplers, transforms as T
from gpupipe.datasets import Arrays, Columns, ImageFolder
from gpupipe.errors import ConfigError, PipelineError, StateError
from gpupipe.planning.buckets import laid_out
from gpupipe.samplers import aspect_ratios

N = 203
SIZES = np.random.default_rng(0).integers(30, 100, (N, 2))
SHAPES = aspect_ratios(64 * 64, divisor=8)
NEAREST = Counter(min(SHAPES, key=lambda shape: abs(math.log(shape[1] / shape[0] * h / w))) for h, w in SIZES.tolist())
SHORT = {"neighbor": 1, "short": sum(count % 8 > 0 for count in NEAREST.values())}
"""Short batches of an epoch."""


def loader(sampler: Any, transform: Any = None, **options: Any) -> DataLoader:
    """Loader over images that are all alike; samplers get other sizes."""
    made = Arrays(np.zeros((N, 40, 40, 3), np.uint8), range(N), transform=transform or T.ResizeToBucket())
    given = {"seed": 3, "engine": "null", "device": "cpu", **options}
    return DataLoader(made, sampler=sampler, **given)


def plans(it: DataLoader, epoch: int = 0) -> list[Any]:
    return [it.plan_at(epoch, step) for step in range(len(it))]


def valid(plan: Any) -> list[int]:
    return plan.indices[: plan.valid].tolist()  # type: ignore[no-any-return]


# ---- shapes


@pytest.mark.parametrize(("area", "divisor", "ratio"), [(1024 * 1024, 64, 2.0), (512 * 512, 64, 3.0), (4096, 8, 1.5)])
def test_aspect_ratios_have_about_one_area(area: int, divisor: int, ratio: float) -> None:
    found = aspect_ratios(area, divisor=divisor, max_ratio=ratio)
    assert (side := math.isqrt(area), side) in found
    for height, width in found:
        assert height % divisor == width % divisor == 0 and max(height, width) <= ratio * min(height, width)
        assert height * width <= area < max((height + divisor) * width, height * (width + divisor))
        assert (width, height) in found
    for axis in (0, 1):
        assert len({shape[axis] for shape in found}) == len(found)
    assert [w / h for h, w in found] == sorted(w / h for h, w in found)


def test_images_go_to_the_nearest_aspect_ratio_of_the_largest_level_below_them() -> None:
    small, large = aspect_ratios(32 * 32, divisor=4), aspect_ratios(64 * 64, divisor=8)
    sampler = samplers.AspectRatioBuckets(large, small, sizes=SIZES, remainder="short")
    for plan in plans(loader(sampler, batch_size=8)):
        height, width = plan.batch_shape
        for h, w in SIZES[plan.indices].tolist():
            level = large if h * w >= np.mean([a * b for a, b in large]) else small
            best = min(level, key=lambda shape: abs(math.log(shape[1] / shape[0] * h / w)))
            assert (height, width) == best


# ---- batches


@pytest.mark.slow
@pytest.mark.parametrize("remainder", ["neighbor", "short"])
@pytest.mark.parametrize("world", [1, 4])
def test_every_sample_comes_once_and_ranks_have_equal_shapes(remainder: Any, world: int) -> None:
    sampler = samplers.AspectRatioBuckets(SHAPES, sizes=SIZES, remainder=remainder)
    ranks = [loader(sampler, global_batch_size=8, shard=Shard(r, world)) for r in range(world)]
    short = Counter[bool]()
    for epoch in range(2):
        steps = list(zip(*(plans(rank, epoch) for rank in ranks), strict=True))
        assert len(steps) == len(ranks[0]) and [len(rank.sampler) for rank in ranks] == [
            sum(len(step[r]) for step in steps) for r in range(world)
        ]
        for step in steps:
            assert len({(plan.batch_shape, len(plan)) for plan in step}) == 1
            short[sum(plan.valid for plan in step) < 8] += 1
        assert sorted(index for step in steps for plan in step for index in valid(plan)) == list(range(N))
    assert short[True] == 2 * SHORT[remainder]


def test_short_batches_come_last_and_drop_last_drops_them() -> None:
    for remainder, short in SHORT.items():
        sampler = samplers.AspectRatioBuckets(SHAPES, sizes=SIZES, remainder=remainder)  # type: ignore[arg-type]
        counts = [len(plan) for plan in plans(loader(sampler, batch_size=8))]
        assert counts[:-short] == [8] * (len(counts) - short) and max(counts[-short:]) < 8
        dropped = loader(sampler, batch_size=8, drop_last=True)
        assert [len(plan) for plan in plans(dropped)] == counts[:-short]


def test_few_images_leave_their_shape_and_others_in_every_epoch() -> None:
    counted = samplers.AspectRatioBuckets(SHAPES, sizes=SIZES, remainder="short")
    own = {i: plan.batch_shape for plan in plans(loader(counted, batch_size=8)) for i in valid(plan)}
    it = loader(samplers.AspectRatioBuckets(SHAPES, sizes=SIZES), batch_size=8)
    moved = []
    for epoch in range(2):
        here = {i: plan.batch_shape for plan in plans(it, epoch) for i in valid(plan)}
        moved.append({i for i in own if own[i] != here[i]})
        for i in moved[-1]:
            assert abs(SHAPES.index(own[i]) - SHAPES.index(here[i])) <= 1
    assert 0 < len(moved[0]) < 8 * len(SHAPES) and moved[0] != moved[1]


def test_a_line_is_cut_at_multiples_from_both_ends() -> None:
    layout = laid_out(np.array([5, 7, 20, 6, 3]), np.array([4, 4, 8, 4, 4]), home=2)
    batches = sorted(zip(layout.first.tolist(), layout.count.tolist(), layout.bucket.tolist(), strict=True))
    # 5 + 7 fill three batches; from the other end, 3 and 6 fill two of the fourth bucket, and one remains.
    assert batches == [(0, 4, 0), (4, 4, 1), (8, 4, 1), (12, 8, 2), (20, 8, 2), (28, 5, 2), (33, 4, 3), (37, 4, 3)]
    assert layout.whole == 7


@pytest.mark.parametrize("home", [None, 0, 1, 2, 3])
def test_random_layouts_have_every_position_once(home: int | None) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        sizes, batch = rng.integers(1, 30, 4), rng.integers(1, 12, 4)
        layout = laid_out(sizes, batch, home)
        covered = np.concatenate([first + np.arange(n) for first, n in zip(layout.first, layout.count, strict=True)])
        assert sorted(covered.tolist()) == list(range(int(sizes.sum())))
        assert (layout.count[: layout.whole] == batch[layout.bucket[: layout.whole]]).all()
        assert len(layout.count) - layout.whole <= (4 if home is None else 1)


def test_batches_come_in_another_order_in_every_epoch_unless_told_otherwise() -> None:
    it = loader(samplers.AspectRatioBuckets(SHAPES, sizes=SIZES), batch_size=8)
    one, two = ([plan.batch_shape for plan in plans(it, epoch)] for epoch in range(2))
    assert one != two and one != sorted(one)
    it = loader(samplers.AspectRatioBuckets(SHAPES, sizes=SIZES, shuffle=False), batch_size=8)
    assert [valid(plan) for plan in plans(it)] == [valid(plan) for plan in plans(it, 1)]


def test_another_number_of_ranks_resumes_by_global_batches() -> None:
    sampler = samplers.AspectRatioBuckets(SHAPES, sizes=SIZES)
    one = loader(sampler, global_batch_size=8)
    it = iter(one)
    for _ in range(3):
        next(it)
    state = one.state_dict()
    rest = [sorted(valid(plan)) for plan, _ in it]
    ranks = [loader(sampler, global_batch_size=8, shard=Shard(r, 2)) for r in range(2)]
    for each in ranks:
        each.load_state_dict(state)
    parts = [[valid(plan) for plan, _ in each] for each in ranks]
    assert [sorted(a + b) for a, b in zip(*parts, strict=True)] == rest
    with pytest.raises(StateError, match=r"global batches of 8.*global batches of 6"):
        loader(sampler, global_batch_size=6).load_state_dict(state)
    broken = loader(sampler, global_batch_size=8)
    broken.load_state_dict({**state, "delivered": 13})
    with pytest.raises(StateError, match="13 samples into an epoch, where no batch of these buckets ends"):
        next(iter(broken))


SAMPLERS = {
    "aspect ratios": samplers.AspectRatioBuckets(SHAPES, sizes=SIZES),
    "shapes in turn": samplers.RandomShapes([(16, 16), (32, 32)]),
    "lengths": samplers.TokenBuckets(np.arange(N) % 50 + 1, 200, buckets=4),
}


@pytest.fixture(params=SAMPLERS)
def sampled(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of :func:`loader`."""
    own = request.param == "lengths"
    size = {} if own else {"batch_size": 8}
    return {"sampler": SAMPLERS[request.param], "transform": T.ToTensor() if own else None, **size}


def test_the_rest_of_an_epoch_counts_from_its_beginning(sampled: dict[str, Any]) -> None:
    batching = native_session(loader(**sampled)).batching
    batches = batching.countable(batching.order(3, 0))
    ends = [batches.delivered(step) for step in range(len(batches))]
    for later in ends[5:]:
        rest = batches.rest(ends[2]).rest(later)
        assert rest == batches.rest(later) and rest.delivered(0) == later  # type: ignore[attr-defined]
    assert batches.rest(ends[4]).rest(0) == batches


def test_a_resumed_epoch_goes_on_after_another_iterator_took_its_engine(sampled: dict[str, Any]) -> None:
    whole = [valid(plan) for plan, _ in loader(**sampled)]
    one, two = loader(**sampled), loader(**sampled)
    it = iter(one)
    for _ in range(3):
        next(it)
    two.load_state_dict(one.state_dict())
    it = iter(two)
    found = [valid(next(it)[0]) for _ in range(2)]
    next(iter(two))
    assert found + [valid(plan) for plan, _ in it] == whole[3:]


# ---- shapes in turn


def test_shapes_come_in_their_proportions() -> None:
    shapes = [(16, 16), (24, 24), (32, 32)]
    it = loader(samplers.RandomShapes(shapes, [1, 1, 2]), batch_size=5)
    for epoch in range(2):
        found = plans(it, epoch)
        counts = Counter(plan.batch_shape for plan in found)
        assert abs(counts[32, 32] - 2 * counts[16, 16]) <= 2 and abs(counts[16, 16] - counts[24, 24]) <= 1
        assert sorted(i for plan in found for i in valid(plan)) == list(range(N))


def test_a_budget_gives_every_shape_its_batch_size() -> None:
    sampler = samplers.RandomShapes([(16, 16), (32, 32)], max_tokens=32, tokens=lambda h, w: h // 8 * (w // 8))
    found = plans(loader(sampler))
    assert {(plan.batch_shape, len(plan)) for plan in found[:-1]} == {((16, 16), 8), ((32, 32), 2)}
    assert sorted(i for plan in found for i in valid(plan)) == list(range(N))


# ---- tokens


@pytest.mark.parametrize("world", [1, 2])
def test_padded_batches_keep_the_budget(world: int) -> None:
    resize = T.ResizeToPatches(8, 200)
    counts = resize.tokens(*SIZES.T)
    sampler = samplers.TokenBuckets(resize.tokens, 1600, buckets=6, multiple_of=2, sizes=SIZES)
    ranks = [loader(sampler, T.ToTensor(), shard=Shard(r, world)) for r in range(world)]
    seen: list[int] = []
    padded = 0
    for step in zip(*map(plans, ranks), strict=True):
        assert len({len(plan) for plan in step}) == 1
        batch = [i for plan in step for i in valid(plan)]
        padded += len(batch) * int(counts[batch].max())
        assert len(batch) * counts[batch].max() <= 1600
        seen += batch
    assert sorted(seen) == list(range(N)) and counts.sum() <= padded < 1.2 * counts.sum()


def test_lengths_may_be_given() -> None:
    lengths = np.random.default_rng(2).integers(0, 77, N)
    found = plans(loader(samplers.TokenBuckets(lengths, 512, buckets=8), T.ToTensor()))
    assert all(len(plan) * lengths[plan.indices].max() <= 512 for plan in found)
    assert sorted(i for plan in found for i in valid(plan)) == list(range(N))


def _smart_resize(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """The formula of Qwen2-VL, for one image."""
    h, w = max(factor, round(height / factor) * factor), max(factor, round(width / factor) * factor)
    if h * w > most:
        beta = math.sqrt(height * width / most)
        h, w = (max(factor, math.floor(edge / beta / factor) * factor) for edge in (height, width))
    elif h * w < least:
        beta = math.sqrt(least / (height * width))
        h, w = (math.ceil(edge * beta / factor) * factor for edge in (height, width))
    return h, w


@pytest.mark.parametrize("limits", [(28, 56 * 56, 28 * 28 * 1280), (28, 300_000, 400_000), (14, 3136, 100_000)])
def test_smart_resize_is_that_of_qwen2_vl(limits: tuple[int, int, int]) -> None:
    factor, least, most = limits
    sizes = np.random.default_rng(4).integers(5, 3000, (2000, 2))
    height, width = T.SmartResize(factor, least, most).size_of(*sizes.T)
    expected = [_smart_resize(h, w, factor, least, most) for h, w in sizes.tolist()]
    assert list(zip(height.tolist(), width.tolist(), strict=True)) == expected


def test_patches_are_those_of_timm() -> None:
    from timm.data.naflex_transforms import get_image_size_for_seq

    sizes = np.random.default_rng(5).integers(5, 3000, (300, 2))
    for patch, most in ((16, 256), (14, 1024), (8, 7)):
        transform = T.ResizeToPatches(patch, most)
        height, width = transform.size_of(*sizes.T)
        expected = [get_image_size_for_seq((h, w), patch, most)[1] for h, w in sizes.tolist()]
        assert list(zip(height.tolist(), width.tolist(), strict=True)) == expected
        assert transform.tokens(*sizes.T).max() <= most


# ---- pixels


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    (root / "a").mkdir()
    rng = np.random.default_rng(0)
    for i, (h, w) in enumerate(SIZES[:40].tolist()):
        Image.fromarray(rng.integers(0, 255, (h, w, 3), np.uint8)).resize((w, h)).save(root / "a" / f"{i:02d}.png")
    return root


def test_images_cover_the_shape_of_their_batch(photos: Path) -> None:
    files = sorted(photos.rglob("*.png"))
    dataset = Columns(
        ImageFolder(photos, transform=[T.ResizeToBucket(), T.PILToTensor()]), {"number": range(len(files))}
    )
    sampler = samplers.AspectRatioBuckets(SHAPES)
    with DataLoader(dataset, batch_size=8, sampler=sampler, seed=0, engine="torch", device="cpu") as it:
        for images, _, numbers in it:
            height, width = images.shape[-2:]
            assert (height, width) in SHAPES
            for image, number in zip(images, numbers.tolist(), strict=True):
                with Image.open(files[number]) as opened:
                    scale = max(height / opened.height, width / opened.width)
                    size = [max(int(opened.height * scale + 0.5), height), max(int(opened.width * scale + 0.5), width)]
                    expected = F.center_crop(F.resize(opened, size), [height, width])
                assert (image.permute(1, 2, 0).numpy() == np.asarray(expected)).all()


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_sequences_of_patches_within_a_budget(photos: Path, engine: Any) -> None:
    from timm.data.naflex_dataset import NaFlexCollator
    from timm.data.naflex_transforms import Patchify

    resize = T.ResizeToPatches(8, 64)
    dataset = ImageFolder(photos, transform=[resize, T.ToTensor()])
    sampler = samplers.TokenBuckets(resize.tokens, 640, buckets=3)
    taken = []

    def collated(samples: Any) -> Any:
        taken.append(samples)
        return collate.Patches(8)(samples)

    count = 0
    with DataLoader(
        dataset, sampler=sampler, collate_fn=collated, seed=0, device="cpu", engine=engine, num_workers=0
    ) as it:
        for found, labels in it:
            assert found["patches"].shape[0] * found["patches"].shape[1] <= 640
            expected = [(Patchify(8)(image), label) for image, label in taken.pop(0)]
            theirs, classes = NaFlexCollator(found["patches"].shape[1])(expected)
            assert theirs.keys() >= found.keys() and all((found[k] == theirs[k]).all() for k in found)
            assert (labels == classes).all()
            count += len(labels)
    assert count == 40


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_a_budget_resumes_at_every_step(photos: Path, engine: Any) -> None:
    resize = T.ResizeToPatches(8, 64)
    dataset = ImageFolder(photos, transform=[resize, T.RandomHorizontalFlip(), T.ToTensor()])
    options: dict[str, Any] = {"collate_fn": collate.Patches(8), "seed": 0, "device": "cpu", "engine": engine}

    def made() -> DataLoader:
        return DataLoader(dataset, sampler=samplers.TokenBuckets(resize.tokens, 640, buckets=3), **options)

    with made() as one, made() as two:
        states, batches = [], []
        for batch in one:
            states.append(one.state_dict())
            batches.append(batch)
        for step in range(1, len(batches)):
            two.load_state_dict(states[step - 1])
            rest = list(two)
            assert len(rest) == len(batches) - step
            for (found, labels), (want, classes) in zip(rest, batches[step:], strict=True):
                assert all(torch.equal(found[name], want[name]) for name in want) and torch.equal(labels, classes)


@pytest.mark.parametrize("resumed", [False, True])
def test_an_epoch_goes_on_after_two_errors(photos: Path, tmp_path: Path, resumed: bool) -> None:
    by_shape = samplers.AspectRatioBuckets(SHAPES, sizes=SIZES[:40])

    def made(root: Path, **options: Any) -> DataLoader:
        folder = ImageFolder(root, transform=[T.ResizeToBucket(), T.ToTensor()])
        dataset = Columns(folder, {"number": range(40)})
        given: dict[str, Any] = {"sampler": by_shape, "seed": 0, "device": "cpu", **options}
        return DataLoader(dataset, batch_size=4, engine="torch", **given)

    with made(photos) as good:
        whole = [numbers.tolist() for *_, numbers in good]
    root = Path(shutil.copytree(photos, tmp_path / "damaged"))
    names = sorted(root.rglob("*.png"))
    for number in whole[4][0], whole[6][1]:
        names[number].write_bytes(names[number].read_bytes()[:-200])
    found: list[Any] = []
    with made(root, on_error="raise") as one, made(root, on_error="raise") as two:
        it = iter(one)
        if resumed:
            found = [next(it)[2].tolist() for _ in range(2)]
            two.load_state_dict(one.state_dict())
            it = iter(two)
        while True:
            try:
                found.append(next(it)[2].tolist())
            except SampleError as e:
                found.append([sample.index for sample in e.samples])
                if len(found) == 5:
                    # Takes the engine.
                    next(iter(two if resumed else one))
            except StopIteration:
                break
    assert found == [*whole[:4], whole[4][:1], whole[5], whole[6][1:2], *whole[7:]]


# ---- errors


def test_bad_arguments(photos: Path) -> None:
    def ratios(**options: Any) -> Any:
        return samplers.AspectRatioBuckets(SHAPES, sizes=SIZES, **options)

    cases: list[tuple[Any, str]] = [
        (lambda: aspect_ratios(100, divisor=64), "no shape has at most 100 pixels"),
        (lambda: aspect_ratios(4096, max_ratio=0.5), "max_ratio must be at least 1"),
        (lambda: samplers.AspectRatioBuckets(), "needs lists of shapes"),
        (lambda: samplers.AspectRatioBuckets([(3, 0)]), "width must be an integer of at least 1, not 0"),
        (lambda: samplers.AspectRatioBuckets([32, 32]), r"a shape is \(height, width\), not 32"),  # type: ignore[list-item]
        (lambda: ratios(remainder="drop"), 'remainder must be "neighbor" or "short"'),
        (lambda: samplers.RandomShapes([(8, 8)], [1, 2]), "2 weights for 1 shapes"),
        (lambda: samplers.RandomShapes([]), "needs shapes"),
        (lambda: loader(ratios(max_tokens=1000)), "has 4,096 tokens, more than max_tokens=1,000"),
        (lambda: loader(ratios(max_tokens=4096 * 8), batch_size=4), "max_tokens of the sampler decides"),
        (lambda: loader(ratios(max_tokens=4096 * 3), shard=Shard(0, 4)), "some of 4 ranks without any"),
        (lambda: loader(ratios(tokens=lambda h, w: 3, max_tokens=9)), "write it with numpy"),
        (lambda: loader(samplers.AspectRatioBuckets(SHAPES, sizes=SIZES[:5])), r"integers \[203, 2\]"),
        (lambda: loader(samplers.TokenBuckets([1, 2], 9)), "one for each of 203"),
        (lambda: loader(samplers.TokenBuckets([9] * N, 8)), "has 9 tokens, more than max_tokens=8"),
        (lambda: loader(ratios(), epoch_length=3), "cannot divide an order in buckets"),
        (lambda: loader(ratios(), infinite=True), "cannot divide an order in buckets"),
        (lambda: T.ResizeToBucket("middle"), 'crop must be "center" or "random"'),  # type: ignore[arg-type]
        (lambda: T.SmartResize(0), "must be positive integers"),
        (lambda: T.ResizeToPatches(16, 0), "must be positive integers"),
        (lambda: collate.Patches(0), "must be a positive integer"),
        (lambda: collate.Patches(16)([(torch.zeros(3, 20, 32), 0)]), "20x32 pixels is not made of patches of 16"),
    ]
    for make, text in cases:
        with pytest.raises(ConfigError, match=text):
            make()
    alone = ImageFolder(photos, transform=T.ResizeToBucket())
    for use in (lambda: alone[0], lambda: next(iter(DataLoader(alone, batch_size=4, device="cpu")))):
        with pytest.raises(PipelineError, match="sampler=gpupipe"):
            use()


def test_uneven_parts_warn() -> None:
    sampler = samplers.RandomShapes([(8, 8)], max_tokens=64 * 5)
    with pytest.warns(UserWarning, match="2 ranks take 2 or 3 of the 5 samples"):
        loader(sampler, shard=Shard(0, 2))
