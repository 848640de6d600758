"""Where the blocks of sequential scans begin in their bits: many places of many scans at the same time.

A Huffman code can only be read from its beginning, one code after the other, which takes Python a second for a
photograph. So all scans are cut into *lanes* of equal length, and an array holds the position of each. A lane that
begins in the middle of a code reads nonsense at first, but soon it hits a position at which a block does begin and
from then on it reads what there is (A. Weißenberger and B. Schmidt, *Accelerating JPEG decompression on GPUs*, 2021).
A lane ends when it comes to a block that another lane has come to as well; what it had read itself from there on would
be the same.

The scan's own blocks are those of its first lane up to where it met another, then those of that one, and so on. That
holds for damaged and for hostile files too: positions are equal only if all that follows is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .huffman import END, NO_CODE, PAIR, steps
from .markers import HuffmanCode

__all__ = ["Interval", "block_starts"]

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]

_LANES = 2048
"""So many are worth the price of numpy's calls; more would not fit into the cache."""
_SHORTEST = 1 << 14
"""Bits of a lane: it takes some thousands to meet the next one."""
_SINGLE = PAIR // 2
_BROKEN = 255
"""Stands for the phase of a block that has no code."""


@dataclass(frozen=True)
class Interval:
    """Entropy-coded bytes up to a restart marker or the end of a scan."""

    data: bytes
    """Without stuffed zeros."""
    blocks: int
    """That it must hold."""
    phases: tuple[tuple[HuffmanCode, HuffmanCode], ...]
    """The (DC, AC) codes of the blocks of an MCU, in turn."""


def block_starts(intervals: Sequence[Interval]) -> list[I64 | None]:
    """For each interval i64[blocks + 1]: the bit at which each block begins, and that behind the last one.

    ``None`` if the bits hold fewer blocks, or something that is no code.
    """
    return _Lanes(intervals).run() if intervals else []


