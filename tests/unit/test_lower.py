"""The DALI graph is what an expert would write by hand, and does the steps in the right order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from support import SEED, N, images_of, pictures, plans_of

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import Arrays
from gpupipe.engines.dali import Dali
from gpupipe.engines.dali.graph import DecoderOptions, Graph, build_graph
from gpupipe.engines.dali.graph_end import graph_end
from gpupipe.engines.torch.reference import reference
from gpupipe.errors import EngineError
from gpupipe.pipelines import imagenet
from gpupipe.reading.reader import Feed

PIXELS = pictures()
NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def graph(pipeline: T.Compose, form: Any = "paths") -> Graph:
    """As on a GPU, on the CPU."""
    return build_graph(
        pipeline,
        end=graph_end(pipeline.skeleton, whole=True),
        feed=Feed(form),
        decoder=DecoderOptions(),
        batch_size=4,
        num_threads=1,
        prefetch=2,
        device_id=None,
    )


def operators(pipeline: T.Compose, form: Any = "paths") -> list[str]:
    """The graph's operators in order, without inputs, reading, and the look at the header."""
    pipe = graph(pipeline, form).pipe
    pipe.build()
    names = [str(op.spec).splitlines()[0].removeprefix("OpSpec for ").rstrip(":") for op in pipe._ops]
    return [n for n in names if n not in ("ExternalSource", "io__file__Read", "PeekImageShape")]


# ---- fused


DECODE, WINDOW = "decoders__Image", "decoders__ImageSlice"
TRAIN_GRAPH = [WINDOW, "Resize", "CropMirrorNormalize"]


@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_imagenet_training_is_three_operators(dtype: str, memory_format: str) -> None:
    assert operators(imagenet.train(64, dtype=dtype, memory_format=memory_format)) == TRAIN_GRAPH


def test_imagenet_evaluation_decodes_resizes_cuts_and_normalizes() -> None:
    found = operators(imagenet.val(64))
    assert found == [DECODE, "Resize", "Slice", "CropMirrorNormalize"]


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        ([T.RandomCrop(32), T.PILToTensor()], [WINDOW, "Transpose"]),
        ([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.PILToTensor()], [WINDOW, "Resize", "Flip", "Transpose"]),
        ([T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.PILToTensor()], [DECODE, "Flip", "Transpose"]),
        ([T.RandomHorizontalFlip(), T.RandomCrop(32), T.ToTensor()], [DECODE, "Flip", "Slice", "CropMirrorNormalize"]),
        ([T.RandomResizedCrop(32), T.ToTensor(), NORMALIZE, T.RandomHorizontalFlip()], TRAIN_GRAPH),
        ([T.RandomResizedCrop(32), T.ToTensor(), T.RandomHorizontalFlip(), NORMALIZE], TRAIN_GRAPH),
        ([T.RandomResizedCrop(32), T.ToTensor(), NORMALIZE, NORMALIZE, T.ToDtype("float16")], TRAIN_GRAPH),
        ([T.RandomVerticalFlip(), T.ToTensor(), NORMALIZE], [DECODE, "Flip", "CropMirrorNormalize"]),
        (
            [T.ToTensor(), T.Resize((32, 32)), NORMALIZE],
            [DECODE, "CropMirrorNormalize", "Resize", "CropMirrorNormalize"],
        ),
        ([T.PILToTensor()], [DECODE, "Transpose"]),
    ],
    ids=lambda v: "+".join(type(t).__name__ for t in v) if not isinstance(v[0], str) else "",
)
def test_neighbors_are_fused(pipeline: list[Any], expected: list[str]) -> None:
    assert operators(T.Compose(pipeline)) == expected


def test_uint8_channels_last_needs_no_transpose() -> None:
    assert operators(imagenet.train(32, dtype="uint8", memory_format="channels_last")) == [WINDOW, "Resize", "Flip"]


def test_arrays_are_not_decoded() -> None:
    found = Counter(operators(imagenet.train(32), form="pixels"))
    assert not any(name.startswith("decoders") for name in found)
    assert found["Resize"] == found["CropMirrorNormalize"] == 1


