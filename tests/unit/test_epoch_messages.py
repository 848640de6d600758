"""What an epoch without any batch says depends on why its samples are bad."""

from __future__ import annotations

from pathlib import Path

import pytest
from index_files import png

from gpupipe import DataLoader, datasets, transforms as T
from gpupipe.errors import SampleError


@pytest.mark.parametrize("kind", ["no image", "empty", "cut", "lost"])
def test_an_epoch_without_a_batch_names_the_cause(tmp_path: Path, kind: str) -> None:
    files = [png(tmp_path / "photos" / "a" / f"{k}.png") for k in range(3)]
    content = {"no image": b"hello", "empty": b"", "cut": files[0].read_bytes()[:40]}
    for file in files:
        file.unlink() if kind == "lost" else file.write_bytes(content[kind])
    found = datasets.ImageList(files, transform=T.Resize((4, 4)))
    cause = "storage of the files is available" if kind == "lost" else "what is in them cannot be used"
    loader = DataLoader(found, 2, device="cpu", engine="torch", num_workers=0, on_error="skip")
    with loader, pytest.raises(SampleError, match=f"no batch, because all of its samples are bad.*{cause}"):
        list(loader)