class _Lanes:
    """All state of one run. Positions are bits in the bytes of all intervals, one after another."""

    def __init__(self, intervals: Sequence[Interval]):
        self._intervals = intervals
        self._lay_out()
        self._phases()
        self._split()

    def _lay_out(self) -> None:
        pad = bytes(64)  # a lane that reads nonsense may run over the end
        sizes = [len(i.data) + -len(i.data) % 2 + len(pad) for i in self._intervals]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])[:-1] * 8
        self._ends = self._starts + [8 * len(i.data) for i in self._intervals]
        joined = b"".join(i.data + bytes(-len(i.data) % 2) + pad for i in self._intervals)
        halves = np.frombuffer(joined, ">u2").astype(np.uint32)
        self._words = halves[:-1] << 16 | halves[1:]
        self._seen = np.zeros(8 * len(joined), np.uint8)
        """At each bit the phase, counted from 1, in which a lane began a block there."""

    def _phases(self) -> None:
        """Phases of all intervals in a row. Those in which the same codes come in the same order are one, because
        their lanes could not be told apart."""
        tables: dict[tuple[HuffmanCode, HuffmanCode], int] = {}
        cycles: dict[tuple[tuple[HuffmanCode, HuffmanCode], ...], int] = {}
        table: list[int] = []
        after: list[int] = []
        mark: list[int] = []
        self._first_phase = []
        for interval in self._intervals:
            cycle = _period(interval.phases)
            if cycle not in cycles:
                first = cycles[cycle] = len(table)
                table += [tables.setdefault(pair, len(tables)) * PAIR for pair in cycle]
                after += [first + (i + 1) % len(cycle) for i in range(len(cycle))]
                mark += range(1, len(cycle) + 1)
            self._first_phase.append(cycles[cycle])
        self._steps = np.concatenate([steps(*pair) for pair in tables])
        self._table = np.array(table, np.uint32)
        self._after = np.array(after)
        self._mark = np.array(mark, np.uint8)

    def _split(self) -> None:
        lengths = self._ends - self._starts
        length = max(int(lengths.sum()) // _LANES, _SHORTEST)
        counts = np.maximum(-(-lengths // length), 1)
        self._owner = np.arange(len(counts)).repeat(counts)
        """The interval of each lane."""
        self._first_lane = np.concatenate([[0], np.cumsum(counts)])
        number = np.arange(len(self._owner)) - self._first_lane[self._owner]
        self._begin = self._starts[self._owner] + number * length
        self._limit = np.minimum(self._begin + length, self._ends[self._owner])
        self._phase = np.array(self._first_phase)[self._owner]

    # ------------------------------------------------------------------ reading

    def run(self) -> list[I64 | None]:
        lanes, at, marks = self._read()
        order = np.argsort(lanes, kind="stable")
        bounds = np.searchsorted(lanes[order], np.arange(len(self._owner) + 1))
        at, marks = at[order], marks[order]
        paths = [(at[a:b], marks[a:b]) for a, b in pairwise(bounds.tolist())]
        return [self._joined(i, paths[a:b]) for i, (a, b) in enumerate(pairwise(self._first_lane.tolist()))]

    def _read(self) -> tuple[npt.NDArray[Any], I64, U8]:
        """(lane, bit, phase) of all that the lanes took for beginnings of blocks, by lane in ascending order."""
        lane = np.arange(len(self._owner), dtype=np.uint16 if len(self._owner) < 1 << 16 else np.int64)
        s = _State(
            lane,
            self._begin.astype(np.uint32),
            np.zeros(len(lane), np.uint16),
            self._table[self._phase],
            self._phase,
            np.zeros(len(lane), np.bool_),
            self._limit,
            self._ends[self._owner],
        )
        found = [(lane, self._begin, self._mark[self._phase])]
        self._seen[self._begin] = self._mark[self._phase]
        began = np.arange(len(lane))
        while len(s.lane):
            shown = self._words.take(s.p >> 4, mode="clip") >> (16 - (s.p & 15)) & 0xFFFF
            step = self._steps.take(shown + s.table)
            s.p += step & 63
            s.k += step >> 6
            s.table[began] += 65536  # from the codes at the beginning of a block to those inside one
            ended = np.flatnonzero(s.k > 63)
            if len(ended):
                began, done = self._end(s, ended, step, found)
                if len(done):
                    began = s.without(done, began)
            else:
                began = ended
        return tuple(map(np.concatenate, zip(*found, strict=True)))  # type: ignore[return-value]

    def _end(self, s: _State, ended: I64, step: U16, found: list[Any]) -> tuple[I64, I64]:
        """Lanes whose block is over go on to the next. Gives (those that begin a block, those that are done)."""
        k = s.k[ended]
        good = (k == 64) | ((k > END) & (k < END + 64))
        again = ended[:0]
        marks = None
        if not good.all():
            again, broken = self._misread(s, ended[~good], step)
            ended = ended[good]
            marks = np.full(len(broken), _BROKEN, np.uint8)
        s.phase[ended] = now = self._after[s.phase[ended]]
        mark = self._mark[now]
        if marks is not None:
            ended, mark = np.concatenate([ended, broken]), np.concatenate([mark, marks])
        s.k[ended] = 0
        s.single[ended] = False
        s.table[ended] = self._table[s.phase[ended]]
        at = s.p[ended].astype(np.int64)
        inside = at < s.last[ended]
        met = (at >= s.limit[ended]) & inside & (self._seen.take(at, mode="clip") == mark)
        self._seen[at[inside]] = mark[inside]
        found.append((s.lane[ended], at, mark))
        done = ended[met | ~inside]
        return (np.concatenate([ended, again]) if len(again) else ended), done

    def _misread(self, s: _State, lanes: I64, step: U16) -> tuple[I64, I64]:
        """Lanes that read over the end of a block, or something that is no code. Gives (those that try the same block
        again, those that have to begin anywhere)."""
        wrong = (s.k[lanes] >= NO_CODE) | s.single[lanes]
        broken, over = lanes[wrong], lanes[~wrong]
        # Several codes at once may have been too many: take them one by one.
        s.p[over] -= step[over] & 63
        s.k[over] -= step[over] >> 6
        s.single[over] = True
        s.table[over] = self._table[s.phase[over]] + _SINGLE + np.where(s.k[over] > 0, 65536, 0).astype(np.uint32)
        return over[s.k[over] == 0], broken

    # ------------------------------------------------------------------ joining

    def _joined(self, interval: int, paths: list[tuple[I64, U8]]) -> I64 | None:
        """The blocks of an interval out of what its lanes found."""
        needed, taken, parts = self._intervals[interval].blocks + 1, 0, []
        lane, first = 0, 0
        while True:
            at, marks = paths[lane]
            part = slice(first, first + needed - taken)
            if (marks[part] == _BROKEN).any():
                return None
            parts.append(at[part])
            taken += len(parts[-1])
            if taken == needed:
                starts = np.concatenate(parts) - self._starts[interval]
                return starts if starts[-1] <= 8 * len(self._intervals[interval].data) else None
            follow = self._find(paths, lane)
            if follow is None:
                return None
            lane, first = follow

    @staticmethod
    def _find(paths: list[tuple[I64, U8]], lane: int) -> tuple[int, int] | None:
        """(a lane that went on from the last place of this one, where it did)"""
        last, phase = paths[lane][0][-1], paths[lane][1][-1]
        for other, (at, marks) in enumerate(paths):
            i = int(np.searchsorted(at, last))
            if other != lane and i + 1 < len(at) and at[i] == last and marks[i] == phase:
                return other, i + 1
        return None


@dataclass
class _State:
    """Of the lanes that are at work, one row each."""

    lane: npt.NDArray[Any]
    p: U32
    """The bit to be read next."""
    k: U16
    """The coefficient to be read next."""
    table: U32
    """Where in the steps that is looked up."""
    phase: I64
    single: npt.NDArray[np.bool_]
    """Whether codes are taken one by one up to the end of the block."""
    limit: I64
    """From here on the lane may meet another."""
    last: I64
    """The end of the interval."""

    def without(self, done: I64, began: I64) -> I64:
        """Take lanes out; gives the new rows of those of ``began`` that stay."""
        stay = np.ones(len(self.lane), np.bool_)
        stay[done] = False
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name)[stay])
        return (np.cumsum(stay) - 1)[began[stay[began]]]


def _period(phases: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shortest beginning that ``phases`` repeats."""
    n = len(phases)
    return next(phases[:q] for q in range(1, n + 1) if n % q == 0 and phases == phases[:q] * (n // q))