def test_what_is_the_same_for_all_images_is_not_fed() -> None:
    assert [i.name for i in graph(imagenet.train(64)).inputs if i.name] == ["0.start", "0.shape", "2.mask"]
    assert [i.name for i in graph(T.Compose([T.Resize((8, 8)), T.ToTensor()])).inputs if i.name] == []


def test_a_plan_for_another_size_than_the_graphs_is_an_error() -> None:
    small, large = (T.Compose([T.Resize((n, n)), T.PILToTensor()]) for n in (8, 9))
    (check,) = graph(small).inputs
    with pytest.raises(EngineError, match="8x8"):
        check.read(large.skeleton[0])


# ---- in the right order


def dali(
    pipeline: T.Compose, pixels: Any = PIXELS, epochs: int = 1, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(what DALI makes of the pictures, what the reference makes of them), f64[B, C, H, W]."""
    dataset = Arrays(pixels, transform=pipeline)
    got, want = [], []
    with DataLoader(
        dataset,
        batch_size=7,
        num_workers=1,
        engine=Dali(graph="whole", **options),
        device="cpu",
        seed=SEED,
        shuffle=True,
    ) as loader:
        for epoch in range(epochs):
            got += [images_of(b).double() for b in loader]
            plans = plans_of(dataset, epoch, batch_size=7)
            want += [reference(dataset, plan, pipeline).double() for plan in plans]
    return torch.cat(got), torch.cat(want)


EXACT: dict[str, list[Any]] = {
    "crop": [T.RandomCrop(31)],
    "flip, then crop": [T.RandomHorizontalFlip(), T.RandomCrop(31)],
    "crop, then flip": [T.RandomCrop(31), T.RandomHorizontalFlip()],
    "flip up and down, then crop": [T.RandomVerticalFlip(), T.RandomCrop((20, 31))],
    "both flips": [T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "the same flip twice": [T.RandomHorizontalFlip(), T.RandomHorizontalFlip()],
    "three flips around crops": [
        T.RandomHorizontalFlip(), T.RandomCrop(40), T.RandomVerticalFlip(), T.RandomCrop(31), T.RandomHorizontalFlip(),
    ],
    "two crops": [T.RandomCrop(40), T.RandomCrop(31)],
    "center": [T.CenterCrop(31)],
    "larger center": [T.CenterCrop((70, 31))],
    "pad": [T.Pad((1, 2, 3, 4), fill=(9, 100, 250))],
    "pad, then crop": [T.RandomCrop(48, padding=5, fill=77)],
    "flip, then pad on one side": [T.RandomHorizontalFlip(), T.Pad((0, 0, 9, 0), fill=200)],
    "pad on one side, then flip": [T.Pad((0, 0, 9, 0), fill=200), T.RandomHorizontalFlip()],
    "pad if needed": [T.RandomCrop((90, 40), pad_if_needed=True, fill=(1, 2, 3))],
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_what_only_moves_pixels_is_exact(name: str) -> None:
    got, want = dali(T.Compose([*EXACT[name], T.PILToTensor()]), epochs=2)
    assert torch.equal(got, want)
    assert want.shape[0] == 2 * N


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_what_only_moves_pixels_is_exact_before_and_after_normalize(name: str) -> None:
    padded = any("Pad" in type(t).__name__ or getattr(t, "padding", None) for t in EXACT[name])
    for order in ([*EXACT[name], T.ToTensor(), NORMALIZE], [T.ToTensor(), *EXACT[name], NORMALIZE]):
        if padded and order[0] is not EXACT[name][0]:
            continue  # the fill has another unit there; see below
        got, want = dali(T.Compose(order))
        assert (got - want).abs().max() < 2e-6


def test_fill_is_in_the_units_of_its_place() -> None:
    """Padding before normalization becomes (0 - mean) / std, and after it stays what it is."""
    before = dali(T.Compose([T.Pad(2), T.ToTensor(), NORMALIZE]))
    after = dali(T.Compose([T.ToTensor(), NORMALIZE, T.Pad(2, fill=0.5)]))
    for got, want in (before, after):
        assert (got - want).abs().max() < 2e-6
    assert torch.allclose(after[0][:, :, 0, 0], torch.full((N, 3), 0.5, dtype=torch.float64))
    assert before[0][0, 0, 0, 0].item() == pytest.approx(-0.485 / 0.229)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("scale", [True, False])
def test_data_types_with_and_without_scaling(dtype: str, scale: bool) -> None:
    got, want = dali(T.Compose([T.ToImage(), T.ToDtype(dtype, scale=scale)]))
    bits = {"float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}[dtype]
    assert ((got - want).abs() <= bits * want.abs() + 1e-9).all()
    assert want.max() > (200 if not scale else 0.8)


def test_normalize_twice_composes() -> None:
    other = T.Normalize((0.1, -0.2, 0.3), (2.0, 0.5, 4.0))
    got, want = dali(T.Compose([T.ToTensor(), NORMALIZE, other]))
    assert (got - want).abs().max() < 2e-6
    assert (want - dali(T.Compose([T.ToTensor(), NORMALIZE]))[1]).abs().max() > 0.5


def test_resize_before_and_after_to_tensor() -> None:
    """Before it bytes are resized and rounded, after it floats are."""
    for pipeline in (
        T.Compose([T.Resize((24, 20)), T.ToTensor(), NORMALIZE]),
        T.Compose([T.ToTensor(), T.Resize((24, 20)), NORMALIZE]),
    ):
        got, want = dali(pipeline)
        gray = ((got - want).abs() * torch.tensor([0.229, 0.224, 0.225])[:, None, None] * 255)[..., 2:-2, 2:-2]
        assert gray.max() <= 1.05
        assert gray.mean() < 0.3


def test_one_channel_normalize() -> None:
    got, want = dali(T.Compose([T.Grayscale(1), T.ToTensor(), T.Normalize((0.5,), (0.25,))]))
    assert got.shape[1] == 1
    assert ((got - want).abs() * 0.25 * 255).max() <= 1.01


def test_random_grayscale_touches_the_chosen_only() -> None:
    pipeline = T.Compose([T.RandomGrayscale(0.5), T.PILToTensor()])
    got, want = dali(pipeline)
    gray = (want[:, 0] == want[:, 1]).all(dim=(1, 2))
    assert 3 < int(gray.sum()) < N - 3
    assert torch.equal(got[~gray], want[~gray])
    assert (got[gray] - want[gray]).abs().max() <= 1
    assert torch.equal(got[gray][:, 0], got[gray][:, 2])


def test_colors_of_floats_are_left_to_torch() -> None:
    jitter = [T.ColorJitter(0.4, 0.4, 0.4), T.RandomInvert(), T.Grayscale(3), NORMALIZE]
    pipeline = T.Compose([T.CenterCrop(32), T.ToTensor(), *jitter])
    assert graph(pipeline).end.shared == 2
    got, want = dali(pipeline)
    assert (got - want).abs().max() < 1e-4
    end = graph(T.Compose([T.ToTensor(), *jitter])).end
    why = "Brightness works on the whole batch, but images have different sizes at that point"
    assert end.then_threads and why in end.why


@pytest.mark.parametrize(
    "resize", [T.Resize((9, 9), "nearest"), T.RandomResizedCrop(9, interpolation="bicubic", antialias=False)]
)
def test_filters_that_are_others_on_tensors_are_left_to_the_host(resize: T.Transform) -> None:
    on_tensors, on_pil = T.Compose([T.ToImage(), resize]), T.Compose([resize, T.ToImage()])
    assert graph(on_tensors).end.then_threads and graph(on_tensors).end.why.startswith("Resize ")
    assert not graph(on_pil).end.then_threads  # on PIL images they are the same
    got, want = dali(on_tensors)
    assert torch.equal(got, want)


def test_a_wrong_order_would_be_seen() -> None:
    """The pictures tell crop-then-flip from flip-then-crop: what the tests above compare is not symmetric."""
    one = dali(T.Compose([T.RandomHorizontalFlip(1.0), T.RandomCrop(31), T.PILToTensor()]))[1]
    other = dali(T.Compose([T.RandomCrop(31), T.RandomHorizontalFlip(1.0), T.PILToTensor()]))[1]
    assert (one - other).abs().mean() > 5


def test_seven_samples_of_a_batch_have_their_own_numbers() -> None:
    constant = np.repeat(PIXELS[:1], 14, axis=0)
    got, _ = dali(T.Compose([T.RandomCrop(20), T.PILToTensor()]), pixels=constant)
    assert len({tuple(image.flatten().tolist()) for image in got}) > 10
