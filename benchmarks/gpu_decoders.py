"""Who decodes the JPEGs, the GPU or the CPU, with which pixels, and does a byte change while the GPU is busy?

Measured: 64 photographs for each kind of chroma; share of images equal to the reference's, which are libjpeg-turbo's;
then batches read late on a stream full of matrix products, each byte compared with all that quiet runs gave. Every
setting in a process of its own, because some versions of the decoder end theirs.

    python benchmarks/gpu_decoders.py [--quick] [--seconds 180]      # writes results/gpu_decoders.json
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import _common  # noqa: F401 - finds the modules of tests
import parity_measure as parity
from _common import Budget, Table, heading, save
from _gpu_arguments import parsed, parser
from _parts import Part, answers
from decoding_changes import MatrixProducts, changes, decoded_by, quiet

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import ImageFolder
from gpupipe.engines import Dali
from gpupipe.pipelines import imagenet

MEASURES = ("gpupipe/engines/dali",)
WINDOW = "random crop"
LOADS = (0.0, 0.5, 1.0)
CHROMA = [c for c in get_args(parity.Chroma) if c != "4:2:2"]
RACES: dict[str, dict[str, Any]] = {
    "default settings": {},
    "plain upsampling": {"jpeg_fancy_upsampling": False},
    "decoding engines only": {"hw_decoder_load": 1.0},
}
PIPELINES: dict[str, Any] = {
    "windows as they are": lambda: T.Compose([T.RandomCrop(160), T.PILToTensor()], memory_format="channels_last"),
    "resized windows": lambda: imagenet.train(160, dtype="uint8"),
}


def chosen(files: dict[str, str], device: str) -> dict[str, Any]:
    """Return what ``repr`` says about a running loader with default settings."""
    with DataLoader(ImageFolder(files["4:2:0"], imagenet.train(160)), 16, engine="dali", device=device) as loader:
        next(iter(loader))
        return {"engine": next(line.strip() for line in repr(loader).splitlines() if "engine:" in line)}


def who(options: dict[str, Any], loads: tuple[float, ...], files: dict[str, str], device: str) -> dict[str, Any]:
    """Difference from the reference, and the decoder that was used, by chroma and share of the decoding engines."""
    found: dict[str, Any] = {}
    for chroma, folder in files.items():
        dataset = parity.folder(Path(folder), parity.CASES[WINDOW])
        want = parity.batches(dataset, "torch", "cpu", 32)
        for load in loads:
            got = parity.batches(dataset, Dali(hw_decoder_load=load, **options), device, 32)
            apart = parity.apart(dataset, got, want, 32)
            by = decoded_by(apart, jpeg_engine=load > 0)
            found[f"{chroma}, load {load:g}"] = {**apart.to_dict(), "decoded_by": by}
    return found


def race(
    options: dict[str, Any], pipeline: str, iterations: int, batch_size: int, folder: str, device: str
) -> dict[str, Any]:
    """Bytes that change while matrix products run on the consumer's stream."""
    with DataLoader(
        ImageFolder(folder, PIPELINES[pipeline]()), batch_size, shuffle=True, drop_last=True, num_workers=8, seed=3,
        engine=Dali(**options), device=device,
    ) as loader:  # fmt: skip
        expected = quiet(loader, 4)
        varies = sum(int((q.low != q.high).sum()) for q in expected)
        return {**asdict(changes(loader, expected, iterations, MatrixProducts(device))), "vary_when_quiet": varies}


def main() -> None:
    p = parser(__doc__, 180)
    p.add_argument("--processes", type=int, default=4, help="that ask who decodes at the same time")
    args = parsed(p)
    name = "gpu_decoders" if args.device == "cuda" else "gpu_decoders_dry_run"
    count, iterations, budget = (12, 12, Budget(args.seconds)) if args.quick else (64, 200, Budget(args.seconds))
    result: dict[str, Any] = {
        **heading(__doc__, args),
        "chosen": None,
        "decoders": {},
        "race": {},
        "failed": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        files = {c: str(parity.jpegs(Path(folder, c.replace(":", "")), count, c)) for c in CHROMA}
        alone = [Part("chosen", chosen, (files, args.device))]
        settings = {
            f"{'fancy' if fancy else 'plain'} upsampling": {"jpeg_fancy_upsampling": fancy} for fancy in (True, False)
        }
        beside = [Part(f"decoders|{n}", who, (o, LOADS, files, args.device)) for n, o in settings.items()]
        races = [
            Part(
                f"race|{n}, {pipeline}", race, (options, pipeline, iterations, count // 2, files["4:2:0"], args.device)
            )
            for n, options in RACES.items()
            for pipeline in PIPELINES
        ]
        # A race is run with nothing else on the GPU but its own load.
        for parts, processes in ((alone, 1), (beside, args.processes), (races, 1)):
            for answer in answers(parts, processes, budget):
                group, _, what = answer.part.name.partition("|")
                if answer.failure is not None:
                    result["failed"][answer.part.name] = answer.failure
                elif group == "chosen":
                    result["chosen"] = answer.value
                else:
                    result[group][what] = answer.value
                show(answer.part.name, answer.value, answer.brief)
                save(name, result)
    print(save(name, result))


def show(part: str, value: Any, failure: str) -> None:
    group, _, what = part.partition("|")
    if failure:
        print(f"{part}: {failure}", flush=True)
    elif group == "chosen":
        print(value["engine"], flush=True)
    elif group == "decoders":
        table = Table(what, "decoded by", "% equal", "max", "mean", "% over 1")
        for row, r in value.items():
            table.row(row, r["decoded_by"], 100 * r["equal"], r["max"], r["mean"], 100 * r["over_1"])
    else:
        print(
            f"{what}: {value['bytes']} bytes of {value['images']} images changed in {value['batches']} batches, by up "
            f"to {value['worst']} levels; {value['vary_when_quiet']} bytes vary when nothing else runs",
            flush=True,
        )


if __name__ == "__main__":
    main()
