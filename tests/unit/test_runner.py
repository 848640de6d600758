"""The order in which DALI's pipeline object is used, with one that only notes what it is asked for."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import in_a_child, in_threads

from gpupipe import transforms as T
from gpupipe.engines.dali.graph import MEDIA
from gpupipe.engines.dali.pieces import decoded_bytes, rows_of_pieces
from gpupipe.engines.dali.runner import Failed, GivenUp, Piece, Runner
from gpupipe.errors import EngineError
from gpupipe.reading.reader import Loaded
from gpupipe.types import Plan


class Pipe:
    """Of each iteration it hands out what it was fed."""

    def __init__(self, failing: tuple[str, ...] = ()):
        self.failing = failing
        self.fed: list[str] = []
        self.queue: list[str] = []
        self.most = 0

    def build(self) -> None:
        pass

    def feed_input(self, name: str, value: str) -> None:
        assert name == MEDIA
        self.fed.append(value)

    def _run_once(self) -> None:
        self.queue.append(self.fed[-1])
        self.most = max(self.most, len(self.queue))

    def outputs(self) -> tuple[str]:
        made = self.queue.pop(0)
        if made in self.failing:
            raise RuntimeError(f"no {made} today")
        return (made,)


class Graph:
    def __init__(self, pipe: Pipe):
        self.pipe, self.outputs = pipe, (None,)


def runner_of(*pipes: Pipe, ahead: int = 2) -> Runner:
    left = iter(pipes)
    return Runner(lambda: Graph(next(left)), torch.device("cpu"), ahead=ahead)  # type: ignore[arg-type, return-value]


def test_a_graph_that_cannot_be_built_is_an_error_of_ours() -> None:
    class Old(Pipe):
        def build(self) -> None:
            raise RuntimeError(
                "Critical error when building pipeline:\nError when constructing operator: X encountered:\n\n"
                "CUDA driver version is insufficient\n\nCurrent pipeline object is no longer valid."
            )

    runner = runner_of(Old(), Old())
    runner.add(pieces_of("ab"))
    for _ in range(2):
        with pytest.raises(EngineError, match="cannot build its pipeline on cpu: CUDA driver version is ins") as e:
            runner.begin()
        assert "gpupipe doctor" in str(e.value) and "\n" not in str(e.value)


def pieces_of(names: str) -> list[Piece]:
    return [Piece(Loaded(None), slice(None), {MEDIA: name}) for name in names]  # type: ignore[arg-type]


def got(runner: Runner, piece: Piece) -> str:
    (made,), shapes = runner.get(piece)
    assert shapes is None
    return str(made)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_few_are_begun_and_those_after_them_by_who_waits(ahead: int) -> None:
    pipe, pieces = Pipe(), pieces_of("abcdef")
    runner = runner_of(pipe, ahead=ahead)
    runner.add(pieces)
    assert pipe.fed == [] and not runner.is_built
    assert [got(runner, piece) for piece in pieces[:2]] == ["a", "b"]
    assert pipe.queue == list("cdef"[:ahead]) and pipe.most == ahead
    runner.add(pieces_of("g"))
    assert [got(runner, piece) for piece in pieces[2:]] == list("cdef") and pipe.queue == ["g"]


def test_who_asks_out_of_turn_takes_nothing_from_others() -> None:
    pipe, pieces = Pipe(failing=("a",)), pieces_of("abc")
    runner = runner_of(pipe)
    runner.add(pieces)
    assert got(runner, pieces[2]) == "c" and got(runner, pieces[1]) == "b"
    with pytest.raises(Failed, match="no a today"):
        runner.get(pieces[0])


def test_a_failure_is_of_its_piece_and_another_pipeline_goes_on_where_it_was() -> None:
    first, second, pieces = Pipe(failing=("b",)), Pipe(), pieces_of("abcde")
    runner = runner_of(first, second)
    runner.add(pieces)
    assert got(runner, pieces[0]) == "a"
    with pytest.raises(Failed, match="no b today"):
        runner.get(pieces[1])
    assert first.queue == ["c", "d"]
    runner.rebuild()
    assert second.queue == ["c", "d"]
    assert [got(runner, piece) for piece in pieces[2:]] == ["c", "d", "e"] and second.fed == list("cde")


def test_what_is_not_wanted_is_not_begun_and_thrown_away() -> None:
    pipe, pieces = Pipe(failing=("b",)), pieces_of("abcdef")
    runner = runner_of(pipe)
    runner.add(pieces)
    assert got(runner, pieces[0]) == "a"
    for piece in pieces[:4]:
        piece.wanted = False
    for piece in pieces[:4]:
        with pytest.raises(GivenUp):
            runner.get(piece)
    assert [got(runner, piece) for piece in pieces[4:]] == ["e", "f"] and pipe.fed == list("abcef")


@pytest.mark.parametrize("end", ["drop", "reset"])
def test_all_that_is_in_flight_is_dropped(end: str) -> None:
    first, second, pieces = Pipe(failing=("b",)), Pipe(), pieces_of("abcdef")
    runner = runner_of(first, second)
    runner.add(pieces)
    assert got(runner, pieces[0]) == "a"
    getattr(runner, end)()
    for piece in pieces:
        with pytest.raises(GivenUp):
            runner.get(piece)
    later = pieces_of("xy")
    runner.add(later)
    assert [got(runner, piece) for piece in later] == ["x", "y"]
    if end == "drop":
        assert first.fed == list("abcxy") and first.queue == []
    else:
        assert second.fed == ["x", "y"] and not first.fed[3:]


def test_many_threads_get_what_they_ask_for() -> None:
    pipe, pieces = Pipe(), pieces_of("abcdefghijklmnopqrstuvwxyz" * 8)
    runner, wrong = runner_of(pipe), list[str]()
    runner.add(pieces)

    def ask(some: list[Piece]) -> None:
        wrong.extend(name for piece in some if (name := got(runner, piece)) != piece.fed[MEDIA])

    in_threads(*(partial(ask, pieces[k::4]) for k in range(4)))
    assert wrong == [] and pipe.most == 2 and len(pipe.fed) == len(pieces)


def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    runner = runner_of(Pipe())
    with runner._using:  # as a thread that waits for DALI
        assert in_a_child(lambda: (runner.forked(), runner.reset())[1]) == 0


# ---- how large a piece is


def loaded(side: int, count: int, *transforms: Any) -> Loaded:
    sizes = np.tile(np.array([side, side], np.int32), (count, 1))
    keys = np.arange(count, dtype=np.uint64)
    ops, *_ = T.Compose(list(transforms)).resolve(0, 0, keys, sizes)
    return Loaded(Plan(0, 0, 0, np.arange(count), keys, count, 0).with_sizes(sizes, ops))


@pytest.mark.parametrize(
    ("side", "count", "threads", "pieces"),
    [
        (32, 512, 2, 1),  # small images: as many as there are
        (360, 128, 2, 3),  # 0.37 MiB each, of 16 MiB
        (2000, 128, 2, 4),  # no fewer than sixteen for each thread
        (2000, 128, 8, 1),
        (2000, 3, 2, 1),
    ],
)
def test_pieces_have_some_megabytes_and_enough_for_each_thread(
    side: int, count: int, threads: int, pieces: int
) -> None:
    rows = rows_of_pieces(count, decoded_bytes(loaded(side, count, T.ToImage())), threads)
    assert len(rows) == pieces
    assert [i for some in rows for i in range(count)[some]] == list(range(count))
    lengths = [some.stop - some.start for some in rows]
    assert max(lengths) - min(lengths) <= 1


def test_the_window_of_a_first_crop_counts_and_not_the_image() -> None:
    assert len(rows_of_pieces(64, decoded_bytes(loaded(2000, 64, T.RandomCrop(100), T.ToImage())), 2)) == 1


def test_images_of_unknown_size_are_one_piece() -> None:
    plan = Plan(0, 0, 0, np.arange(64), np.arange(64, dtype=np.uint64), 64, 0)
    assert rows_of_pieces(64, decoded_bytes(Loaded(plan)), 2) == [slice(0, 64)]
