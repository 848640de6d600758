"""Every odd file, in every engine: the pixels that Pillow gives, or the same word for what is wrong with it."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_files import DAMAGED, FAULTS, JPEG, PICTURES, encode, outcome, picture
from PIL import Image, ImageOps, features
from support import in_threads

from gpupipe import transforms as T
from gpupipe.codecs import pillow as pictures
from gpupipe.codecs.decode import decode
from gpupipe.codecs.files import Place, Undecodable
from gpupipe.codecs.limits import Limits
from gpupipe.codecs.probe import KINDS, probe
from gpupipe.codecs.truncation import tail
from gpupipe.datasets import ImageFolder, ImageList, Subset
from gpupipe.datasets.index.open_index import index_path
from gpupipe.errors import ConfigError

ENGINES = ("torch", "dali")
WHOLE = T.Compose([T.PILToTensor()])
"""Nothing but decoding: what comes out are the pixels."""


def pillow(source: Any, *, exif: bool = False) -> np.ndarray[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(source) as image:
            return np.asarray((ImageOps.exif_transpose(image) if exif else image).convert("RGB"))


def write(folder: Path, files: dict[str, bytes]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


@pytest.mark.parametrize("exif", [False, True], ids=["stored", "upright"])
@pytest.mark.parametrize("engine", ENGINES)
def test_pictures_have_pillows_pixels(engine: str, exif: bool, tmp_path: Path) -> None:
    paths = write(tmp_path / "files", PICTURES)
    dataset = ImageList(paths, transform=WHOLE, exif=exif)
    assert dataset.bad(np.arange(len(paths))) == []
    for path, got in zip(paths, outcome(dataset, engine), strict=True):
        assert not isinstance(got, str), (path.name, got)
        assert np.array_equal(got, pillow(path, exif=exif)), path.name


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_known_before_anything_is_decoded(name: str, tmp_path: Path) -> None:
    content, kind = FAULTS[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    (bad,) = ImageList([path]).bad(np.arange(1))
    assert (bad.kind, bad.path) == (kind, str(path))
    with pytest.raises(Undecodable) as e:
        decode(str(path))
    assert (e.value.kind, e.value.reason) == (bad.kind, bad.reason)


@pytest.mark.parametrize("engine", ENGINES)
def test_faults_after_indexing(engine: str, tmp_path: Path) -> None:
    """A good file was indexed; what is there now is told when it is read."""
    names = [n for n, (content, _) in FAULTS.items() if content is not None]
    paths = write(tmp_path / "files", dict.fromkeys(names, JPEG))
    dataset = ImageList(paths, transform=WHOLE)
    for path in paths:
        path.write_bytes(FAULTS[path.name][0] or b"")
    assert outcome(dataset, engine) == [FAULTS[name][1] for name in names]


@pytest.mark.parametrize("engine", ENGINES)
def test_damage_inside_is_found_by_decoding(engine: str, tmp_path: Path) -> None:
    dataset = ImageList(write(tmp_path, {"x.png": DAMAGED}), transform=WHOLE)
    assert dataset.bad(np.arange(1)) == [] and outcome(dataset, engine) == ["undecodable"]


def test_zero_sized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plugin of Pillow lets one through today."""
    path = tmp_path / "x.jpg"
    path.write_bytes(JPEG)
    monkeypatch.setattr(Image, "open", lambda source: Image.new("RGB", (0, 60)))
    assert KINDS[probe(Place(bytes(path))).status] == "zero-sized"
    with pytest.raises(Undecodable, match="zero-sized"):
        decode(str(path))


@pytest.mark.parametrize("exif", [False, True], ids=["stored", "upright"])
def test_real_odd_files(shared_data: Path, exif: bool) -> None:
    """A table of file and outcome that both engines share."""
    files = sorted((shared_data / "odd").iterdir())
    bad = {
        "crash-2020-10-test.tif": "truncated",
        "decompression_bomb.gif": "bomb",
        "not_enough_data.jp2": "undecodable",
        "truncated_image.png": "truncated",
        "truncated_jpeg.jpg": "truncated",
    }
    dataset = ImageList(files, transform=WHOLE, exif=exif)
    assert {Path(s.path).name: s.kind for s in dataset.bad(np.arange(len(files)))} == bad
    for engine in ENGINES:
        results = outcome(dataset, engine)
        for file, got in zip(files, results, strict=True):
            want: Any = bad.get(file.name)
            if want is None:
                assert np.array_equal(got, pillow(file, exif=exif)), (engine, file.name)
            else:
                assert got == want, (engine, file.name)


def test_real_photographs_end_where_they_should(shared_data: Path) -> None:
    files = sorted((shared_data / "images").rglob("*.*"))
    dataset = ImageList(files)
    assert len(files) == 130 and dataset.bad(np.arange(130)) == []
    codes, names = dataset.codings
    assert {str(names[c]) for c in codes} <= {"JPEG/RGB/jpeg/RGB", "JPEG/L/jpeg/L"}  # none was decoded, none is suspect


@pytest.mark.slow
def test_no_file_ends_the_process(shared_data: Path) -> None:
    """Decoded in processes of their own, by DALI without any check before it, and by Pillow."""
    files = [str(f) for f in sorted((shared_data / "odd").iterdir())]
    program = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "import numpy as np\n"
        "from nvidia.dali import Pipeline, fn, types\n"
        "from gpupipe.codecs.decode import Undecodable, decode\n"
        "from gpupipe.engines.dali.graph import MEDIA, DecoderOptions, encoded\n"
        "pipe = Pipeline(batch_size=1, num_threads=1, device_id=None)\n"
        "with pipe:\n"
        "    pipe.set_outputs(fn.decoders.image(encoded('path'), **DecoderOptions().arguments(False)))\n"
        "for file in sys.argv[1:]:\n"
        "    try: pipe.run(**{MEDIA: [np.frombuffer(file.encode() + b'\\0', np.uint8)]})\n"
        "    except RuntimeError: pass\n"
        "    try: decode(file)\n"
        "    except Undecodable: pass\n"
        "print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip().endswith("alive"), done.stderr[-1000:]


