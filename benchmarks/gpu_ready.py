"""Whether this machine's NVIDIA driver can run what ``make gpu`` installs, asked before anything is downloaded.

Needs nothing but Python. Prints the card and the driver; the exit status is 1, with what to do, if they do not fit.

    python3 benchmarks/gpu_ready.py [--cuda 12|13]
"""

from __future__ import annotations

import argparse
import subprocess
import sys

TORCH = 580
"""The oldest driver, by its major version, for CUDA 13, which PyPI's builds of the torch in constraints.txt are for."""


def cards() -> list[tuple[str, str]]:
    """(name, version of the driver) of every GPU. Raises SystemExit if the driver does not answer."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise SystemExit(
            "nvidia-smi is not found, so there is no NVIDIA driver here; `make test` and `make bench` need no GPU"
        ) from None
    except subprocess.TimeoutExpired:
        raise SystemExit(
            "nvidia-smi did not answer within 60 s; is the driver loaded? See `dmesg | grep NVRM`"
        ) from None
    rows = [line.rsplit(", ", 1) for line in done.stdout.splitlines() if ", " in line]
    if done.returncode or not rows:
        said = (done.stderr.strip() or done.stdout.strip() or "it names no GPU").splitlines()[0]
        raise SystemExit(f"nvidia-smi failed: {said}")
    return [(name, version) for name, version in rows]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cuda", default="13", choices=["12", "13"], help="which build of DALI is measured")
    args = p.parse_args()
    found = cards()
    for name, version in found:
        print(f"{name}, driver {version}")
    driver = found[0][1]
    if int(driver.partition(".")[0]) < TORCH:
        sys.exit(
            f"driver {driver} is older than {TORCH}, which torch for CUDA 13 needs: update the driver, or put a torch "
            "for CUDA 12 into constraints.txt (https://pytorch.org/get-started/previous-versions) and run "
            "`CUDA=12 make gpu`"
        )
    print(f"measured with DALI for CUDA {args.cuda}")


if __name__ == "__main__":
    main()
