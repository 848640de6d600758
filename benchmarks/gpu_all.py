"""Everything that only a GPU can answer, in steps that each fit into ten minutes, the most telling first.

Without arguments it takes 12 minutes: smoke, tests, and the most telling part of loader and parity. It ends with one
line, PASS or FAIL, and with one file that holds everything it found: results/gpu_report.json.

    1  smoke     what is installed and will be used; who decodes; whether a byte changes under load
    2  tests     tests/gpu: streams, waits, decoding, recovery, devices, memory first, pixels last
    3  loader    images/s, beside the same graph by hand and beside torch's DataLoader; which settings matter
    4  parity    every transform, recipe and decoder beside the reference
    5  training  what a step of ResNet-50 loses to loading
    6  copy      pageable, pinned, and the ring
    7  video     clips by PyAV, by NVDEC, and by torchcodec
    8  contract  the contract tests that also run on a GPU
    9  reference streams and waits of the torch engine alone, which the second step leaves out
    10 recipes   whole recipes beside torchvision's
    11 memory    over epochs
    12 figures   docs/figures.md's section, from the results

A step that fails or runs out of its time does not keep the others from running, and the end says so: the exit status is
1 if any step failed. Every result is written as soon as something is measured, so that being stopped loses little.

    python benchmarks/gpu_all.py --list                 # the steps, and how long each may take
    python benchmarks/gpu_all.py --step 2               # one step alone, by number or name; several may be given
    python benchmarks/gpu_all.py                        # what says most, in 12 minutes
    python benchmarks/gpu_all.py --all                  # all of them, in about an hour and a quarter
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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from _common import RESULTS, ROOT
from _gpu_report import Outcome, Report

MEASURES = ("gpupipe/engines", "gpupipe/kernels", "gpupipe/loader", "tests/gpu")
BENCHMARKS = ROOT / "benchmarks"
TESTS: dict[str, float] = {
    "streams": 120, "sync": 150, "decoding": 120, "recovery": 100, "devices": 100, "live": 60, "memory": 120,
    "memory_report": 100, "video": 100, "parity": 560,
}  # fmt: skip
"""``tests/gpu/test_gpu_*.py`` in the order in which they run, each with the seconds of the remaining time that it may
take. Each is its own process, so a crash or an error of CUDA affects one file only."""
CALL = 570
"""Seconds that no step may exceed: machines are lent by the ten minutes."""


@dataclass(frozen=True)
class Command:
    """One process, and the modules that it cannot do without."""

    name: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    cuda: bool = False
    """Whether it measures nothing without a GPU, so that a dry run leaves it out."""
    seconds: float = CALL
    """Seconds that remain to the step."""


@dataclass(frozen=True)
class Step:
    """Processes one after the other, and the seconds that they may take together."""

    name: str
    commands: tuple[Command, ...]
    seconds: float


FIRST = {"smoke": 150, "tests": 330, "loader": 120, "parity": 120}
"""The steps without ``--all`` or ``--step``, and their seconds: 12 minutes together."""
TELLING = {"loader": ("--only", "main"), "parity": ("--only", "photographs")}
"""What they do of these steps."""


def first_steps(quick: bool, dry_run: bool) -> list[Step]:
    """The most telling ones, each in its most telling part."""
    found = []
    for step in steps(quick, dry_run):
        if (seconds := FIRST.get(step.name)) is None:
            continue
        share = seconds / step.seconds
        commands = [shortened(c, share, TELLING.get(step.name, ())) for c in step.commands]
        found.append(Step(step.name, tuple(commands), seconds))
    return found


def shortened(command: Command, share: float, more: Sequence[str]) -> Command:
    """Return the step with a share of its time."""
    arguments = [*command.arguments, *more]
    if "--seconds" in arguments:
        at = arguments.index("--seconds") + 1
        arguments[at] = str(round(float(arguments[at]) * share))
    return replace(command, arguments=tuple(arguments), seconds=command.seconds * share)


def steps(quick: bool, dry_run: bool) -> list[Step]:
    """All of them, in order."""
    short = ["--quick"] if quick else []
    cpu = ["--device", "cpu"] if dry_run else []
    small = ["--batch-size", "16", "--workers", "2"] if dry_run else []
    share = 0.4 if quick else 1.0

    def script(name: str, seconds: float, *arguments: str, budget: bool = True, **of: object) -> Command:
        """``seconds`` of measuring, if the script plans with them."""
        given = [*arguments, *(["--seconds", str(round(seconds * share))] if budget else [])]
        return Command(name, (sys.executable, str(BENCHMARKS / f"{name}.py"), *given), **of)  # type: ignore[arg-type]

    def step(name: str, seconds: float, *commands: Command) -> Step:
        return Step(name, commands, seconds * share if quick else seconds)

    one_process = ["--processes", "2"] if dry_run else []
    recipes = ["--dry-run"] if dry_run else ["--device", "cuda", "--batch-size", "256", "--workers", "16"]
    rounds = [] if dry_run else ["--rounds", "2", "--seconds", "1.5"]
    clips = ["--dry-run"] if dry_run else ["--device", "cuda", "--batch-size", "16", "--workers", "16", "--rounds", "3"]
    epochs = ["--dry-run", *cpu] if dry_run else ["--device", "cuda", "--workers", "16", "--epochs", "12"]
    few = ["--rounds", "1", "--steps", "2", "--batch-size", "4"] if dry_run else []
    contract = ["tests/unit/test_staging.py", *([] if dry_run else ["tests/contract"])]
    doctor = "import _common, sys; from gpupipe.cli import main; sys.argv = ['gpupipe', 'doctor']; main()"
    found = [
        step(
            "smoke", 270,
            Command("doctor", (sys.executable, "-c", doctor), ("typer", "rich")),
            script("gpu_decoders", 180, *short, *cpu, *one_process),
        ),
        step("tests", 560, *(file_of(name, dry_run, s) for name, s in TESTS.items())),
        step("loader", 540, script("gpu_loader", 490, *short, *cpu, *small)),
        step("parity", 540, script("gpu_parity", 500, *short, *cpu, *one_process)),
        step("training", 300, script("gpu_training", 250, *short, *cpu, *small, *few)),
        step("copy", 150, script("gpu_copy", 110, *short, cuda=True)),
        step("video", 300, script("video_clips", 0, *clips, budget=False, needs=("av",))),
        step("contract", 560, pytest_of("contract", contract, dry_run)),
        step("reference", 300, *(file_of(name, dry_run, 150, TORCH_ALONE) for name in ("streams", "sync"))),
        step("recipes", 560, script("recipes", 0, *recipes, *rounds, budget=False, needs=("torchvision",))),
        step("memory", 400, script("memory_epochs", 0, *epochs, budget=False)),
    ]  # fmt: skip
    if not dry_run:
        found.append(step("figures", 120, script("figures", 0, budget=False)))
    return found


DALI = "dali or not torch"
TORCH_ALONE = "torch and not dali"
"""Select tests by pytest's ``-k``: each belongs to one of these."""


