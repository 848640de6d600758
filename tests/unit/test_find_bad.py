"""Who is to blame for a batch that DALI could not decode."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("nvidia.dali")

from PIL import Image
from support import encode

from gpupipe.engines.dali.find_bad import BadSampleFinder, Suspect
from gpupipe.engines.dali.graph import DecoderOptions
from gpupipe.testing.photos import photograph

GOOD = encode(Image.fromarray(photograph(64, 80, 0)), quality=90)
CUT = GOOD[: len(GOOD) // 2]


@pytest.fixture
def probe() -> BadSampleFinder:
    return BadSampleFinder("bytes", DecoderOptions(), None, 2)


def suspects(*files: bytes) -> list[Suspect]:
    return [Suspect(i, f"file {i}", np.frombuffer(f, np.uint8), None) for i, f in enumerate(files)]


def test_what_both_refuse(probe: BadSampleFinder) -> None:
    assert [(b.index, b.kind) for b in probe.find(suspects(GOOD, CUT, GOOD))] == [(1, "truncated")]


def test_nobody_is_to_blame(probe: BadSampleFinder) -> None:
    assert probe.find(suspects(GOOD, GOOD)) == []


def test_what_dali_alone_refuses(probe: BadSampleFinder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_dali", lambda media: "no such codec" if media.tobytes() == GOOD else None)
    (bad,) = probe.find(suspects(GOOD, encode(Image.new("RGB", (30, 30)))))
    assert (bad.index, bad.kind) == (0, "unsupported") and "no such codec" in bad.reason


def test_what_dali_takes_alone_and_refused_in_a_batch(probe: BadSampleFinder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU decodes one image by its hardware, and a batch by other decoders too. Fails if a batch with a damaged file
    ends as an error that blames no sample."""
    monkeypatch.setattr(probe, "_dali", lambda media: None)
    assert [(b.index, b.kind) for b in probe.find(suspects(GOOD, CUT, GOOD))] == [(1, "truncated")]
