"""Arrays of images that nobody has looked at."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support import write_photos

from gpupipe.codecs.unread import unread
from gpupipe.interop.unread_arrays import LookedAtArray, UnreadArray, unread_arrays


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return next(write_photos(tmp_path).rglob("*.jpg"))


def test_a_shape_is_no_look(path: Path) -> None:
    want = np.array(Image.open(path).convert("RGB"))
    with Image.open(path) as opened, unread(), unread_arrays() as made:
        for image in (opened, opened.convert("RGB")):
            array: Any = np.array(image, dtype=np.uint8)
            assert type(array) is UnreadArray and np.asarray(array) is array
            assert array.shape == want.shape and array.dtype == want.dtype and array.ndim == want.ndim
            assert array[:, :, ::-1].swapped and not array[..., ::-1][:, :, ::-1].swapped
        assert len(made) == 2 and not any(one.looked for one in made)


LOOKS: list[Any] = [
    lambda a: a.mean(), np.mean, lambda a: a[3:5], lambda a: a[a > 3], len, lambda a: np.stack([a, a]), bool, iter,
    lambda a: a == 3, lambda a: np.asfortranarray(a), lambda a: np.array(a, dtype=np.float32), repr,
    lambda a: a.__setitem__(0, 7), lambda a: np.add(a, 1), lambda a: np.zeros_like(a),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(LOOKS)))
def test_who_looks_gets_an_exception_and_is_seen(number: int, path: Path) -> None:
    with unread(), unread_arrays() as made:
        array = np.array(Image.open(path).convert("RGB"))
        with pytest.raises((LookedAtArray, AttributeError, TypeError)):
            LOOKS[number](array)
        assert [one.looked for one in made] == [True]


def test_afterwards_it_is_an_array(path: Path) -> None:
    """What a script keeps in a dictionary has its values later on."""
    want = np.array(Image.open(path).convert("RGB"))
    with unread(), unread_arrays():
        array: Any = np.array(Image.open(path).convert("RGB"))
        swapped = array[:, :, ::-1]
        assert isinstance(array, np.ndarray)
    assert np.array_equal(array, want) and np.array_equal(swapped, want[:, :, ::-1])
    assert np.array_equal(np.asarray(Image.fromarray(array)), want)
    assert array.mean() == want.mean() and len(array) == len(want) and (array == want).all() and array[3, 4, 1] > -1


def test_other_arrays_are_as_ever(path: Path) -> None:
    decoded, gray = Image.open(path).convert("RGB"), Image.open(path).convert("L")
    with unread(), unread_arrays() as made:
        assert np.array([1, 2]).tolist() == [1, 2] and np.asarray((3.5,)).dtype == float
        for image in (decoded, gray, Image.new("RGB", (3, 4))):
            assert type(np.array(image)) is np.ndarray
        assert type(np.array(Image.open(path).convert("RGB"), dtype=np.float32)) is np.ndarray
        assert made == []
        found: list[type] = []
        image = Image.open(path).convert("RGB")
        thread = threading.Thread(target=lambda: found.append(type(np.array(image))))
        thread.start()
        thread.join()
        assert found == [np.ndarray]


def test_numpy_is_as_it_was() -> None:
    before = np.array, np.asarray
    with unread_arrays():
        with unread_arrays():
            pass
        assert np.array is not before[0] and np.array.__module__ == before[0].__module__
    assert (np.array, np.asarray) == before
