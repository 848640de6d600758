"""What does it bring to keep decoded images, in memory and on disk?

Prediction (two CPU cores): with all images kept in memory the DALI engine reaches 5 times torch's DataLoader with
torchvision, and 2.2 times itself without; from a disk whose pages are in memory nearly as much. The reference engine
gains less, because Pillow's resize stays.

Measured: RandomResizedCrop(224), flip and normalize to float32 NCHW; the candidates take turns in one run, each in a
process of its own, in steady state (see ``_candidates.py``), after an epoch in which the cache was filled; files in the
page cache.

    python benchmarks/decoded_cache.py [FOLDER]     # writes results/decoded_cache_<cpu|gpu>.json
"""

from __future__ import annotations

import os
import tempfile

from _candidates import measured
from _common import photographs
from _loaders import CACHE_BYTES, Job
from _round_arguments import parsed, parser

from gpupipe.reading.kept import DecodedCache

MEASURES = ("gpupipe/engines/host", "gpupipe/kernels", "gpupipe/reading")
BASE, PLAIN = "torch DataLoader + torchvision", "gpupipe, DALI engine"
JOBS = [
    Job("gpupipe, DALI engine, kept in memory", "gpupipe-dali", cache="ram"),
    Job("gpupipe, DALI engine, kept on disk", "gpupipe-dali", cache="disk"),
    Job("gpupipe, reference engine, kept in memory", "gpupipe-torch", cache="ram"),
    Job(PLAIN, "gpupipe-dali"),
    Job(BASE, "torchvision"),
]


def main() -> None:
    args = parsed(parser(__doc__, rounds=7, seconds=6.0, epoch=1))
    # What is kept in memory ends with this process, and what is on disk with the folder.
    with tempfile.TemporaryDirectory(prefix="gpupipe-bench-") as folder:
        os.environ["GPUPIPE_CACHE"] = folder
        DecodedCache("ram", CACHE_BYTES).hold()
        with photographs(args.folder, count=256, ram=args.device == "cuda") as paths:
            others = {"to_torchvision": BASE, "to_plain": PLAIN}
            measured(__doc__, "decoded_cache", JOBS, args, paths, others)


if __name__ == "__main__":
    main()
