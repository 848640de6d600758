"""Bad images on the ``mixed`` decoders: named, left out or replaced, and everything else is delivered once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import images_of, seen

from gpupipe import DataLoader, SampleError
from gpupipe.datasets import Dataset, ImageList
from gpupipe.pipelines import imagenet
from gpupipe.planning.bad_samples import OnError

BAD = 9
COUNT = 24
EPOCHS = 2


@pytest.fixture
def files(large: Path, tmp_path: Path) -> list[Path]:
    out = []
    for i, file in enumerate(sorted(large.rglob("*.jpg"))[:COUNT]):
        out.append(tmp_path / f"{i:02d}.jpg")
        out[-1].write_bytes(file.read_bytes())
    return out


def spoil(file: Path, how: str) -> None:
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes({"truncated": data[: len(data) // 3], "empty": b"", "text": b"no picture at all" * 20}[how])


def run(dataset: Dataset, where: str, on_error: OnError) -> tuple[list[Any], list[Any], Any]:
    """(batches, errors, report) of two epochs."""
    got, errors = [], []
    with DataLoader(dataset, batch_size=4, num_workers=4, engine="dali", device=where, on_error=on_error) as loader:
        for _ in range(EPOCHS):
            iterator = iter(loader)
            while True:
                try:
                    got.append(next(iterator))
                except StopIteration:
                    break
                except SampleError as e:
                    errors.append(e)
        return got, errors, loader.report()


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
@pytest.mark.parametrize("how", ["truncated", "missing", "empty", "text"])
def test_a_file_that_goes_bad_after_the_index_was_made(
    how: str,
    on_error: OnError,
    files: list[Path],
    where: str,
    measured: Callable[..., None],
) -> None:
    """Fails where a good batch is lost or changed, or the bad sample is not named. A decoder that fills a truncated
    image up instead of refusing it is reported: ``named`` is then false."""
    dataset = ImageList(list(map(str, files)), list(range(COUNT)), transform=imagenet.val(64, 72))
    clean, errors, _ = run(dataset, where, "raise")
    assert not errors and len(clean) == EPOCHS * COUNT // 4
    spoil(files[BAD], how)
    got, errors, report = run(dataset, where, on_error)
    named = [s.index for s in report.samples] == [BAD] * len(report.samples) and len(report.samples) > 0
    measured(f"recovery: {how}, {on_error}", named=named, errors=[str(e)[:200] for e in errors], batches=len(got))

    good = [b for b in clean if BAD not in seen(b)]
    others = [b for b in got if seen(b) in [seen(g) for g in good]]
    assert [seen(b) for b in others] == [seen(b) for b in good]
    assert all((images_of(a) - images_of(b)).abs().max() < 0.2 for a, b in zip(others, good, strict=True))
    if how == "truncated" and not named:
        pytest.skip("this decoder fills truncated files up, and says nothing")
    assert named
    counted = Counter(i for b in got for i in seen(b))
    if on_error == "raise":
        assert [[s.index for s in e.samples] for e in errors] == [[BAD]] * EPOCHS
    else:
        assert not errors and counted[BAD] == 0
        assert all(counted[i] >= EPOCHS for i in range(COUNT) if i != BAD)
        assert sum(counted.values()) == EPOCHS * (COUNT - (on_error == "skip"))


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_every_file_of_a_batch_is_bad(on_error: OnError, files: list[Path], where: str) -> None:
    """The loader goes on behind it. Fails where it hangs, ends early or hands out rubbish."""
    dataset = ImageList(list(map(str, files)), list(range(COUNT)), transform=imagenet.val(64, 72))
    run(dataset, where, "raise")
    for file in files[8:12]:
        spoil(file, "text")
    got, errors, _ = run(dataset, where, on_error)
    wanted = [list(range(i, i + 4)) for i in range(0, COUNT, 4) if i != 8] * EPOCHS
    assert [seen(b) for b in got] == wanted
    if on_error != "skip":
        assert len(errors) == EPOCHS
