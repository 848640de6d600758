"""Does a signal at any moment end everything, and how soon? Trials under load, at moments drawn at random.

Five trials go on at once, so that each has four others as its load, which list, index, start processes, decode and end.
In each a training loop is started that never ends, and after a time of 0 to 2 seconds it gets a signal: as from a
terminal, to all of its processes, or to itself alone. A script must end by it, and a notebook gets the
KeyboardInterrupt, goes on, and must have a whole next epoch. Counted are loops that had not ended after 30 s (an
exception that was lost does that), processes, threads and files that are left (in a notebook after the interrupt itself
if it came in next(), otherwise after close()), more words on the screen than one traceback of the script's own, and
other ends or epochs. Prediction: none of any. Times are those of a process that has a fifth of the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import _common
from interpreter import QUIET, Interpreter, Script

MEASURES = (
    "benchmarks/_interrupted.py", "gpupipe/engines", "gpupipe/live", "gpupipe/loader", "gpupipe/reading",
    "gpupipe/signal_handlers.py",
)  # fmt: skip
BOUND = 30.0
"""Seconds; what has not ended then hangs."""
LATEST = 2.0
"""Seconds after its beginning when a loop is interrupted at the latest."""
TOGETHER = 5
LOADERS = ("torch", "dali", "live")
"""Engines of planned loaders, and a live loader with two worker processes."""
SENT = [
    ("script", "SIGINT", True),
    ("notebook", "SIGINT", True),
    ("script", "SIGINT", False),
    ("script", "SIGTERM", True),
]
"""(who, what, whether to all of its processes)."""
COUNTED = ("not_ended", "left", "said", "other_end")


def of_session(session: int) -> list[int]:
    """Processes that run, zombies left out."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != "Z" and int(fields[3]) == session:
                found.append(int(folder.name))
    return found


def files_of(session: int, folder: Path) -> list[str]:
    shared = [f.name for f in Path("/dev/shm").iterdir() if f"_{session}_" in f.name]
    # A worker that SIGTERM ends leaves the folder of a socket by which torch sends tensors.
    return [f.name for f in folder.iterdir() if not f.name.startswith("pymp-")] + shared


def said_too_much(script: Script, who: str, sent: str) -> str:
    """Return output beyond the one traceback of an interrupt."""
    # An interrupt within Python's own socket.__init__() leaves a socket open, of which QUIET warns. A script that is
    # interrupted leaves its files open.
    text = "\n".join(line for line in script.said.splitlines() if "<socket.socket " not in line)
    text = re.sub(r"Exception ignored in: <_io.FileIO (.*\n)+?ResourceWarning: unclosed file .*", "", text).strip()
    # An exception that Python's own loops were handling is told with it.
    reports = text.count("Traceback") - text.count("During handling of the above exception")
    is_one = who == "script" and sent == "SIGINT" and reports == 1 and "KeyboardInterrupt" in script.stderr
    return "" if is_one else text


def trial(warm: Interpreter, folder: Path, loader: str, how: tuple[str, str, bool], after: float) -> Any:
    who, sent, to_all = how
    with tempfile.TemporaryDirectory(prefix="gpupipe-interrupts-") as temporary:
        env = {**os.environ, "TMPDIR": temporary}
        file = Path(__file__).with_name("_interrupted.py")
        with warm.start(file, folder, loader, who, env=env, warn=QUIET, session=True) as script:
            try:
                if script.line() != "begins":
                    raise SystemExit(f"{loader} did not begin:\n{script.stdout}{script.stderr}")
                time.sleep(after)
                (os.killpg if to_all else os.kill)(script.pid, signal.Signals[sent])
                began = time.monotonic()
                row: dict[str, Any] = {"ended": True, "status": None, "notebook": None}
                try:
                    row["status"] = script.wait(BOUND)
                except TimeoutError:
                    row["ended"] = False
                seconds = time.monotonic() - began
                while row["ended"] and (of_session(script.pid) or files_of(script.pid, Path(temporary))):
                    if time.monotonic() - began > BOUND:
                        break
                    time.sleep(0.01)
                row["all_gone_seconds"] = time.monotonic() - began
                row["left"] = [str(pid) for pid in of_session(script.pid)] + files_of(script.pid, Path(temporary))
                row["said"] = said_too_much(script, who, sent)
                lines = script.stdout.splitlines()[1:]
                if who == "notebook" and lines:
                    row["notebook"] = json.loads(lines[0])
                    seconds = row["notebook"]["caught"] - began  # it goes on after that
                    row["all_gone_seconds"] = row["notebook"]["gone"] - began
                row["seconds"] = seconds
            finally:
                for pid in of_session(script.pid):
                    os.kill(pid, signal.SIGKILL)
    return row


