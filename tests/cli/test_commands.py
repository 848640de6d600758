"""The ``gpupipe`` command: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main
from command_line import answer, error, gpupipe
from PIL import Image
from rich.console import Console

import gpupipe as gpupipe_package
from gpupipe import __version__
from gpupipe.bench.measure import Result
from gpupipe.cli import app
from gpupipe.commands.answer import answering
from gpupipe.commands.bench import _table
from gpupipe.commands.pack import Request
from gpupipe.testing.photos import make_photos, photograph

COMMANDS = Path(gpupipe_package.__file__).parent / "commands"
VAL = "imagenet.val:size=32,resize=40,dtype=uint8"


@pytest.mark.slow
def test_help_comes_without_torch_or_dali() -> None:
    code = (
        "import sys; from gpupipe.cli import main; sys.argv = ['gpupipe', '--help']\n"
        "try: main()\n"
        "except SystemExit as e: print('loaded', e.code, 'torch' in sys.modules, 'nvidia.dali' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "loaded 0 False False" in done.stdout
    for name in ("index", "pack", "doctor", "compare", "bench", "demo"):
        assert name in done.stdout


def test_every_argument_is_explained() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    without = [(name, it.name) for name, command in commands.items() for it in command.params if not it.help]
    assert without == []
    arguments = [
        it.metavar for command in commands.values() for it in command.params if it.param_type_name == "argument"
    ]
    assert len(arguments) > 9 and all(name and name.isupper() and name.isalpha() for name in arguments)


def test_commands_declare_the_arguments_of_what_they_run() -> None:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        declared = {it.name for it in command.params} - {"as_json"}
        run = import_module(f"gpupipe.commands.{name}").run
        inspect.signature(Request if name == "pack" else run).bind(**dict.fromkeys(declared))


def test_the_version() -> None:
    assert gpupipe("--version").stdout == f"gpupipe {__version__}\n"


@pytest.mark.slow
def test_the_command_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "gpupipe", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"gpupipe {__version__}\n"


# ---- programs that read the answers


def test_every_command_answers_with_one_object() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(commands) > 6
    assert {name for name, it in commands.items() if not any("--json" in one.opts for one in it.params)} == set()
    told = {path.stem for path in COMMANDS.glob("*.py") if "tell(" in path.read_text()}
    assert told >= {"bench", "compare", "demo", "doctor", "index", "pack", "why"}


def test_answers_have_values_and_numbers(photos: Path, tmp_path: Path) -> None:
    found = answer("index", photos)
    assert (found["command"], found["exit_code"], found["samples"]) == ("index", 0, 36)
    assert found["bad"] == [] and sum(found["formats"].values()) == 36
    packed = answer("pack", photos, tmp_path / "shards", "--num-workers", 1)
    assert packed["samples"] == sum(shard["samples"] for shard in packed["shards"]) == 36
    assert packed["reader"] == "WebDataset"
    compared = answer("compare", VAL, photos, "--samples", 2, "--device", "cpu")
    assert compared["pipeline"] == VAL and compared["device"] == "cpu" and compared["steps"]


def test_errors_of_files_are_answers(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> int:
        raise PermissionError(13, "Permission denied", "photos/private")

    monkeypatch.setattr("gpupipe.commands.index.run", refuse)
    assert "Permission denied: 'photos/private'" in error("index", photos)


def test_an_error_is_an_answer(tmp_path: Path) -> None:
    found = answer("index", tmp_path / "no", code=2)
    assert found["exit_code"] == 2 and found["error"]["type"] == "DatasetError"
    assert str(tmp_path / "no") in found["error"]["message"]


def test_a_command_that_tells_nothing_answers_with_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    with answering("mine", True):
        print("one")
        print("two")
    assert json.loads(capsys.readouterr().out) == {"command": "mine", "exit_code": 0, "text": ["one", "two"]}


# ---- index


def test_index_is_built_once(tmp_path: Path) -> None:
    data = make_photos(tmp_path / "data", classes=3, per_class=12, sizes=((96, 128), (120, 96)))
    for path in (data, *data.rglob("*")):  # an index of files as young as itself is not believed
        os.utime(path, (1_600_000_000, 1_600_000_000))
    first, second = gpupipe("index", data).stdout, gpupipe("index", data).stdout
    for text in ("images", "36", "3, of 12 images", "JPEG 36", "96 to 120 pixels", "gpupipe-index"):
        assert text in first and text in second
    assert "built in" in first and "read from the cache in" in second
    assert "built in" in gpupipe("index", data, "--rebuild").stdout


def test_index_lists_bad_files(tmp_path: Path) -> None:
    make_photos(tmp_path / "data", classes=2, per_class=2, sizes=((40, 50),))
    for i in range(22):
        (tmp_path / "data" / "class01" / f"bad{i:02d}.jpg").write_bytes(b"no picture" if i else b"")
    out = gpupipe("index", tmp_path / "data").stdout
    assert "26, 4 of them usable" in out
    assert "22 bad files" in out and "... and 2 more" in out
    assert "empty" in out and "class01/bad00.jpg" in out and "bad19.jpg" in out and "bad21.jpg" not in out
    assert 'raises SampleError; on_error="skip" or "replace" goes on without it' in out


def test_index_fails_if_no_file_is_usable(tmp_path: Path) -> None:
    for name in ("images/bad.jpg", "videos/bad.mp4"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"neither")
        assert "0 of them usable" in gpupipe("index", (tmp_path / name).parent, code=1).stdout


def test_index_with_exif_has_upright_sizes(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photograph(100, 150, 0)).save(tmp_path / "turned.jpg", exif=exif)
    stored, upright = (gpupipe("index", tmp_path, *options).stdout for options in ((), ("--exif",)))
    assert "height         100" in stored and "not turned" in stored
    assert "height         150" in upright and "turned upright" in upright


def test_index_of_a_flat_folder_and_of_a_list(tmp_path: Path) -> None:
    for i in range(3):
        Image.fromarray(photograph(30, 40, i)).save(tmp_path / f"{i}.png")
    out = gpupipe("index", tmp_path).stdout
    assert "PNG 3" in out and "classes        none" in out
    (tmp_path / "list.csv").write_text("path,label\n0.png,cat\n1.png,dog\n")
    assert "2, of 1 image" in gpupipe("index", tmp_path / "list.csv").stdout


def test_index_names_what_is_missing(tmp_path: Path) -> None:
    assert f"No such file or directory: '{tmp_path}/nothing'; name a folder" in error("index", tmp_path / "nothing")
    assert "no images here" in error("index", tmp_path)


def test_index_of_videos(tmp_path: Path, videos: dict[str, Path]) -> None:
    for name, to in (("cfr.mp4", "run/1.mp4"), ("vfr.mkv", "jump/2.mkv")):
        (tmp_path / to).parent.mkdir()
        (tmp_path / to).write_bytes(videos[name].read_bytes())
    (tmp_path / "run" / "3.mp4").write_bytes(b"")
    out = gpupipe("index", tmp_path).stdout
    for text in (
        "3, 2 of them usable",
        "h264 2",
        "22 to 40 frames; 62 together",
        "rate: 1 video",
        "1 bad file",
        "empty",
    ):
        assert text in out, text
    assert re.search(r"classes +none", gpupipe("index", tmp_path / "jump").stdout)


# ---- compare


def test_compare_prints_every_step_and_draws(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "some" / "folder" / "worst.png"
    text = gpupipe("compare", "imagenet.train:size=48", photos, "--samples", 12, "--out", out, "--device", "cpu").stdout
    for step in ("decode", "RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize, the whole"):
        assert step in text
    assert "12 images" in text and "not ok" not in text
    with Image.open(out) as image:
        assert image.format == "PNG" and image.width > 600 and image.height > 1000


def test_compare_says_before_the_work_that_it_cannot_draw(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupipe.commands.compare.compare", lambda *_, **__: pytest.fail("it has begun"))
    (tmp_path / "file").touch()
    compare = ("compare", VAL, photos, "--device", "cpu", "--out")
    (tmp_path / "folder.png").mkdir()
    assert "is a folder; name a file in it" in error(*compare, tmp_path / "folder.png")
    assert "its folder cannot be created: File exists; name another file" in error(
        *compare, tmp_path / "file" / "worst.png"
    )
    # Nobody can write there, and the tests may run as root.
    assert "No such file or directory: '/proc/worst.png'; name another file" in error(*compare, "/proc/worst.png")
    assert "compare writes a .png sheet, not " in error(*compare, tmp_path / "worst.txt")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder.png"}


def test_compare_of_videos_looks_at_every_frame(tmp_path: Path, videos: dict[str, Path]) -> None:
    (tmp_path / "run").mkdir()
    for name in ("cfr.mp4", "vfr.mkv"):
        (tmp_path / "run" / name).write_bytes(videos[name].read_bytes())
    (tmp_path / "run" / "empty.mp4").touch()
    out = tmp_path / "worst.png"
    options = ("--frames", 3, "--stride", 2, "--device", "cpu", "--out", out)
    text = gpupipe("compare", "kinetics.train:size=24", tmp_path, *options).stdout
    for step in ("decode", "RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize, the whole"):
        assert step in text
    assert "6 frames" in text and "not ok" not in text and "left out" in text and "empty.mp4: empty" in text
    with Image.open(out) as image:
        assert image.format == "PNG"


def test_compare_of_videos_fails_if_one_frame_differs(
    tmp_path: Path, videos: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpupipe.engines.host.clip_frames import _Batch

    (tmp_path / "v.mp4").write_bytes(videos["cfr.mp4"].read_bytes())
    put = _Batch.put
    monkeypatch.setattr(_Batch, "put", lambda self, row, t, pixels: put(self, row, t, pixels ^ np.uint8(64 * (t == 2))))
    options = ("--frames", 4, "--stride", 1, "--device", "cpu")
    text = gpupipe("compare", "kinetics.val:size=24,resize=24,dtype=uint8", tmp_path, *options, code=1).stdout
    assert "4 frames" in text and "not ok after ToImage" in text and "v.mp4" in text


def test_compare_fails_where_a_promise_is_broken(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpupipe.parity import tolerances

    key = "resize bilinear uint8 antialias"
    strict = {("dali", "cpu"): tolerances.Tolerance(tolerances.Bound(0.5, 0.01))}
    monkeypatch.setitem(tolerances.TABLE, key, replace(tolerances.TABLE[key], tolerances=strict))
    text = gpupipe("compare", VAL, photos, "--samples", 6, "--device", "cpu", code=1).stdout
    assert "not ok after Resize: " in text and "the largest difference is" in text and "most in " in text


def test_compare_leaves_out_what_cannot_be_read(photos: Path, tmp_path: Path) -> None:
    make_photos(tmp_path / "data", classes=1, per_class=5, sizes=((60, 80),))
    (tmp_path / "data" / "class00" / "empty.jpg").touch()
    whole = (tmp_path / "data" / "class00" / "photo0001.jpg").read_bytes()
    (tmp_path / "data" / "class00" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    text = gpupipe("compare", VAL, tmp_path / "data", "--device", "cpu").stdout
    assert "5 images" in text and "left out" in text and "2 samples" in text
    assert "empty.jpg: empty" in text and "cut.jpg: " in text


def test_compare_names_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "class00").mkdir()
    (tmp_path / "class00" / "1.jpg").write_bytes(b"no picture")
    said = error("compare", VAL, tmp_path, "--device", "cpu")
    assert "class00/1.jpg: undecodable: " in said and said.endswith("; gpupipe index FOLDER lists them\n")


def test_equal_images_are_not_drawn(tmp_path: Path) -> None:
    make_photos(tmp_path / "data", classes=1, per_class=4, sizes=((60, 80),))
    mine, out = tmp_path / "mine.py", tmp_path / "worst.png"
    mine.write_text("from gpupipe.transforms import *\nCROPS = Compose([CenterCrop(24)])\n")
    gpupipe("compare", f"{mine}:CROPS", tmp_path / "data", "--device", "cpu", "--out", out)
    with Image.open(out) as image:
        assert image.height < 100  # no more than the title


def test_compare_takes_a_function_of_a_file(photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from gpupipe.transforms import *\n"
        "def flips(p=0.5): return Compose([CenterCrop(24), RandomVerticalFlip(p)])\n"
        "FIXED = Compose([CenterCrop(24)])\n"
        "def broken(): raise KeyError('lost')\n"
        "def number(): return 5\n"
        "def nothing(): CenterCrop(24)\n"
    )
    text = gpupipe("compare", f"{file}:flips:p=1.0", photos, "--samples", 4, "--device", "cpu").stdout
    assert "RandomVerticalFlip, the whole" in text and "not ok" not in text
    assert "CenterCrop, the whole" in gpupipe("compare", f"{file}:FIXED", photos, "--samples", 2).stdout
    assert "name the function too" in error("compare", str(file), photos)
    assert "no function 'nope'; choose from broken, flips, nothing, number" in error("compare", f"{file}:nope", photos)
    assert "KeyError: 'lost'" in error("compare", f"{file}:broken", photos)
    assert "mine.py:number' returned int, not transforms" in error("compare", f"{file}:number", photos)
    assert "mine.py:nothing' returned NoneType, not transforms" in error("compare", f"{file}:nothing", photos)


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("imagenet.trian", "no function 'trian'; choose from train, train_light, train_strong, val"),
        (
            "imagnet.train",
            "unknown pipeline 'imagnet.train'; choose from cifar.train, cifar.val, coco.train, coco.val, dino.train",
        ),
        ("train", "unknown pipeline"),
        ("imagenet.train:siz=3", "unexpected keyword argument 'siz'; its signature is train(size"),
        ("imagenet.train:size=-3", "size must be a positive integer"),
        ("imagenet.train:3", "write arguments like"),
        ("imagenet.train:size=open('x')", "write arguments like"),
        ("nothing.py:train", "No such file"),
    ],
)
def test_compare_says_what_is_wrong_with_a_pipeline(pipeline: str, message: str, photos: Path) -> None:
    assert message in error("compare", pipeline, photos)


def test_devices_that_are_not_there(photos: Path) -> None:
    assert "must be cpu, cuda or cuda:N" in error("compare", VAL, photos, "--device", "tpu")
    if not torch.cuda.is_available():
        assert "torch sees no GPU" in error("bench", VAL, photos, "--device", "cuda")


# ---- bench


@pytest.mark.slow
def test_bench_of_videos_counts_clips(tmp_path: Path, videos: dict[str, Path]) -> None:
    (tmp_path / "v.mp4").write_bytes(videos["cfr.mp4"].read_bytes())
    options = ("--rounds", 1, "--seconds", 0.1, "--frames", 3, "--num-workers", 1, "--device", "cpu")
    text = gpupipe("bench", "kinetics.train:size=24", tmp_path, *options).stdout
    assert "clips/s" in text and "batches of 4 clips of 3 frames 4 apart" in text and "images" not in text
    settings = answer("bench", "kinetics.train:size=24", tmp_path, *options)["settings"]
    assert (settings["batch_size"], settings["frames"], settings["stride"]) == (4, 3, 4)


@pytest.mark.slow
def test_bench_measures_in_turns(photos: Path) -> None:
    options = ("--rounds", 2, "--seconds", 0.2, "--batch-size", 8, "--num-workers", 1, "--device", "cpu")
    text = gpupipe("bench", VAL, photos, "--engines", "dali,torch,null", *options).stdout
    assert "DALI engine" in text and "ratio to reference engine" in text and "plans only" in text
    result = answer("bench", VAL, photos, "--engines", "dali,torch,null", *options)
    assert result["baseline"] == "torch" and set(result["candidates"]) == {"dali", "torch", "null"}
    for candidate in result["candidates"].values():
        assert len(candidate["images_per_second"]) == 2 and min(candidate["images_per_second"]) > 0
    assert result["candidates"]["torch"]["ratio"] == 1
    assert result["machine"]["cores"] >= 1 and result["settings"]["batch_size"] == 8
    assert str(photos) not in json.dumps(result) and os.uname().nodename not in json.dumps(result)


@pytest.mark.slow
def test_bench_compares_with_torchvision_where_it_is(photos: Path) -> None:
    pytest.importorskip("torchvision")
    options = ("--rounds", 1, "--seconds", 0.1, "--batch-size", 8, "--num-workers", 1, "--device", "cpu")
    text = gpupipe("bench", "imagenet.train:size=32", photos, "--engines", "torchvision,torch", *options).stdout
    assert "ratio to torch DataLoader + torchvision" in text


def test_bench_refuses_what_it_does_not_know(photos: Path) -> None:
    assert "must be some of dali, torch, null, torchvision" in error("bench", VAL, photos, "--engines", "dali,pytorch")


# ---- what libraries write


def test_what_libraries_write_to_the_standard_error_is_not_seen() -> None:
    """libtiff writes there by itself, past Python."""
    script = """
import os, sys
from gpupipe.commands.console import libraries_silenced
with libraries_silenced():
    os.write(2, b"TIFFFetchNormalTag\\n")
    print("seen", file=sys.stderr)
os.write(2, b"after\\n")
print("too", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "seen\nafter\ntoo\n"


def test_bench_fits_eighty_columns() -> None:
    result = Result("torchvision", {"dali": [1200.0, 3600.0], "null": [90000.0, 80000.0], "torchvision": [100.0, 90.0]})
    screen = Console(width=80, file=io.StringIO())
    screen.print(_table(result, "imagenet.train", "", "images"))
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    rows = [line for line in lines if "DALI engine" in line]
    assert len(rows) == 1 and rows[0].rstrip().endswith("26.00 (12.00 to 40.00)")
    assert sum("torch DataLoader" in line for line in lines) == 1
