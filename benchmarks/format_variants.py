"""Write images with the packages that own the formats, in many variants, and check that gpupipe reads each as written.

    python benchmarks/format_variants.py --python VENV/bin/python           # all variants
    python benchmarks/format_variants.py --python VENV/bin/python --only webdataset

VENV has the packages that write: webdataset, datasets, pyarrow, pandas, h5py, tfrecord; tar, zip and gzip are programs.
A variant whose package is missing is listed as not written. For each variant the script checks the bytes of all
samples, labels, order, resuming in the middle of an epoch, two ranks, and that damaged images are the only bad samples.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

IMAGES = Sequence[bytes]
SAMPLES, SPOILED = 24, {5: "truncated", 9: "undecodable"}
WRITERS: dict[str, Callable[[IMAGES, Path], Any]] = {}
OWNERS: dict[str, str] = {}


def variant(name: str, package: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a writer. It gets the images and an empty folder, and returns what the dataset takes."""

    def register(write: Callable[..., Any]) -> Callable[..., Any]:
        WRITERS[name], OWNERS[name] = write, package
        return write

    return register


# ---- writers: they run with the packages, and without gpupipe


def files(images: IMAGES, folder: Path) -> Path:
    """Class folders."""
    for i, image in enumerate(images):
        (folder / f"train/class{i:03d}").mkdir(parents=True)
        (folder / f"train/class{i:03d}/photo.jpg").write_bytes(image)
    return folder


def pairs(images: IMAGES, folder: Path) -> Path:
    (folder / "pairs").mkdir()
    for i, image in enumerate(images):
        (folder / f"pairs/{i:06d}.jpg").write_bytes(image)
        (folder / f"pairs/{i:06d}.cls").write_text(str(i))
    return folder / "pairs"


