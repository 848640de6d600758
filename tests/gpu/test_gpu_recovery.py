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
        return
    wrong = {
        "truncated": data[: len(data) // 3],
        "nearly whole": data[: len(data) * 9 // 10],
        "empty": b"",
        "text": b"no picture at all" * 20,
    }
    file.write_bytes(wrong[how])


def run(dataset: Dataset, where: str, on_error: OnError, batch_size: int = 4) -> tuple[list[Any], list[Any], Any]:
    """(batches, errors, report) of two epochs."""
    got, errors = [], []
    with DataLoader(
        dataset, batch_size=batch_size, num_workers=4, engine="dali", device=where, on_error=on_error
    ) as loader:
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


@pytest.mark.part("how", "on_error", of=3)
@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
@pytest.mark.parametrize("how", ["truncated", "nearly whole", "missing", "empty", "text"])
def test_a_file_that_goes_bad_after_the_index_was_made(
    how: str,
    on_error: OnError,
    files: list[Path],
    where: str,
    measured: Callable[..., None],
) -> None:
    """Fails if a good batch is lost or changed, or the bad sample is not named: also if one decoder of the GPU refuses
    a truncated file and the other, asked for it alone, fills it up; and if none refuses it."""
    dataset = ImageList(list(map(str, files)), list(range(COUNT)), transform=imagenet.val(64, 72))
    clean, errors, _ = run(dataset, where, "raise")
    assert not errors and len(clean) == EPOCHS * COUNT // 4
    spoil(files[BAD], how)
    got, errors, report = run(dataset, where, on_error)
    named = [s.index for s in report.samples] == [BAD] * len(report.samples) and len(report.samples) > 0
    measured(
        f"recovery: {how}, {on_error}",
        named=named,
        errors=[s.kind for e in errors for s in e.samples],
        batches=len(got),
    )

    good = [b for b in clean if BAD not in seen(b)]
    others = [b for b in got if seen(b) in [seen(g) for g in good]]
    assert [seen(b) for b in others] == [seen(b) for b in good]
    assert all((images_of(a) - images_of(b)).abs().max() < 0.2 for a, b in zip(others, good, strict=True))
    assert named
    counted = Counter(i for b in got for i in seen(b))
    if on_error == "raise":
        assert [[s.index for s in e.samples] for e in errors] == [[BAD]] * EPOCHS
    else:
        assert not errors and counted[BAD] == 0
        assert all(counted[i] >= EPOCHS for i in range(COUNT) if i != BAD)
        assert sum(counted.values()) == EPOCHS * (COUNT - (on_error == "skip"))


@pytest.mark.parametrize("batch_size", [1, 4, 12])
@pytest.mark.parametrize("how", ["truncated", "nearly whole"])
def test_truncated_files_at_every_place_of_the_batch(
    how: str, batch_size: int, files: list[Path], where: str, measured: Callable[..., None]
) -> None:
    """Which decoder of the GPU takes a file depends on its place and on how many there are: a single one always goes to
    the hardware. Fails if one of them fills a file up with gray and says nothing."""
    dataset = ImageList(list(map(str, files)), list(range(COUNT)), transform=imagenet.val(64, 72))
    run(dataset, where, "skip", batch_size)
    bad = [0, 5, 10, 15, 20]  # every place of four
    for index in bad:
        spoil(files[index], how)
    got, errors, report = run(dataset, where, "skip", batch_size)
    named = sorted({s.index for s in report.samples})
    measured(f"recovery: {how}, batches of {batch_size}", named=named, bad=bad)
    assert named == bad and not errors
    assert Counter(i for b in got for i in seen(b)) == {i: EPOCHS for i in range(COUNT) if i not in bad}


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_every_file_of_a_batch_is_bad(on_error: OnError, files: list[Path], where: str) -> None:
    """The loader goes on behind it. Fails if it hangs, ends early or hands out rubbish."""
    dataset = ImageList(list(map(str, files)), list(range(COUNT)), transform=imagenet.val(64, 72))
    run(dataset, where, "raise")
    for file in files[8:12]:
        spoil(file, "text")
    got, errors, _ = run(dataset, where, on_error)
    good = [list(range(i, i + 4)) for i in range(0, COUNT, 4) if i != 8]
    batches = [seen(b) for b in got]
    if on_error == "replace":  # from the rest of the epoch
        filled = batches[2 :: COUNT // 4]
        assert len(filled) == EPOCHS and all(len(b) == 4 and {*b} <= {*range(8), *range(12, COUNT)} for b in filled)
        del batches[2 :: COUNT // 4]
    assert batches == good * EPOCHS
    assert len(errors) == (EPOCHS if on_error == "raise" else 0)
