"""PIL images whose pixels nobody has read."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from support import write_photos
from torch.utils import data
from torchvision import transforms as tvt

from gpupipe import DataLoader
from gpupipe.codecs.decode import peek
from gpupipe.codecs.pillow import jpeg_header
from gpupipe.codecs.unread import encoded_of, header_of, pixels_of, unread
from gpupipe.interop import translate_dataset

COLOR = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
ARRAYS: dict[str, Callable[[], Any]] = {
    "color": lambda: COLOR.copy(),
    "gray": lambda: COLOR[..., 0].copy(),
    "rows backwards": lambda: COLOR.copy()[::-1],
    "gray, every other column": lambda: COLOR.copy()[:, ::2, 1],
    "columns first": lambda: np.asfortranarray(COLOR),
}


@pytest.fixture(params=ARRAYS)
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return ARRAYS[request.param]


@pytest.fixture
def array(make: Callable[[], Any]) -> Any:
    return make()


def test_an_image_of_an_array_keeps_the_array(array: Any) -> None:
    with unread():
        image = Image.fromarray(array)
        assert type(image) is not Image.Image
        assert image.size == (array.shape[1], array.shape[0]) and image.mode == ("L" if array.ndim == 2 else "RGB")
        assert np.array_equal(pixels_of(image), array)
        assert type(image) is not Image.Image


LOOKS: dict[str, Callable[[Any], Any]] = {
    "np.array": lambda image: np.array(image),
    "getpixel": lambda image: image.getpixel((3, 2)),
    "load": lambda image: image.load()[3, 2],
    "im": lambda image: image.im.getpixel((3, 2)),
    "copy": lambda image: np.array(image.copy()),
    "convert to itself": lambda image: np.array(image.convert(image.mode)),
    "convert": lambda image: np.array(image.convert("L" if image.mode == "RGB" else "RGB")),
    "crop": lambda image: np.array(image.crop((1, 2, 5, 5))),
    "resize": lambda image: np.array(image.resize((4, 3))),
    "mirror": lambda image: np.array(ImageOps.mirror(image)),
    "paste": lambda image: (image.paste(7, (0, 0, 2, 2)), np.array(image))[1],
    "putpixel": lambda image: (image.putpixel((1, 1), 9 if image.mode == "L" else (9, 8, 7)), np.array(image))[1],
    "pickle": lambda image: np.array(pickle.loads(pickle.dumps(image))),
    "copy.copy": lambda image: np.array(copy.copy(image)),
    "copy.deepcopy": lambda image: np.array(copy.deepcopy(image)),
    "tobytes": lambda image: image.tobytes(),
    "equal": lambda image: image == image.copy(),
    "readonly": lambda image: (image.load(), image.readonly)[1],
    "save": lambda image: (file := io.BytesIO(), image.save(file, "PNG"), file.getvalue())[2],
    "info": lambda image: (image.info, image.format, image.getbands(), image.getexif()),
}


@pytest.mark.parametrize("look", LOOKS)
def test_who_reads_its_pixels_gets_pillows(look: str, make: Callable[[], Any]) -> None:
    want = LOOKS[look](Image.fromarray(make()))
    with unread():
        got = LOOKS[look](Image.fromarray(make()))
    assert np.array_equal(got, want) if isinstance(want, np.ndarray) else got == want


def test_afterwards_it_is_a_plain_image(array: Any) -> None:
    with unread():
        image = Image.fromarray(array)
        pickle.dumps(image)
    assert type(image) is Image.Image and np.array_equal(np.array(image), array)


def test_what_is_written_to_the_array_shows_as_in_pillow(make: Callable[[], Any]) -> None:
    same, array = make(), make()
    image = Image.fromarray(same)
    same[:3] = 5
    with unread():
        other = Image.fromarray(array)
        array[:3] = 5
        assert np.array_equal(np.array(other), np.array(image))


OTHERS: list[Any] = [
    COLOR[..., 0] > 9,
    COLOR[..., 0].astype(np.float32),
    COLOR[..., 0].astype(np.int32),
    np.concatenate([COLOR, COLOR[..., :1]], -1),
    np.zeros((0, 4), np.uint8),
    torch.from_numpy(COLOR[..., 0].copy()).numpy().view(np.matrix),
]


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_other_arrays_become_images_at_once(number: int) -> None:
    def made() -> Any:
        try:
            return np.array(Image.fromarray(OTHERS[number]))
        except ValueError as e:
            return str(e)

    want = made()
    with unread():
        assert np.array_equal(made(), want)
        assert type(Image.fromarray(COLOR[..., 0], "L")) is Image.Image
    assert type(Image.fromarray(COLOR)) is Image.Image


class Written(data.Dataset[Any]):
    """Writes to an array after a transform of its image."""

    def __init__(self, gray: bool, views: int):
        self.shape, self.views = ((40, 40) if gray else (40, 40, 3)), views
        self.transform = tvt.Compose([tvt.CenterCrop(36), tvt.ToTensor()])

    def __len__(self) -> int:
        return 9

    def __getitem__(self, i: int) -> Any:
        buffer = np.random.default_rng(i).integers(0, 256, self.shape, np.uint8)
        image = Image.fromarray(buffer)
        first = self.transform(image)
        buffer[3:9] = i
        return (first, i) if self.views == 1 else (first, self.transform(image))


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("gray", [True, False])
@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_a_script_that_writes_to_its_arrays(engine: Any, gray: bool, views: int) -> None:
    want = list(data.DataLoader(Written(gray, views), batch_size=4))
    with DataLoader(Written(gray, views), batch_size=4, engine=engine, device="cpu") as loader:
        for ours, theirs in zip(loader, want, strict=True):
            assert all(map(torch.allclose, ours, theirs))


# ---- files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return next(write_photos(tmp_path).rglob("*.jpg"))


def test_a_jpeg_is_opened_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = path.read_bytes()
    with unread():
        image = Image.open(path).convert("RGB")
    header, expected = header_of(image), peek(content)
    assert encoded_of(image) == (content, "RGB") and header is not None
    assert (header.height, header.width, header.coding) == (expected.height, expected.width, expected.coding)
    assert np.array_equal(np.array(image), np.array(Image.open(io.BytesIO(content)).convert("RGB")))


def test_a_progressive_one_is_known_as_well(path: Path) -> None:
    file = io.BytesIO()
    Image.open(path).save(file, "JPEG", progressive=True)
    with unread():
        header = header_of(Image.open(file).convert("RGB"))
    assert header is not None and header.coding == peek(file.getvalue()).coding


@pytest.mark.parametrize("end", [-9, -1])
def test_only_decoding_shows_what_a_cut_file_lacks(path: Path, end: int) -> None:
    content = path.read_bytes()[:end]
    with Image.open(io.BytesIO(content)) as opened:
        assert jpeg_header(opened, content) is None
    with unread():
        assert header_of(Image.open(io.BytesIO(content)).convert("RGB")) is None


def test_other_formats_are_not_looked_at(path: Path) -> None:
    file = io.BytesIO()
    Image.open(path).save(file, "PNG")
    with unread():
        assert header_of(Image.open(file).convert("RGB")) is None


class Closed(data.Dataset[Any]):
    """Closes the file before anything has read its pixels."""

    def __init__(self, path: Path):
        self.path, self.transform = path, tvt.Compose([tvt.CenterCrop(24), tvt.ToTensor()])

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        with open(self.path, "rb") as file:
            image = Image.open(file)
        return self.transform(image), i


def test_a_closed_file_fails_as_with_torch(path: Path) -> None:
    with pytest.raises(ValueError, match="closed file"):
        next(iter(data.DataLoader(Closed(path))))
    with (
        pytest.warns(match="closed file"),
        DataLoader(Closed(path), device="cpu") as loader,
        pytest.raises(ValueError, match="closed file"),
    ):
        next(iter(loader))


def test_what_a_reader_passes_on(path: Path) -> None:
    """The worker does not open the file again to learn its size."""

    class Photos(data.Dataset[Any]):
        transform = tvt.Compose([tvt.CenterCrop(24), tvt.ToTensor()])

        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> Any:
            return self.transform(Image.open(path)), i

    media, target, noticed = translate_dataset(Photos()).fetch(3)
    expected = peek(path.read_bytes())
    assert media == path.read_bytes() and target == 3 and list(noticed.peeked) == [expected]


def test_dalis_graph_only_decodes_what_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpupipe.engines.dali.runner import Runner

    def dataset() -> Any:
        made = Written(gray=False, views=1)
        made.transform = tvt.Compose([tvt.ToTensor(), tvt.Normalize(0.5, 0.5)])
        return made

    want = list(data.DataLoader(dataset(), batch_size=4))
    monkeypatch.setattr(Runner, "_begin", None)
    with DataLoader(dataset(), batch_size=4, engine="dali", device="cpu") as loader:
        for ours, theirs in zip(loader, want, strict=True):
            assert all(map(torch.allclose, ours, theirs))