def file_of(name: str, dry_run: bool, seconds: float, which: str = DALI) -> Command:
    """One file of ``tests/gpu``."""
    command = pytest_of(name, [f"tests/gpu/test_gpu_{name}.py"], dry_run, seconds, which)
    return replace(command, needs=("pytest", "av")) if name == "video" else command


def pytest_of(name: str, paths: Sequence[str], dry_run: bool, seconds: float = CALL, which: str = DALI) -> Command:
    # Warnings of libraries are shown here and are no failures: what a GPU's libraries warn of is not known beforehand.
    arguments = ["-W", "default", "--durations=10", "--continue-on-collection-errors", "-q"]
    if importlib.util.find_spec("pytest_timeout") is None:  # whose option stands in pyproject.toml
        arguments += ["-o", "addopts=-ra"]
    else:  # a thread, because a signal does not reach a test that hangs in a library
        arguments += ["-o", "timeout=120", "-o", "timeout_method=thread"]
    if not dry_run:
        arguments += ["-m", "gpu", "-k", which]
    return Command(name, (sys.executable, "-m", "pytest", *arguments, *paths), ("pytest",), seconds=seconds)


def missing(command: Command, dry_run: bool) -> str | None:
    """Return what a process lacks on this machine."""
    for module in command.needs:
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    return "it needs a GPU" if dry_run and command.cuda else None


