"""Worker processes that are not forked: Python 3.14 starts them by ``forkserver`` unless a script says otherwise."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from multiprocessing.synchronize import SemLock
from pathlib import Path
from typing import Any

import pytest
from support import TRAIN, Encoded

from gpupipe import DataLoader, datasets

SCRIPT = """
import logging, multiprocessing, os, warnings

import torch
import torch.utils.data
from PIL import Image

from gpupipe import DataLoader, datasets, transforms as T


class Encoded(torch.utils.data.Dataset):
    def __init__(self, paths, die=None, extra=None):
        self.paths, self.die, self.extra = paths, die, extra

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        if i == 3 and self.die and not os.path.exists(self.die):
            open(self.die, "w").close()
            os._exit(3)
        with open(self.paths[i], "rb") as file:
            return file.read(), i


class Opened(Encoded):
    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB")
        return torch.tensor(image.size), i


def ours(ds, engine, workers=1, **arguments):
    mine = datasets.from_torch(ds, media="bytes", transform=T.Compose([T.RandomResizedCrop(16), T.ToTensor()]))
    return DataLoader(mine, 4, shuffle=True, seed=1, engine=engine, device="cpu", num_workers=workers, **arguments)


def epoch(loader):
    with loader:
        return [(a.sum().item(), b.tolist()) for a, b in loader]


def error_of(make):
    try:
        list(make())
    except Exception as e:
        return type(e).__name__
    return "none"


def main(root, die):
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(["__main__", "torch.utils.data", "gpupipe.engines.torch"])
    paths = sorted(os.path.join(where, name) for where, _, names in os.walk(root) for name in names)
    for engine in ("torch", "dali"):
        print(engine, epoch(ours(Encoded(paths), engine)) == epoch(ours(Encoded(paths), engine, 0)))
    logging.getLogger("gpupipe").setLevel(logging.ERROR)
    print("died", epoch(ours(Encoded(paths, die), "torch")) == epoch(ours(Encoded(paths), "torch", 0)))
    fallback, theirs = (cls(Opened(paths), 4, num_workers=1) for cls in (DataLoader, torch.utils.data.DataLoader))
    warnings.simplefilter("ignore")
    print("fallback", all(map(torch.equal, *([x for batch in it for x in batch] for it in (fallback, theirs)))))

    class Local(Opened):
        pass

    with open(paths[0]) as file:
        for ds in (Opened(paths, extra=lambda: 0), Local(paths), Opened(paths, extra=file)):
            both = [error_of(lambda: cls(ds, 4, num_workers=1)) for cls in (DataLoader, torch.utils.data.DataLoader)]
            print("unpicklable", both[0] == both[1] != "none")
    function = datasets.ImageFolder(root, [T.CenterCrop(8), lambda image: image, T.ToTensor()])
    print("function", error_of(lambda: DataLoader(function, 4, engine="torch", num_workers=1)))


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:])
"""


@pytest.mark.slow
def test_forkserver_as_the_default(photos: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(photos), str(tmp_path / "died")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "torch True",
        "dali True",
        "died True",
        "fallback True",
        *["unpicklable True"] * 3,
        "function ConfigError",
    ], done.stderr


@pytest.mark.slow
def test_no_handler_runs_while_semaphores_are_released(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python swallows what a handler raises there, and a script would wait on."""
    seen: list[bool] = []
    real: Any = SemLock._cleanup  # type: ignore[attr-defined]

    def handler(number: int, frame: Any) -> None:
        raise AssertionError

    def cleanup(name: str) -> None:
        seen.append(signal.getsignal(signal.SIGALRM) is handler)
        real(name)

    monkeypatch.setattr(SemLock, "_cleanup", staticmethod(cleanup))
    files = [path.read_bytes() for path in sorted(numbered.rglob("*.jpg"))[:10]]
    before = signal.signal(signal.SIGALRM, handler)
    try:
        dataset = datasets.from_torch(Encoded(files), media="bytes", transform=TRAIN)
        with DataLoader(dataset, 5, num_workers=1, multiprocessing_context="spawn", device="cpu") as loader:
            assert sum(len(target) for _, target in loader) == 10
        del loader
        gc.collect()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen and not any(seen)