# ---- the end of a file


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF", "JPEG2000"])
def test_a_cut_anywhere_is_seen(kind: str, keep: float, tmp_path: Path) -> None:
    content = encode(picture(97, 131), kind)
    path = tmp_path / "x"
    path.write_bytes(content[: int(len(content) * keep)])
    found = KINDS[probe(Place(bytes(path))).status]
    kind = "ok"
    try:
        decode(str(path))
    except Undecodable as e:
        kind = e.kind
    assert found == kind and kind in ("ok", "truncated")
    assert kind == "truncated" or keep > 0.9  # a few bytes that no pixel needs


def test_the_end_mark_of_a_thumbnail_is_not_the_end(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "\xff\xd9 a thumbnail ends like this: " + JPEG[-100:].decode("latin-1")
    content = encode(picture(40, 60), "JPEG", exif=exif.tobytes() + b"\xff\xd9")
    path = tmp_path / "x.jpg"
    path.write_bytes(content[:-300])
    assert b"\xff\xd9" in content[:-300] and KINDS[probe(Place(bytes(path))).status] == "truncated"


@pytest.mark.parametrize(
    "behind", [b"\0" * 3000, b"camera " * 5000, b"\0" * 100 + b"x"], ids=["zeros", "text", "mixed"]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_what_is_written_behind_the_end_does_no_harm(
    kind: str, behind: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(encode(picture(40, 60), kind) + behind)
    monkeypatch.setattr(Image.Image, "convert", lambda *a: pytest.fail("decoded to be sure, which takes long"))
    assert KINDS[probe(Place(bytes(path))).status] == "ok"


def test_quiet_from_several_threads_leaves_the_filters_alone() -> None:
    before = list(warnings.filters)
    inside = threading.Barrier(2)

    def work() -> None:
        with pictures.quiet():
            inside.wait(5)
            warnings.warn("not heard", stacklevel=1)

    in_threads(work, work)
    assert warnings.filters == before


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads and forks
def test_quiet_in_another_thread_ends_with_a_fork(inside: bool) -> None:
    entered, left = threading.Event(), threading.Event()

    def work() -> None:
        with pictures.quiet():
            entered.set()
            left.wait(30)

    def states() -> list[bool]:
        """Whether the filters are the usual ones: at first and, if this thread is inside, after it has left."""
        found = [warnings.filters == before]
        if inside:
            pictures.quiet().__exit__()
            found.append(warnings.filters == before)
        with pictures.quiet():
            found.append(warnings.filters == before)
        return [*found, warnings.filters == before]

    before = list(warnings.filters)
    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(30)
    if inside:
        pictures.quiet().__enter__()
    if (child := os.fork()) == 0:
        os._exit(0 if states() == ([False, True, False, True] if inside else [True, False, True]) else 1)
    left.set()
    thread.join()
    if inside:
        pictures.quiet().__exit__()
    assert os.waitpid(child, 0)[1] == 0
    assert warnings.filters == before


# ---- max_pixels


@pytest.mark.parametrize("engine", ENGINES)
def test_max_pixels(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = encode(picture(40, 60)), encode(picture(50, 60))
    paths = write(tmp_path / "c", {"0.jpg": small, "1.jpg": large})
    assert outcome(ImageList(paths, transform=WHOLE, max_pixels=2400), engine)[1] == "bomb"
    assert outcome(ImageFolder(tmp_path, WHOLE, max_pixels=2400), engine)[1] == "bomb"
    dataset = ImageList(paths, transform=WHOLE, max_pixels=3000)
    assert dataset.bad(np.arange(2)) == [] and Subset(dataset, [0]).limits.max_pixels == 3000
    assert index_path(dataset._source, dataset.limits) != index_path(dataset._source, Limits(max_pixels=2400))


def test_max_pixels_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "x.ppm"
    with open(path, "wb") as f:
        f.write(b"P6 9000 9000 255\n")
        f.truncate(f.tell() + 9000 * 9000 * 3)
    (bad,) = ImageList([path], max_pixels=1_000_000).bad(np.arange(1))
    assert bad.kind == "bomb" and "9000x9000" in bad.reason and "max_pixels=1000000" in bad.reason
    with pytest.raises(Undecodable, match="bomb"):
        decode(str(path), Limits(max_pixels=1_000_000))


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "9", 10**12])
def test_max_pixels_is_checked(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_pixels"):
        ImageList([], max_pixels=value)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow writes no AVIF")
def test_avif_is_among_the_pictures() -> None:
    assert "rgb.avif" in PICTURES and Image.open(io.BytesIO(PICTURES["rgb.avif"])).format == "AVIF"


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow writes no AVIF")
def test_avif_with_a_length_of_64_bits_has_an_end() -> None:
    content = PICTURES["rgb.avif"] + struct.pack(">I4sQ", 1, b"free", 24) + bytes(8)
    image = Image.open(io.BytesIO(content))
    assert tail(image, lambda count, at: content[at : at + count], len(content)) == ""
    assert tail(image, lambda count, at: content[at : at + count], len(content) - 1) == "suspect"
