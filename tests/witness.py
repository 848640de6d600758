"""The witness: does gpupipe still do, bit by bit, what it did?

    python tests/witness.py [--only PATTERN]            compare with tests/witness.json; status 1 if something differs
    python tests/witness.py --write [--only PATTERN]    write down what is done now
    python tests/witness.py --file OTHER.json ...       the same with another file

It runs every recipe, a pipeline of each family of transforms, every medium, every engine, several ranks, resumed epochs
and bad samples through what users call, and keeps checksums: of plans (what the null engine hands out), of batches
(bytes, dtype, shape, memory format), of targets, states, counts and reports. It imports nothing of the inside, so it
stays as it is while the inside is moved. Its parts are in ``witness_parts/``: ``marks.py`` says what a checksum is made
of, ``watch.py`` what is noted of a loader, ``inputs.py`` makes the files from numbers, and the others are the cases.

PATTERN is a part of a case's name, or has ``*`` in it: ``recipe/``, ``bad/*folder``. A run takes half a minute on two
free cores. DALI writes to the terminal of damaged JPEG files; they are meant.

**A change that is not meant** is a bug of the change: mend it, and leave the file alone.

**A change that is meant** is written down in the commit that makes it. Run this without ``--write`` first and read the
list; run ``--write --only`` for the cases that should differ; run it once more without both, which shows that nothing
else does; and say in the commit message which cases differ and why. New cases are written in the same way.

**A renamed op or field** is reported and is no difference, if it has one new name everywhere. When nothing else
differs, ``--write`` takes the new names over.

**Another machine.** Plans are the same everywhere, and are always compared, with numbers rounded to 2⁻²⁰: numpy's
logarithms and powers differ in the last bit between processors with and without AVX-512, and MixUp's factor with them
(*bits* in the file is every bit, for the same machine). Pixels depend on the processor and on the versions of Pillow,
FFmpeg, torch and DALI. The file names its machine; where yours is another one, pixels, the targets beside them and
fingerprints of encoded files are not compared, and it says so. To compare them all the same, write a file there at the
older commit, ``--write --file /tmp/mine.json``, and compare with it at the newer one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from witness_parts import cases
from witness_parts.compare import differences, elsewhere, matching
from witness_parts.file import Record, merged, read, written
from witness_parts.inputs import Inputs, Skip
from witness_parts.watch import Watch

from gpupipe.reading.global_rng import seed_all

__all__ = ["FILE", "look", "main"]

FILE = Path(__file__).with_suffix(".json")
_PACKAGES = ("torch", "numpy", "pillow", "av", "nvidia-dali-cuda120", "torchvision", "timm")


def machine() -> dict[str, str]:
    """What pixels depend on, beside the code."""
    import numpy as np
    import torch

    found: Any = np.show_config(mode="dicts")
    facts = {
        "cpu": platform.processor() or platform.machine(),
        "numpy uses": " ".join(found.get("SIMD Extensions", {}).get("found", [])),
        "torch uses": torch.backends.cpu.get_cpu_capability(),
    }
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()]
        cpu = {key.strip(): value.strip() for key, _, value in lines}
        facts["cpu"] = f"{cpu['model name']}, family {cpu['cpu family']}, model {cpu['model']}"
    except (OSError, KeyError):
        pass
    for name in _PACKAGES:
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = "missing"
    return facts


def look(root: Path, only: str | None = None, engines: Collection[str] | None = None) -> Record:
    """What is done now.

    Args:
        root: an empty folder for the files.
        only: as on the command line.
        engines: all that a case has if ``None``.
    """
    inputs = Inputs(root)
    found: Record = {"machine": machine(), "fields": {}, "skipped": {}, "engines": engines, "cases": {}}
    for case in _shown([c for c in cases() if matching(c.name, only)]):
        record = found["cases"][case.name] = {}
        for engine in case.engines:
            if engines is not None and engine not in engines:
                continue
            seed_all(1)  # for what torch's own loader runs
            try:
                seen = case.look(inputs, engine)
            except Skip as e:
                found["skipped"][case.name] = str(e)
                break
            except Exception as e:
                traceback.print_exc()
                record[engine] = {"failed": f"{type(e).__name__}: {e}"}
                continue
            if isinstance(seen, Watch):
                found["fields"] |= seen.fields
                seen = seen.done()
            record[engine] = seen
    found["machine"] |= inputs.checksums()
    return found


def _shown(items: list[Any]) -> Iterator[Any]:
    """With a line of progress on a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, "looking", console=console, transient=True, disable=not console.is_terminal)


def main(arguments: list[str] | None = None) -> int:
    """The status: 0 where nothing differs, or what there is has been written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write down what is done now")
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name contains this; * is anything")
    parser.add_argument("--file", type=Path, default=FILE, help="the checksums (%(default)s)")
    given = parser.parse_args(arguments)
    whole = given.write and given.only is None
    was = read(given.file) if given.file.exists() and not whole else None
    if was is None and not given.write:
        print(f"{given.file} does not exist; --write makes it")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPUPIPE_CACHE"] = str(Path(folder) / "cache")
        now = look(Path(folder), given.only)
    if not now["cases"]:
        print(f"no case is called {given.only!r}")
        return 1
    failed = [f"{n}, {e}: {p['failed']}" for n, seen in now["cases"].items() for e, p in seen.items() if "failed" in p]
    if not given.write:
        assert was is not None
        lines, notes = differences(was, now, given.only)
        for line in (*notes, *lines):
            print(line)
        print(f"{len(now['cases'])} cases: {f'{len(lines)} differences' if lines else 'nothing differs'}")
        return int(bool(lines))
    problem = "\n".join(failed)
    if now["skipped"]:
        problem += "".join(f"\nnot looked at: {n} ({why})" for n, why in now["skipped"].items())
    if was is not None and elsewhere(was, now):
        problem += (
            f"\n{given.file} is of another machine: cases cannot be written one by one. See the top of this script"
        )
    if problem:
        print(f"{problem}\nnothing was written")
        return 1
    given.file.write_text(written(merged(was, now, [c.name for c in cases()])))
    print(f"{len(now['cases'])} cases written to {given.file}: {given.file.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)  # sums are added in the same order on any number of cores
    logging.getLogger("gpupipe").setLevel(logging.ERROR)  # bad samples are meant here
    sys.exit(main())