def run(step: Step, environment: dict[str, str], dry_run: bool) -> Outcome:
    began = time.monotonic()
    end = began + step.seconds
    wrong, left_out = list[str](), list[str]()
    for command in step.commands:
        lacks = missing(command, dry_run)
        left = min(end - time.monotonic(), command.seconds)
        if lacks is not None:
            left_out.append(f"{command.name}: left out, {lacks}")
        elif left < 1:
            wrong.append(f"{command.name}: not begun, no time")
        else:
            # pytest ends in good order a little before it is stopped.
            said = wait(command, environment | {"GPUPIPE_TEST_SECONDS": str(max(left - 15, 1))}, left)
            if said == UNFINISHED and "pytest" in command.needs:
                left_out.append(f"{command.name}: its time was up before the last test")
            elif said is not None:
                wrong.append(f"{command.name}: {said}")
    return Outcome(tuple(wrong), tuple(left_out), time.monotonic() - began)


UNFINISHED = "exit status 2"
"""Exit status of pytest when its time is up."""


def wait(command: Command, environment: dict[str, str], seconds: float) -> str | None:
    """Return what went wrong, or ``None``."""
    # In a group of its own, so that its time being up ends its workers too.
    process = subprocess.Popen(command.arguments, cwd=ROOT, env=environment, start_new_session=True)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None if status == 0 else f"exit status {status}"


def chosen(given: Sequence[str], all_steps: Sequence[Step]) -> list[Step]:
    """The steps named by number or name; raises ValueError for what is neither."""
    by_name = {step.name: step for step in all_steps} | {str(i): step for i, step in enumerate(all_steps, 1)}
    unknown = [name for name in given if name not in by_name]
    if unknown:
        raise ValueError(f"no such step: {', '.join(unknown)}; --list shows them")
    return [by_name[name] for name in given]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--list", action="store_true", help="show the steps, and how long each may take")
    p.add_argument("--all", action="store_true", help="every step, whole")
    p.add_argument("--step", nargs="+", default=[], metavar="N", help="only these, whole, by number or name")
    p.add_argument("--quick", action="store_true", help="short rounds, less of everything")
    p.add_argument("--dry-run", action="store_true", help="on the CPU, to try the steps out")
    args = p.parse_args()
    everything = steps(args.quick, args.dry_run)
    if args.list:
        for number, step in enumerate(everything, 1):
            print(f"{number:3}  {step.name:10} at most {step.seconds:.0f} s")
        return
    try:
        wanted = chosen(args.step, everything) if args.step else everything
    except ValueError as e:
        p.error(str(e))
    if not (args.step or args.all):
        wanted = first_steps(args.quick, args.dry_run)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONUNBUFFERED": "1",
        "GPUPIPE_DRY_RUN": str(int(args.dry_run)),
        "GPUPIPE_REQUIRE_CUDA": str(int(not args.dry_run)),
    }
    if not args.dry_run:
        RESULTS.mkdir(parents=True, exist_ok=True)
        environment.setdefault("GPUPIPE_MEASURED", str(RESULTS / "gpu_tests.json"))
    report = Report(RESULTS, keep=not args.dry_run)
    for step in wanted:
        print(f"\n===== {step.name} (at most {step.seconds:.0f} s)", flush=True)
        if step.name == "tests" and not args.dry_run:  # the file is added to by every process
            Path(environment["GPUPIPE_MEASURED"]).unlink(missing_ok=True)
        outcome = run(step, environment, args.dry_run)
        report.add(step.name, outcome)
        print(f"===== {step.name}: {outcome}", flush=True)
    print("\n" + "\n".join(report.lines()))
    sys.exit(not report.passed)


if __name__ == "__main__":
    main()
