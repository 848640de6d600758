"""How fast is gpupipe beside every loader of photographs that people use, on a CPU?

Prediction: 2.3 times torch's DataLoader with torchvision for untouched JPEG files, as FFCV with its own format; 4.6
times with ``cache="ram"``, where FFCV's raw mode reaches 5; timm's loader 1.3, DALI's iterator 1.8, SPDL 0.85.

Measured: RandomResizedCrop(224), flip and normalize to float32; the candidates take turns in one run, each in a process
of its own, in steady state (see ``_candidates.py``), files in the page cache. FFCV and SPDL resize with other filters,
and FFCV's JPEG mode encodes the images again (``_image_peers.py``). A library that cannot be imported is left out.

    python benchmarks/image_peers.py [FOLDER]     # writes results/image_peers_cpu.json
"""

from __future__ import annotations

from _candidates import measured
from _common import photographs
from _image_peers import missing_module
from _loaders import Job
from _round_arguments import parsed, parser
from compare_loaders import BASE, HAND, JOBS as COMPARED

MEASURES = (
    "benchmarks/_image_peers.py", "benchmarks/_loaders.py", "gpupipe/engines", "gpupipe/kernels", "gpupipe/reading",
)  # fmt: skip
JOBS = [
    *COMPARED["cpu"],
    Job('gpupipe, cache="ram"', "gpupipe-dali", cache="ram"),
    Job('gpupipe, cache="ram", channels last, as FFCV', "gpupipe-dali", cache="ram", channels_last=True),
    Job("torchvision v2 on tensors", "torchvision-tensors"),
    Job("timm", "timm"),
    Job("FFCV, JPEG mode", "ffcv-jpeg"),
    Job("FFCV, raw mode", "ffcv-raw"),
    Job("SPDL", "spdl"),
]


def main() -> None:
    args = parsed(parser(__doc__, rounds=7, seconds=3.0, epoch=20_000))
    if args.device != "cpu":
        raise SystemExit(f"--device {args.device}: these loaders are compared on the CPU; use --device cpu")
    jobs = []
    for job in JOBS:
        if reason := missing_module(job.loader):
            print(f"left out: {job.name} ({reason})", flush=True)
        else:
            jobs.append(job)
    with photographs(args.folder, count=256) as paths:
        measured(__doc__, "image_peers", jobs, args, paths, {"to_torchvision": BASE, "to_by_hand": HAND})


if __name__ == "__main__":
    main()
