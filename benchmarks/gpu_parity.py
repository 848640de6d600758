"""How far is DALI on a GPU from DALI on the CPU, and from the reference, for every transform, recipe and decoder?

Measured: the same plans on the same pixels. Transforms and recipes on photographs, on noise, and on black and white
blocks, in gray levels; decoders on JPEG files of all chroma subsamplings. ``rows`` are what the GPU's column of the
table in ``gpupipe/parity/promises.py`` can be filled from; ``unmeasured`` names the rows
that nothing here is of. Photographs come before noise and blocks, and a measurement that crashes takes no other along.

    python benchmarks/gpu_parity.py [--quick] [--seconds 500]      # writes results/gpu_parity.json
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import _common  # noqa: F401 - finds the modules of tests
import parity_measure as parity
from _common import Budget, Table, heading, save
from _gpu_arguments import parsed, parser
from _parts import Part, answers

MEASURES = ("gpupipe/engines", "gpupipe/kernels", "tests/parity_cases.py")


def pixels(case: str, kind: parity.Kind, count: int, device: str) -> dict[str, Any]:
    """A transform or a recipe: against the reference, and against DALI on the CPU."""
    make = {**parity.CASES, **parity.RECIPES}[case]
    found = parity.measure(parity.arrays(kind, make, count), device)
    return {against: difference.to_dict() for against, difference in found.items()}


def decoded(case: str, decoder: str, files: str, device: str) -> dict[str, Any]:
    """Compare images of files."""
    make = {**parity.CASES, **parity.RECIPES}[case]
    found = parity.measure(parity.folder(Path(files), make), device, **parity.DECODERS[decoder])
    return {against: difference.to_dict() for against, difference in found.items()}


def parts(files: str, count: int, device: str) -> list[Part]:
    """All measurements, the most important first: their names are group, case, and input or decoder."""

    def of_files(case: str) -> list[Part]:
        return [Part(f"decoders|{case}|{name}", decoded, (case, name, files, device)) for name in parity.DECODERS]

    def of_pixels(cases: Any, kind: parity.Kind) -> list[Part]:
        return [Part(f"cases|{case}|{kind}", pixels, (case, kind, count, device)) for case in cases]

    found = [*of_files("random crop"), *of_pixels(parity.CASES, "photographs"), *of_files("imagenet.train")]
    found += [part for kind in parity.INPUTS[1:] for part in of_pixels(parity.CASES, kind)]
    return found + [part for kind in parity.INPUTS for part in of_pixels(parity.RECIPES, kind)]


def rows(cases: dict[str, Any]) -> dict[str, Any]:
    """Return ``rows`` and ``unmeasured``."""
    return parity.rows({case: {k: v["reference"] for k, v in kinds.items()} for case, kinds in cases.items()})


def main() -> None:
    p = parser(__doc__, 500)
    p.add_argument("--processes", type=int, default=4, help="that measure at the same time")
    p.add_argument("--only", nargs="+", default=[], metavar="WORD", help="measurements with such a word in their names")
    args = parsed(p)
    name = "gpu_parity" if args.device == "cuda" else "gpu_parity_dry_run"
    count, budget = 8 if args.quick else 24, Budget(args.seconds)
    result: dict[str, Any] = {
        **heading(__doc__, args),
        "decoders": {},
        "cases": {},
        "failed": {},
    }
    table = Table("", "max", "mean", "% over 1", "% equal", "max to CPU")
    with tempfile.TemporaryDirectory() as folder:
        wanted = parts(str(parity.jpegs(Path(folder), count)), count, args.device)
        wanted = [part for part in wanted if not args.only or any(word in part.name for word in args.only)]
        for answer in answers(wanted, args.processes, budget):
            group, case, of = answer.part.name.split("|")
            if answer.failure is not None:  # the others are asked all the same
                result["failed"][f"{case}, {of}"] = answer.failure
                print(f"{case}, {of}: {answer.brief}", flush=True)
            else:
                result[group].setdefault(case, {})[of] = answer.value
                ref, cpu = answer.value["reference"], answer.value["cpu"]
                shares = 100 * ref["over_1"], 100 * ref["equal"]
                table.row(f"{case}, {of}"[:44], ref["max"], ref["mean"], *shares, cpu["max"])
            result |= rows(result["cases"])
            save(name, result)
    print("rows that nothing was measured for:", ", ".join(result["unmeasured"]) or "none")
    print(save(name, result))


if __name__ == "__main__":
    main()
