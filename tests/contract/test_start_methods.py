"""Worker processes that are not forked: Python 3.14 starts them by ``forkserver`` unless a script says otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, os, warnings

import torch
import torch.utils.data
from PIL import Image

from gpupipe import DataLoader, datasets, transforms as T


class Opened(torch.utils.data.Dataset):
    def __init__(self, paths, extra=None):
        self.paths, self.extra = paths, extra

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB")
        return torch.tensor(image.size), i


def ours(root, workers):
    mine = datasets.ImageFolder(root, [T.RandomResizedCrop(16), T.ToTensor()])
    return DataLoader(mine, 4, shuffle=True, seed=1, engine="torch", device="cpu", num_workers=workers)


def epoch(loader):
    with loader:
        return [(a.sum().item(), b.tolist()) for a, b in loader]


def error_of(make):
    try:
        list(make())
    except Exception as e:
        return type(e).__name__
    return "none"


def main(root):
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(["__main__", "torch.utils.data", "gpupipe.engines.torch"])
    paths = sorted(os.path.join(where, name) for where, _, names in os.walk(root) for name in names)
    print("torch", epoch(ours(root, 1)) == epoch(ours(root, 0)))
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
    command = [sys.executable, str(script), str(photos)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "torch True",
        "fallback True",
        *["unpicklable True"] * 3,
        "function ConfigError",
    ], done.stderr
