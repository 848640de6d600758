"""How far is DALI on a GPU from DALI on the CPU, and from the reference, for every transform, recipe and decoder?

Prediction, from documentation: arithmetic and everything that torch finishes on the device equal or within one grey
level; resizing as on the CPU; JPEGs within a few levels, nearer with fancy upsampling than with plain; the hardware
decoder and the hybrid one not equal to each other.
Written from documentation; not run yet on the machine that it is for.

Measured: the same plans on the same pixels. Transforms and recipes on photographs, on noise, and on black and white
blocks, in grey levels; decoders on JPEG files of all chroma subsamplings. ``rows`` are what the GPU's column of the
table in ``gpupipe/parity/tolerances.py`` can be filled from; ``unmeasured`` names the rows that nothing here is of.

    python benchmarks/gpu_parity.py [--quick] [--seconds 240]      # writes results/gpu_parity.json
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from _common import Budget, Table, machine, save

from gpupipe.parity import measure as parity


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="few pictures")
    p.add_argument("--seconds", type=float, default=240, help="what does not fit into this time is left out")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu only tries the script out")
    args = p.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU; --device cpu tries the script out without one")
    name = "gpu_parity" if args.device == "cuda" else "gpu_parity_dry_run"
    count = 8 if args.quick else 24
    budget = Budget(args.seconds)
    result: dict[str, Any] = {
        "question": (__doc__ or "").splitlines()[0],
        "machine": machine(),
        "settings": vars(args),
        "decoders": {},
        "cases": {},
        "failed": {},
        "left_out": [],
    }
    table = Table("", "max", "mean", "% over 1", "max to CPU")

    def one(group: str, case: str, label: str, dataset: Any, **options: Any) -> None:
        if not budget.enough(5, f"{case}, {label}"):
            result["left_out"].append(f"{case}, {label}")
            return
        try:
            found = parity.measure(dataset, args.device, **options)
        except Exception as e:  # the others are asked all the same
            result["failed"][f"{case}, {label}"] = f"{type(e).__name__}: {e}"
            print(f"{case}, {label}: {type(e).__name__}: {str(e).splitlines()[0]}", flush=True)
            return
        result[group].setdefault(case, {})[label] = {k: v.to_dict() for k, v in found.items()}
        ref, cpu = found["reference"], found["cpu"]
        table.row(f"{case}, {label}"[:44], ref.max, ref.mean, 100 * ref.over_1, cpu.max)

    with tempfile.TemporaryDirectory() as folder:
        files = parity.jpegs(Path(folder), count)
        wanted = {"crop": parity.CASES["random crop"], "imagenet.train": parity.RECIPES["imagenet.train"]}
        for decoder, options in parity.DECODERS.items():
            for case, make in wanted.items():
                one("decoders", case, decoder, parity.folder(files, make), **options)
            save(name, result)
    for case, make in {**parity.CASES, **parity.RECIPES}.items():
        for kind in parity.INPUTS:
            one("cases", case, kind, parity.arrays(kind, make, count))
        result |= parity.rows(
            {c: {k: v["reference"] for k, v in kinds.items()} for c, kinds in result["cases"].items()}
        )
        save(name, result)
    print("rows that nothing was measured for:", ", ".join(result["unmeasured"]) or "none")
    print(save(name, result))


if __name__ == "__main__":
    main()
