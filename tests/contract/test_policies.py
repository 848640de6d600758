"""Bad samples skipped or replaced: the same outcome in every engine and at every replay, and no good sample lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import BATCH, SEED, TRAIN, N, cpu_loader as loader, cut_pixels, same

from gpupipe import SampleError, Shard
from gpupipe.datasets import ImageFolder
from gpupipe.planning.order import Shuffle

BAD = (3, 4, 17)
DECODING = ("torch", "dali")


def spoil(root: Path, bad: tuple[int, ...] = BAD) -> None:
    for i in bad:
        cut_pixels(root / f"class{i:03d}" / "photo.jpg")


@pytest.fixture(params=["known to the index", "met while reading"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path, numbered: Path) -> Any:
    """The photographs, three of which are truncated."""
    root = Path(shutil.copytree(numbered, tmp_path / "photos"))
    if request.param == "met while reading":
        indexed = ImageFolder(root, TRAIN)
        spoil(root)
        return indexed
    spoil(root)
    return ImageFolder(root, TRAIN)


def labels(batches: list[Any]) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


def planned(epoch: int = 0) -> list[list[int]]:
    order = Shuffle(N, SEED, epoch).at(np.arange(N))[0].tolist()
    return [order[i : i + BATCH] for i in range(0, N, BATCH)]


@pytest.mark.parametrize("engine", DECODING)
def test_skip_leaves_out_the_bad_samples_and_nothing_else(engine: str, dataset: Any) -> None:
    with loader(dataset, engine, on_error="skip") as it:
        for epoch in range(2):
            want = [[i for i in batch if i not in BAD] for batch in planned(epoch)]
            assert labels(list(it)) == want
        assert sorted(s.index for s in it.report().samples) == sorted(BAD)
        assert {s.kind for s in it.report().samples} == {"truncated"}


@pytest.mark.parametrize("engine", DECODING)
def test_replace_keeps_the_size_and_the_place_of_every_good_sample(engine: str, dataset: Any) -> None:
    with loader(dataset, engine, on_error="replace") as it:
        for batch, plan in zip(labels(list(it)), planned(), strict=True):
            assert len(batch) == len(plan)
            for got, wanted in zip(batch, plan, strict=True):
                assert got == wanted if wanted not in BAD else got in set(plan) - set(BAD)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_the_outcome_is_the_same_in_both_engines_and_at_every_replay(on_error: str, dataset: Any) -> None:
    runs = {}
    for engine in DECODING:
        for replay in range(2):
            with loader(dataset, engine, on_error=on_error, num_workers=replay) as it:
                runs[engine, replay] = [list(it), list(it)]
    first = runs["torch", 0]
    for (engine, _), run in runs.items():
        for epoch in range(2):
            assert labels(run[epoch]) == labels(first[epoch])
            assert same(run[epoch], runs[engine, 0][epoch])


@pytest.mark.parametrize("engine", DECODING)
def test_what_was_met_once_costs_nothing_later(engine: str, dataset: Any) -> None:
    with loader(dataset, engine, on_error="replace") as it:
        list(it)
        repaired = it.stats()["repaired"]
        list(it)
        assert it.stats()["repaired"] == repaired <= len(BAD)


@pytest.mark.parametrize("engine", DECODING)
def test_resume_at_every_step_goes_on_identically(engine: str, dataset: Any) -> None:
    with loader(dataset, engine, on_error="replace") as it:
        states, whole = [it.state_dict()], []
        for batch in it:
            whole.append(batch)
            states.append(it.state_dict())
    for step in (0, 1, 3, len(whole) - 1):
        with loader(dataset, engine, on_error="replace", seed=99) as again:
            again.load_state_dict(states[step])
            assert same(list(again), whole[step:])


@pytest.mark.parametrize("engine", DECODING)
def test_all_ranks_have_the_same_number_of_batches_and_share_the_good_samples(engine: str, dataset: Any) -> None:
    seen: list[int] = []
    counts = set()
    for rank in range(2):
        with loader(dataset, engine, on_error="replace", shard=Shard(rank, 2), batch_size=3) as it:
            batches = []
            for batch in it:
                batches.append(batch)
                seen += batch[1][: it.valid].tolist()
            counts.add((len(batches), tuple(len(b[1]) for b in batches)))
    assert len(counts) == 1
    assert set(seen) == set(range(N)) - set(BAD)
    assert len(seen) == N


@pytest.mark.parametrize("engine", DECODING)
def test_a_batch_without_a_good_sample(engine: str, dataset: Any) -> None:
    with loader(dataset, engine, on_error="skip", batch_size=1, shuffle=False) as it:
        assert labels(list(it)) == [[i] for i in range(N) if i not in BAD]
        assert sorted(s.index for s in it.report().samples) == sorted(BAD)
    with loader(dataset, engine, on_error="replace", batch_size=1, shuffle=False) as it:
        whole, states = [], []
        for batch in it:
            whole.append(batch)
            states.append(it.state_dict())
        got = [i for batch in labels(whole) for i in batch]
        assert [a for i, a in enumerate(got) if i not in BAD] == [i for i in range(N) if i not in BAD]
        assert not set(got) & set(BAD)  # others of the epoch stand in
        assert sorted(s.index for s in it.report().samples) == sorted(BAD)
    for other in DECODING:
        with loader(dataset, other, on_error="replace", batch_size=1, shuffle=False) as again:
            again.load_state_dict(states[BAD[0] - 1])
            assert labels(list(again)) == labels(whole[BAD[0] :])


def test_a_short_last_batch_of_bad_samples_gets_others_of_the_epoch(tmp_path: Path, numbered: Path) -> None:
    """On one rank as on several: 3 samples of 5 are left for it, and all of them are bad."""
    root = Path(shutil.copytree(numbered, tmp_path / "photos"))
    last = planned()[-1]
    spoil(root, tuple(last))
    runs = []
    for engine in DECODING:
        with loader(ImageFolder(root, TRAIN), engine, on_error="replace") as it:
            runs.append(labels(list(it)))
            assert it.valid == len(last)
    assert runs[0] == runs[1]
    assert runs[0][:-1] == planned()[:-1]
    assert len(runs[0][-1]) == len(last) and not set(runs[0][-1]) & set(last)


@pytest.mark.parametrize("engine", DECODING)
@pytest.mark.parametrize("indexed", [False, True])
def test_a_single_good_sample_stands_in_for_all_and_without_one_it_is_an_error(
    engine: str, indexed: bool, tmp_path: Path, numbered: Path
) -> None:
    root = Path(shutil.copytree(numbered, tmp_path / "photos"))
    known = ImageFolder(root, TRAIN)
    spoil(root, tuple(range(N - 1)))
    with loader(ImageFolder(root, TRAIN) if indexed else known, engine, on_error="replace") as it:
        assert labels(list(it)) == [[N - 1] * len(batch) for batch in planned()]
        spoil(root, (N - 1,))
    with loader(ImageFolder(root, TRAIN) if indexed else known, engine, on_error="replace") as it:
        iterator, failed = iter(it), 0
        for _ in range(len(it)):
            with pytest.raises(SampleError, match=r"no other sample can replace.*Check that the storage") as raised:
                next(iterator)
            failed += len(raised.value.samples)
        assert failed == N
        assert next(iterator, None) is None


@pytest.mark.parametrize("engine", DECODING)
@pytest.mark.parametrize(
    ("max_bad", "bearable"), [(3, True), (2, False), (3 / N + 1e-6, True), (0.1, False), (0, False)]
)
def test_more_than_max_bad_is_an_error_after_all(engine: str, dataset: Any, max_bad: Any, bearable: bool) -> None:
    with loader(dataset, engine, on_error="replace", max_bad=max_bad) as it:
        if bearable:
            assert len(list(it)) == len(it)
        else:
            with pytest.raises(SampleError, match="more than max_bad="):
                list(it)


@pytest.mark.parametrize("wrong", [-1, 1.5, "some", True])
def test_a_wrong_max_bad_is_refused(wrong: Any, dataset: Any) -> None:
    with pytest.raises(ValueError, match="max_bad"):
        loader(dataset, "torch", max_bad=wrong)


@pytest.mark.parametrize("engine", DECODING)
def test_the_report_counts_and_can_be_kept(engine: str, dataset: Any, tmp_path: Path) -> None:
    with loader(dataset, engine, on_error="replace") as it:
        for _ in range(3):
            list(it)
        assert {s.index: s.count for s in it.report().samples} == dict.fromkeys(BAD, 3)
        it.report().write(tmp_path / "bad.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert {row["index"] for row in rows} == set(BAD)
    assert all(set(row) == {"index", "path", "kind", "reason", "count"} for row in rows)
