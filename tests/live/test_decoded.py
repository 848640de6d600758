"""``cache`` and ``scaled`` serve the images that a script's own Dataset opens from paths."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms as T
from interpreter import QUIET, Interpreter
from PIL import Image
from support import pictures

from gpupipe import DataLoader
from gpupipe.errors import ConfigError
from gpupipe.live import on_cpu
from gpupipe.live.recipe import Recipe
from gpupipe.loader.live_session import LiveSession
from gpupipe.reading.smaller import PROMISE

TESTS = Path(__file__).resolve().parents[1]
CROP = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.PILToTensor()])


class Photographs(torch.utils.data.Dataset[Any]):
    def __init__(self, folder: Path):
        self.files = sorted(folder.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return CROP(Image.open(self.files[index]).convert("RGB")), index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, picture in enumerate(pictures(8, 9, 9)):
        size = 300 + 7 * number, 260 + 5 * number
        Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC).save(tmp_path / f"{number}.jpg")
    return tmp_path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Collects (number of images that DALI gets, 1), and (1, reduction) of those that Pillow decodes."""
    found = []
    pieces, picture = on_cpu._InThreads._pieces_of, Recipe.picture

    def noted(making: Any, numbers: Any) -> Any:
        found.extend([(1, 1)] * len(numbers))
        return pieces(making, numbers)

    def noted_too(recipe: Any, number: int, factor: int = 1) -> Any:
        found.append((1, factor))
        return picture(recipe, number, factor)

    monkeypatch.setattr(on_cpu._InThreads, "_pieces_of", noted)
    monkeypatch.setattr(Recipe, "picture", noted_too)
    return found


def epoch(loader: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.cat([images for images, _ in loader]).float()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_keeps_decoded_files_for_other_crops(
    folder: Path, decoded: list[Any], workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dataset = Photographs(folder)
    plain = [epoch(DataLoader(dataset, 4, num_workers=workers, device="cpu"), seed) for seed in range(3)]
    decoded.clear()
    with DataLoader(dataset, 4, num_workers=workers, device="cpu", cache="disk", cache_bytes=1 << 26) as loader:
        assert torch.equal(epoch(loader, 0), plain[0])
        assert len(decoded) == len(dataset)
        assert torch.equal(epoch(loader, 1), plain[1])
        assert len(decoded) == len(dataset)
        assert "8 decoded images" in repr(loader)
        # Another file at the same path is another image.
        os.replace(folder / "3.jpg", folder / "5.jpg")
        Image.new("RGB", (64, 48), "red").save(folder / "3.jpg")
        decoded.clear()
        changed = epoch(loader, 2)
        assert len(decoded) == 2
        assert not torch.equal(changed[3], plain[2][3])
        assert torch.equal(changed[4], plain[2][4])


@pytest.mark.parametrize("workers", [0, 2])
def test_large_images_are_decoded_smaller(folder: Path, decoded: list[Any], workers: int) -> None:
    dataset = Photographs(folder)
    full = epoch(DataLoader(dataset, 4, num_workers=workers, device="cpu"))
    decoded.clear()
    small = epoch(DataLoader(dataset, 4, num_workers=workers, device="cpu", scaled=True))
    factors = [factor for _, factor in decoded]
    assert len(factors) == len(dataset)
    assert max(factors) > 1
    assert not torch.equal(small, full)
    bound = PROMISE["bilinear"].interior
    assert float((small - full).abs().mean()) <= 2 * bound.mean


@pytest.mark.parametrize("option", [{"cache": "ram"}, {"scaled": True}])
def test_torchs_loader_alone_has_neither(folder: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs DALI"):
        DataLoader(Photographs(folder), 4, engine="torch", **option)


class Opened(Photographs):
    def __getitem__(self, index: int) -> Any:
        return T.functional.to_tensor(Image.open(self.files[index % 8]).resize((9, 9)))

    def __len__(self) -> int:
        return 40


@pytest.mark.parametrize("persistent", [False, True])
def test_the_engine_rests_before_a_fork(folder: Path, persistent: bool) -> None:
    """DALI's memory is freed before an epoch forks its workers."""
    with DataLoader(Opened(folder), 4, device="cpu", num_workers=1, persistent_workers=persistent) as loader:
        first, session = list(loader), loader._session
        assert isinstance(session, LiveSession) and isinstance(session.maker, on_cpu.OnCpu)
        assert session.maker.runner.is_built
        again = iter(loader)
        assert session.maker.runner.is_built is persistent
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_an_epoch_goes_on_while_another_one_forks(folder: Path) -> None:
    with DataLoader(Opened(folder), 4, device="cpu", num_workers=1) as loader:
        whole = list(loader)
        for begun in (0, 1, 5):
            one = iter(loader)
            some = [next(one) for _ in range(begun)]
            pairs = list(zip(one, loader, strict=False))
            assert all(torch.equal(a, b) for a, b in zip([*some, *(a for a, _ in pairs)], whole, strict=True))
            assert all(torch.equal(b, other) for (_, b), other in zip(pairs, whole, strict=False))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_script_and_its_forks_end_in_peace(folder: Path, workers: int, warm: Interpreter) -> None:
    """Nothing closes the loader of an ordinary script."""
    script = f"""
        import os, sys
        from pathlib import Path
        sys.path.insert(0, {str(TESTS)!r})
        from torchvision_ops import define_missing_operators
        define_missing_operators()
        from gpupipe import DataLoader
        from live.test_decoded import Opened
        loader = DataLoader(Opened(Path({str(folder)!r})), 4, device="cpu", num_workers={workers})
        for batch in loader:
            pass
        child = os.fork()
        if not child:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = warm.run(code=textwrap.dedent(script), warn=QUIET)
    assert (done.stderr, done.stdout.strip(), done.returncode) == ("", "3", 0)