def what_is_wrong(row: dict[str, Any], who: str, sent: str) -> list[str]:
    wrong = [] if row["ended"] else ["not_ended"]
    if row["left"] or (row["notebook"] and any(row["notebook"]["left"])):
        wrong.append("left")
    if row["said"]:
        wrong.append("said")
    if who == "notebook":
        if row["ended"] and not (row["notebook"] and row["notebook"]["right"] and row["status"] == 0):
            wrong.append("other_end")
    elif row["ended"] and row["status"] != -signal.Signals[sent]:
        wrong.append("other_end")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--together", type=int, default=TOGETHER, help="trials at once: each is the load of the others")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    args = parser.parse_args()
    moments = random.Random(args.seed)
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    modules = ("torch._dynamo", "gpupipe.engines.dali.engine", "gpupipe.engines.torch")
    with ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpupipe-cache-"))
        os.environ["GPUPIPE_CACHE"] = cache
        files = stack.enter_context(_common.photographs(None, count=32))
        folder = Path(os.path.commonpath(files))
        warm = stack.enter_context(Interpreter(*modules))
        loaders = [LOADERS[n % len(LOADERS)] for n in range(args.trials)]
        ways = [SENT[n // len(LOADERS) % len(SENT)] for n in range(args.trials)]
        after = [moments.uniform(0, LATEST) for _ in loaders]
        pool = stack.enter_context(ThreadPoolExecutor(args.together))
        trials = pool.map(partial(trial, warm, folder), loaders, ways, after)
        for number, row in enumerate(trials):
            how = ways[number]
            wrong = what_is_wrong(row, *how[:2])
            named = {"loader": loaders[number], "who": how[0], "sent": how[1], "to_all": how[2]}
            rows.append({**named, "seconds": row["seconds"], "gone": row["all_gone_seconds"], "wrong": wrong})
            if wrong:
                failures.append({**named, "after_seconds": after[number], **row})
                print(f"trial {number}: {', '.join(wrong)}: {failures[-1]}", flush=True)
            if (number + 1) % 20 == 0:
                print(f"{number + 1} trials, {len(failures)} with something wrong", flush=True)
    table = _common.Table("loader, who, signal", "trials", "median s", "worst s", "all gone s", "wrong")
    groups = []
    for loader in LOADERS:
        for who, sent, to_all in SENT:
            named = {"loader": loader, "who": who, "sent": sent, "to_all": to_all}
            some = [row for row in rows if named.items() <= row.items()]
            if some:
                seconds = [row["seconds"] for row in some]
                figures = {
                    "trials": len(some),
                    "median_seconds": statistics.median(seconds),
                    "worst_seconds": max(seconds),
                    "worst_seconds_until_all_is_gone": max(row["gone"] for row in some),
                    "wrong": sum(bool(row["wrong"]) for row in some),
                }
                groups.append({**named, **figures})
                table.row(f"{loader}, {who}, {sent}{' to all' if to_all else ''}", *figures.values())
    seconds = [row["seconds"] for row in rows]
    counts = {kind: sum(kind in row["wrong"] for row in rows) for kind in COUNTED}
    total = {"median_seconds": statistics.median(seconds), "worst_seconds": max(seconds)}
    _common.save(
        "interrupts",
        {
            "question": "Does a signal at any moment end everything, and how soon?",
            "machine": _common.machine(),
            "trials": args.trials,
            "together": args.together,
            "bound_seconds": BOUND,
            **total,
            "worst_seconds_until_all_is_gone": max(row["gone"] for row in rows),
            "counts": counts,
            "groups": groups,
            "failures": failures,
        },
    )
    print(
        f"{args.trials} trials: {counts}; median {total['median_seconds']:.2f} s, worst {total['worst_seconds']:.2f} s"
    )
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
