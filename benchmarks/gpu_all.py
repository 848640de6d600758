"""Everything that only a GPU can answer, in order of importance: doctor, GPU tests, benchmarks, figures.

A step that fails or runs out of its time does not keep the others from running, and the end says so: the exit status is
1 if any step failed. Every benchmark writes its result as it goes, so that being stopped loses little.

    python benchmarks/gpu_all.py [--quick] [--only STEP ...] [--skip STEP ...]
    python benchmarks/gpu_all.py --dry-run --quick      # on a CPU, to try the steps out; no result is kept
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from _common import RESULTS, ROOT

BENCHMARKS = ROOT / "benchmarks"
TESTS = ("tests/gpu", "tests/unit/test_staging.py", "tests/contract")


@dataclass(frozen=True)
class Step:
    """One process, and the seconds that it may take."""

    name: str
    command: list[str]
    seconds: float


def steps(quick: bool, dry_run: bool) -> list[Step]:
    """All of them, the most important first."""
    python, short = sys.executable, ["--quick"] if quick else []
    cpu = ["--device", "cpu"] if dry_run else []
    small = ["--batch-size", "16", "--workers", "2"] if dry_run else []
    share = 0.3 if quick else 1.0

    def script(name: str, seconds: float, *arguments: str, own: bool = True) -> Step:
        budget = ["--seconds", str(round(seconds * share))] if own else []
        return Step(name, [python, str(BENCHMARKS / f"{name}.py"), *arguments, *budget], seconds * share + 120)

    tests = TESTS[:2] if quick or dry_run else TESTS
    doctor = "import _common, sys; from gpupipe.cli import main; sys.argv = ['gpupipe', 'doctor']; main()"
    found = [
        Step("doctor", [python, "-c", doctor], 180),
        Step("tests", [python, "-m", "pytest", *_pytest(dry_run), *tests], 1500 * share),
        script("gpu_parity", 240, *short, *cpu),
        script("gpu_loader", 540, *short, *cpu, *small),
        script("gpu_training", 540, *short, *cpu, *small),
        script("gpu_copy", 200, *short),
    ]
    if (BENCHMARKS / "recipes.py").exists():
        given = ["--dry-run"] if dry_run else ["--device", "cuda", "--batch-size", "256", "--workers", "16"]
        rounds = [] if dry_run else ["--rounds", "2" if quick else "5", "--seconds", "1.5" if quick else "3"]
        found.append(script("recipes", 900, *given, *rounds, own=False))
    epochs = ["--epochs", "4" if quick else "20", "--workers", "2" if dry_run else "16"]
    if not dry_run:
        found.append(script("memory_epochs", 400, "--device", "cuda", *epochs, own=False))
        found.append(Step("figures", [python, str(BENCHMARKS / "figures.py")], 120))
    return found


def _pytest(dry_run: bool) -> list[str]:
    # Warnings of libraries are shown here and are no failures: what a GPU's libraries warn of is not known beforehand.
    arguments = ["-W", "default", "--durations=15", "--continue-on-collection-errors", "-o", "faulthandler_timeout=120"]
    if not dry_run:
        arguments += ["-m", "gpu"]
    if importlib.util.find_spec("pytest_timeout") is None:  # whose option stands in pyproject.toml
        arguments += ["-o", "addopts=-ra"]
    return arguments


def missing(step: Step) -> str | None:
    """What a step lacks on this machine."""
    needs = {"doctor": "typer", "recipes": "torchvision", "tests": "pytest"}.get(step.name)
    if needs is not None and importlib.util.find_spec(needs) is None:
        return f"{needs} is not installed"
    if step.name == "gpu_copy":
        import torch

        return None if torch.cuda.is_available() else "torch sees no GPU"
    return None


def run(step: Step, environment: dict[str, str]) -> str:
    """How it ended: ``"ok"``, or what went wrong."""
    # In a group of its own, so that its time being up ends its workers too.
    process = subprocess.Popen(step.command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        status = process.wait(step.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"stopped after {step.seconds:.0f} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return "ok" if status == 0 else f"exit status {status}"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="short rounds, and of the tests those that are for GPUs alone")
    p.add_argument("--dry-run", action="store_true", help="on the CPU, to try the steps out")
    p.add_argument("--only", nargs="+", default=[], metavar="STEP")
    p.add_argument("--skip", nargs="+", default=[], metavar="STEP")
    args = p.parse_args()
    chosen = steps(args.quick, args.dry_run)
    unknown = {*args.only, *args.skip} - {step.name for step in chosen}
    if unknown:
        p.error(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in chosen)}")
    chosen = [s for s in chosen if (not args.only or s.name in args.only) and s.name not in args.skip]
    here = [str(ROOT), str(BENCHMARKS)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*here, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONUNBUFFERED": "1",
        "GPUPIPE_DRY_RUN" if args.dry_run else "GPUPIPE_REQUIRE_CUDA": "1",
    }
    if not args.dry_run:
        RESULTS.mkdir(parents=True, exist_ok=True)
        environment["GPUPIPE_MEASURED"] = str(RESULTS / "gpu_tests.json")
    ends: dict[str, tuple[str, float]] = {}
    for step in chosen:
        print(f"\n===== {step.name} (at most {step.seconds:.0f} s)", flush=True)
        began, lacks = time.monotonic(), missing(step)
        end = f"left out: {lacks}" if lacks else run(step, environment)
        ends[step.name] = end, time.monotonic() - began
        print(f"===== {step.name}: {end}", flush=True)
    print("\n" + "\n".join(f"{name:16} {seconds:6.0f} s  {end}" for name, (end, seconds) in ends.items()))
    sys.exit(any(end != "ok" and not end.startswith("left out") for end, _ in ends.values()))


if __name__ == "__main__":
    main()