def run(*command: str, folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


for flavor in ("gnu", "ustar", "pax"):

    @variant(f"tar/{flavor}")
    def tar(images: IMAGES, folder: Path, flavor: str = flavor) -> str:
        pairs(images, folder)
        run("tar", f"--format={flavor}", "--sort=name", "-cf", "a.tar", "-C", "pairs", ".", folder=folder)
        return str(folder / "a.tar")


@variant("webdataset/ShardWriter", "webdataset")
def shard_writer(images: IMAGES, folder: Path) -> str:
    import webdataset

    with webdataset.ShardWriter(f"{folder}/%03d.tar", maxcount=10, verbose=0) as out:
        for i, image in enumerate(images):
            out.write({"__key__": f"{i:06d}", "jpg": image, "cls": i})
    return str(folder / "{000..002}.tar")


@variant("webdataset/json", "webdataset")
def shard_writer_json(images: IMAGES, folder: Path) -> str:
    import webdataset

    with webdataset.TarWriter(f"{folder}/a.tar") as out:
        for i, image in enumerate(images):
            out.write({"__key__": f"{i:06d}", "jpg": image, "json": {"label": i}})
    return str(folder / "a.tar")


@variant("wids/index.json", "webdataset")
def wids(images: IMAGES, folder: Path) -> str:
    shard_writer(images, folder)
    shards = [{"url": f"{k:03d}.tar", "nsamples": 10} for k in range(3)]
    (folder / "index.json").write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
    return str(folder / "index.json")


@variant("zip/stored")
def zip_stored(images: IMAGES, folder: Path) -> str:
    run("zip", "-q0r", "a.zip", "train", folder=files(images, folder))
    return str(folder / "a.zip")


@variant("zip/deflated")
def zip_deflated(images: IMAGES, folder: Path) -> str:
    run("zip", "-qr", "a.zip", "train", folder=files(images, folder))
    return str(folder / "a.zip")


@variant("tfrecord/Example", "tfrecord")
def tfrecord_example(images: IMAGES, folder: Path) -> str:
    from tfrecord.writer import TFRecordWriter

    out = TFRecordWriter(str(folder / "a.tfrecord"))
    for i, image in enumerate(images):
        out.write({"image/encoded": (image, "byte"), "image/class/label": (i, "int")})
    out.close()
    return str(folder / "a.tfrecord")


def hf_dataset(images: IMAGES) -> Any:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": [{"bytes": image, "path": None} for image in images], "label": list(range(len(images)))}
    return datasets.Dataset.from_dict(rows, features=features)


@variant("datasets/save_to_disk", "datasets")
def save_to_disk(images: IMAGES, folder: Path) -> str:
    hf_dataset(images).save_to_disk(folder / "hf", num_shards=2)
    return str(folder / "hf")


@variant("datasets/to_parquet", "datasets")
def to_parquet(images: IMAGES, folder: Path) -> str:
    hf_dataset(images).to_parquet(str(folder / "a.parquet"))
    return str(folder / "a.parquet")


def arrow_table(images: IMAGES) -> Any:
    import pyarrow

    return pyarrow.table({"image": list(images), "label": list(range(len(images)))})


def parquet_writer(**options: Any) -> Callable[[IMAGES, Path], str]:
    def write(images: IMAGES, folder: Path) -> str:
        from pyarrow import parquet

        parquet.write_table(arrow_table(images), folder / "a.parquet", **options)
        return str(folder / "a.parquet")

    return write


variant("pyarrow/parquet", "pyarrow")(parquet_writer())
for codec in ("none", "gzip", "brotli", "zstd", "lz4"):
    variant(f"pyarrow/parquet-{codec}", "pyarrow")(parquet_writer(compression=codec))
variant("pyarrow/parquet-v2", "pyarrow")(parquet_writer(compression="none", data_page_version="2.0"))
variant("pyarrow/parquet-groups", "pyarrow")(parquet_writer(compression="none", row_group_size=7))


def ipc_writer(stream: bool) -> Callable[[IMAGES, Path], str]:
    def write(images: IMAGES, folder: Path) -> str:
        import pyarrow

        rows = arrow_table(images)
        new = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
        with new(str(folder / "a.arrow"), rows.schema) as out:
            out.write_table(rows, max_chunksize=7)
        return str(folder / "a.arrow")

    return write


variant("pyarrow/file", "pyarrow")(ipc_writer(stream=False))
variant("pyarrow/stream", "pyarrow")(ipc_writer(stream=True))


@variant("pandas/feather", "pandas")
def pandas_feather(images: IMAGES, folder: Path) -> str:
    import pandas

    rows = pandas.DataFrame({"image": list(images), "label": range(len(images))})
    rows.to_feather(folder / "a.feather", compression="uncompressed")
    return str(folder / "a.feather")


@variant("pandas/parquet", "pandas")
def pandas_parquet(images: IMAGES, folder: Path) -> str:
    import pandas

    pandas.DataFrame({"image": list(images), "label": range(len(images))}).to_parquet(folder / "a.parquet")
    return str(folder / "a.parquet")


@variant("h5py/vlen", "h5py")
def hdf5_vlen(images: IMAGES, folder: Path) -> str:
    import h5py
    import numpy as np

    with h5py.File(folder / "a.h5", "w") as out:
        data = out.create_dataset("images", (len(images),), dtype=h5py.vlen_dtype(np.uint8))
        for i, image in enumerate(images):
            data[i] = np.frombuffer(image, np.uint8)
        out["labels"] = np.arange(len(images))
    return str(folder / "a.h5")


@variant("csv/manifest")
def manifest(images: IMAGES, folder: Path) -> str:
    at = 0
    with open(folder / "all.bin", "wb") as data, open(folder / "list.csv", "w", newline="") as text:
        lines = csv.writer(text)
        lines.writerow(["path", "offset", "length", "label"])
        for i, image in enumerate(images):
            lines.writerow(["all.bin", at, len(image), i])
            at += data.write(image)
    return str(folder / "list.csv")


def write_all(folder: Path, names: Sequence[str]) -> None:
    """Write every variant of the images in ``folder``, good and spoiled, and what there is into ``written.json``."""
    written: dict[str, Any] = {}
    for name in names:
        found: dict[str, Any] = {"package": OWNERS[name]}
        try:
            if OWNERS[name]:
                found["version"] = importlib.metadata.version(OWNERS[name])
            for kind in ("good", "spoiled"):
                images = [path.read_bytes() for path in sorted((folder / kind).glob("*.jpg"))]
                place = folder / "written" / name.replace("/", "-") / kind
                place.mkdir(parents=True)
                found[kind] = WRITERS[name](images, place)
        except Exception as e:  # of any of the packages
            found["not written"] = f"{type(e).__name__}: {e}"[:300]
        written[name] = found
        (folder / "written.json").write_text(json.dumps(written))


# ---- checks: they run with gpupipe, and without the packages

OPTIONS: dict[str, dict[str, Any]] = {
    "webdataset/json": {"label": "json:label"},
}


def checked(name: str, found: dict[str, Any], images: IMAGES) -> dict[str, Any]:
    """Outcome of a variant."""
    from gpupipe import DataLoader, Shard
    from gpupipe.errors import GpupipeError
    from gpupipe.formats.registry import format_of

    about: dict[str, Any] = {key: found[key] for key in ("package", "version", "not written") if key in found}
    if "not written" in found:
        return about
    kind, options = format_of(found["good"]), OPTIONS.get(name, {})
    if kind is None:
        return {**about, "not recognized": True}
    about["class"] = kind.__name__
    try:
        dataset = kind.from_path(found["good"], **options)
        bad = {it.index: it.kind for it in kind.from_path(found["spoiled"], **options).index_summary().bad}
    except GpupipeError as e:
        return {**about, "refused": str(e).replace(found["good"], "SRC")}

    def order(**arguments: Any) -> list[list[int]]:
        with DataLoader(dataset, 4, shuffle=True, seed=1, engine="null", device="cpu", **arguments) as loader:
            return [plan.indices.tolist() for plan, *_ in loader]

    def resumed() -> list[list[int]]:
        with DataLoader(dataset, 4, shuffle=True, seed=1, engine="null", device="cpu") as loader:
            batches = iter(loader)
            next(batches), next(batches)
            state = json.loads(json.dumps(loader.state_dict()))
        with DataLoader(dataset, 4, shuffle=True, seed=2, engine="null", device="cpu") as loader:
            loader.load_state_dict(state)
            return [plan.indices.tolist() for plan, *_ in loader]

    whole = order()
    ranks = [order(shard=Shard(rank, 2), drop_last=True) for rank in range(2)]
    fetched = [dataset.fetch(i) for i in range(len(dataset))]
    return {
        **about,
        "bytes": [data for data, _ in fetched] == list(images),
        "labels": [label for _, label in fetched] == list(range(len(images))),
        "resumed": resumed() == whole[2:],
        "ranks": sorted(i for part in ranks for batch in part for i in batch) == list(range(len(images))),
        "bad samples": bad == SPOILED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the packages")
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of names of variants")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = [name for name in WRITERS if not args.only or name.startswith(tuple(args.only))]
    if args.write is not None:
        write_all(args.write, names)
        return
    import _common
    from PIL import Image

    from gpupipe.testing.photos import photograph

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["GPUPIPE_CACHE"] = str(folder / "cache")
        images = []
        for i in range(SAMPLES):
            out = io.BytesIO()
            Image.fromarray(photograph(64, 96, seed=i)).save(out, "JPEG")
            images.append(out.getvalue())
        spoiled = list(images)
        spoiled[5], spoiled[9] = images[5][: len(images[5]) // 2], b"this is no image, but quite long"
        for kind, some in (("good", images), ("spoiled", spoiled)):
            (folder / kind).mkdir()
            for i, image in enumerate(some):
                (folder / f"{kind}/{i:06d}.jpg").write_bytes(image)
        command = [args.python, __file__, "--write", str(folder), *(["--only", *args.only] if args.only else [])]
        env = {**os.environ, "PYTHONPATH": ""}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        written = json.loads((folder / "written.json").read_text())
        rows = {name: checked(name, found, images) for name, found in written.items()}
    checks = ("bytes", "labels", "resumed", "ranks", "bad samples")
    result: dict[str, Any] = {
        "samples": SAMPLES,
        "read": sum(all(map(row.get, checks)) for row in rows.values()),
        "refused": sum("refused" in row for row in rows.values()),
        "not written": sum("not written" in row for row in rows.values()),
        "variants": rows,
    }
    for name, row in rows.items():
        says = row.get("not written") or ", ".join(f"{check} {row.get(check)}" for check in checks)
        print(f"{name:24} {says}{'; ' + row['refused'] if 'refused' in row else ''}")
    told = {"only": args.only}
    saved = {**_common.heading(__doc__, told), **result}
    print(_common.save("format_variants" + "_dry_run" * bool(args.only), saved))


if __name__ == "__main__":
    main()
