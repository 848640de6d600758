"""``gpupipe.pack.sliceable``: what jpegtran makes is verified, and a file is kept whatever goes wrong."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from jpegs import KINDS, jpeg, pillow_jpeg, pillow_jpeg_with_restarts, sliceable_pillow_jpeg
from jpegtran import FakeJpegtran, needs_jpegtran, write_program
from odd_files import exif
from PIL import Image

from gpupipe.codecs.jpeg.tiles import cut
from gpupipe.errors import MissingDependency
from gpupipe.pack import sliceable as module
from gpupipe.pack.conversion import Kept
from gpupipe.pack.sliceable import Sliceable, find_jpegtran
from gpupipe.testing.photos import photograph


def pixels(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(data)))


def is_sliceable(data: bytes) -> bool:
    return cut(lambda n, at: data[at : at + n], len(data), (0, 0, 1, 1)) is not None


# ---------------------------------------------------------------------- with the real program

INPUTS = {
    **{
        name: jpeg(photograph(53, 170, 1)[:, :, 1] if len(kind.sampling) == 1 else photograph(53, 170, 1), kind)
        for name, kind in KINDS.items()
    },
    "progressive": pillow_jpeg(97, 130, 2, progressive=True),
    "progressive, gray, restarts": pillow_jpeg(97, 130, 2, "L", progressive=True, restart_marker_rows=1),
    "smallest": pillow_jpeg(1, 1, 3),
    "EXIF": pillow_jpeg(120, 75, 8, exif=exif(6)),
    "profile and comment": pillow_jpeg(120, 75, 9, icc_profile=bytes(90_000), comment=b"x" * 500),
    "RGB": pillow_jpeg(90, 75, 10, keep_rgb=True),
    "behind the end": pillow_jpeg(120, 75, 8) + b"behind the end",
}


@needs_jpegtran
@pytest.mark.parametrize("name", INPUTS)
def test_no_coefficient_changes(name: str, tmp_path: Path) -> None:
    data, form = INPUTS[name], Sliceable()
    made = form(data)
    assert isinstance(made, bytes) and is_sliceable(made) and (pixels(made) == pixels(data)).all()
    # Without restarts and metadata, equal coefficients are equal bytes.
    bare = [
        subprocess.run([form.program, "-copy", "none", "-optimize"], input=file, capture_output=True, check=True).stdout
        for file in (data, made)
    ]
    assert bare[0] == bare[1]
    assert form(made) == made, "made twice, it changes"
    with Image.open(io.BytesIO(data)) as before, Image.open(io.BytesIO(made)) as after:
        kept = ("exif", "icc_profile", "comment")
        assert [after.info.get(key) for key in kept] == [before.info.get(key) for key in kept]
    assert made.endswith(b"behind the end") == data.endswith(b"behind the end")


@needs_jpegtran
def test_what_jpegtran_cannot_do_or_only_repairs_is_kept() -> None:
    form, good = Sliceable(), pillow_jpeg(97, 130, 1)
    rng, kept = np.random.default_rng(0), 0
    for _ in range(60):
        spoiled = bytearray(good)
        for at in rng.integers(2, len(good), 3):
            spoiled[at] = rng.integers(256)
        made = form(bytes(spoiled))
        if isinstance(made, Kept):
            assert made.kind and made.reason
            kept += 1
        else:
            assert (pixels(made) == pixels(bytes(spoiled))).all()
    assert 10 < kept < 60
    middle = len(good) // 2
    reason = form(good[:middle] + b"\xff\xd3" + good[middle:])
    assert isinstance(reason, Kept) and reason.kind == "broken" and reason.reason.startswith("jpegtran: Corrupt JPEG")


# ---------------------------------------------------------------------- what is not given to it


def test_what_is_no_jpeg_of_one_or_three_components_is_kept(tmp_path: Path) -> None:
    form = Sliceable(str(write_program(tmp_path, "touch was-run\n")))
    image = Image.fromarray(photograph(20, 30, 1))
    files: dict[str, bytes] = {"empty": b"", "undecodable": b"no picture", "truncated": pillow_jpeg(60, 80, 1)[:-200]}
    for kind, options in {"PNG": {}, "MPO": {"save_all": True, "append_images": [image]}}.items():
        out = io.BytesIO()
        image.save(out, kind, **options)
        files[kind] = out.getvalue()
    out = io.BytesIO()
    image.convert("CMYK").save(out, "JPEG")
    files["CMYK"] = out.getvalue()
    for kind, data in files.items():
        found = form(data)
        assert isinstance(found, Kept) and found.kind == kind and found.reason, (kind, found)
    assert not (tmp_path / "was-run").exists()


# ---------------------------------------------------------------------- what it may do wrong

PHOTO = (60, 192, 4)
FAILURES = {
    "exit status": ("echo 'Out of memory' >&2; cat {same}; exit 1", "broken", "jpegtran: Out of memory"),
    "warnings": ("echo 'Corrupt JPEG data' >&2; cat {same}; exit 2", "broken", "jpegtran: Corrupt JPEG data"),
    "no words": ("exit 7", "broken", "jpegtran: exit status 7"),
    "a signal": ("kill -SEGV $$", "failed", "jpegtran was ended by SIGSEGV"),
    "nothing": ("exit 0", "broken", "it does not begin with the marker SOI"),
    "cut short": ("head -c 900 {same}", "broken", "it ends before the marker EOI"),
    "no tiles": ("cat {original}", "unusual", "it has 0 restart markers for 16 tiles"),
    "progressive": ("cat {progressive}", "unusual", "it is not sequential, or has several scans"),
    "another image": ("cat {another}", "unproven", "the new file has other pixels"),
    "no image": ("cat {damaged}", "unproven", "the new file cannot be decoded"),
    "too slow": ("exec sleep 60", "slow", "jpegtran did not finish within 0.2 s"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_whatever_goes_wrong_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, kind, reason = FAILURES[name]
    fake = FakeJpegtran(tmp_path / "fake")
    data = fake.jpeg(*PHOTO)
    (same,) = fake.folder.glob("*B")
    damaged = bytearray(same.read_bytes())
    damaged[damaged.index(b"\xff\xc4") + 4] = 0x77  # a Huffman table of no class
    files = {
        "same": same.read_bytes(),
        "original": data,
        "progressive": pillow_jpeg(*PHOTO, progressive=True),
        "another": pillow_jpeg_with_restarts(60, 192, 5)[0],
        "damaged": bytes(damaged),
    }
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    assert isinstance(Sliceable(str(fake.folder / "jpegtran"))(data), bytes)
    program = write_program(tmp_path / "bin", script.format(**{file: tmp_path / file for file in files}))
    if name == "too slow":
        monkeypatch.setattr(module, "_TIMEOUT", 0.2)
    found = Sliceable(str(program))(data)
    assert isinstance(found, Kept) and found.kind == kind and found.reason.startswith(reason), found


def test_a_file_that_is_sliceable_becomes_itself(tmp_path: Path) -> None:
    program = write_program(tmp_path, "exec cat\n")
    data = sliceable_pillow_jpeg(*PHOTO)
    assert Sliceable(str(program))(data) == data


# ---------------------------------------------------------------------- finding it


def test_a_missing_program_is_named_with_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency) as caught:
        Sliceable()
    for words in ("jpegtran", "apt install libjpeg-turbo-progs", "dnf install", "conda install", "brew install"):
        assert words in str(caught.value)


@pytest.mark.parametrize("version", ["mozjpeg version 4.1.1 (build 20220815)", ""])
def test_a_program_of_another_library_is_refused(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{write_program(tmp_path, 'exit 1', version=version).parent}{os.pathsep}/usr/bin:/bin")
    with pytest.raises(
        MissingDependency, match=f"says '{version or 'nothing'}'".replace("(", r"\(").replace(")", r"\)")
    ):
        find_jpegtran()
    write_program(tmp_path, "exit 1")
    assert find_jpegtran() == str(tmp_path / "jpegtran")
    (tmp_path / "jpegtran").write_text("no program")
    with pytest.raises(MissingDependency, match="Exec format error"):
        find_jpegtran()


def test_a_program_that_was_removed_is_named(tmp_path: Path) -> None:
    program = write_program(tmp_path, "exec cat\n")
    form = Sliceable(str(program))
    program.unlink()
    with pytest.raises(MissingDependency, match="No such file"):
        form(pillow_jpeg(*PHOTO))
