"""``gpupipe doctor``: run every engine on one small JPEG."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from .findings import Finding


def self_check(cuda: bool, dali_works: bool) -> tuple[list[tuple[str, str]], list[Finding]]:
    """Decode and resize one JPEG in every engine. Return (lines to print, findings).

    Args:
        cuda: run on a GPU.
        dali_works: whether DALI can be imported.
    """
    from PIL import Image

    from ..datasets import ImageList
    from ..loader.dataloader import DataLoader
    from ..parity.compare import compare
    from ..testing.photos import photograph
    from ..transforms import CenterCrop, Compose, Resize, ToImage

    device: Literal["cpu", "cuda"] = "cuda" if cuda else "cpu"
    lines: list[tuple[str, str]] = []
    broken: list[Finding] = []

    def attempt(name: str, work: Callable[[], str]) -> None:
        try:
            lines.append((name, work()))
        except Exception as e:  # the doctor reports every failure of an engine
            why = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
            lines.append((name, f"fails: {why}"))
            do = "see the lines above; if they do not say why, report it with this output"
            broken.append(Finding("wrong", f"{name}: {why}", do))

    with tempfile.TemporaryDirectory(prefix="gpupipe-doctor-") as folder:
        file = Path(folder) / "photograph.jpg"
        Image.fromarray(photograph(150, 200, 0)).save(file, quality=90)
        dataset = ImageList([file], [0], transform=Compose([Resize(96), CenterCrop(64), ToImage()]))

        def auto() -> str:
            with DataLoader(dataset, device=device) as loader:
                next(iter(loader))
                return next(x for x in repr(loader).splitlines() if "engine:" in x).partition("engine:")[2].strip()

        def reference() -> str:
            with DataLoader(dataset, engine="torch", device=device) as loader:
                images, _ = next(iter(loader))
                return f"works: {tuple(images.shape)} on {images.device}"

        def dali() -> str:
            step = compare(dataset, dataset.transform, samples=1, device=device, num_workers=1).steps[-1]
            d = step.difference
            if step.broken:
                raise RuntimeError(step.broken[0])
            promise = "as promised" if step.promised else "no promise on a GPU yet"
            return f"works: at most {d.max:g} gray levels from the reference, mean {d.mean:.2g} ({promise})"

        attempt("engine=auto", auto)
        attempt("reference", reference)
        if dali_works:
            attempt("DALI", dali)
    return lines, broken
