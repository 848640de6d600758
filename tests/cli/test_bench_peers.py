"""``gpupipe bench`` beside other loaders, and with a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import answer, error, gpupipe
from PIL import Image
from torch import nn

from gpupipe import datasets, transforms as T
from gpupipe.bench import candidates as candidates_module
from gpupipe.bench.candidates import build, usual
from gpupipe.bench.clip_decoders import DECODERS, by_pyav
from gpupipe.bench.clip_peers import CLIP_PEERS
from gpupipe.bench.measure import Result
from gpupipe.bench.peers import PEERS, Peer, imported, translated
from gpupipe.bench.pillow_steps import PillowSteps
from gpupipe.bench.with_model import Training, limited_by, name_with, open_model
from gpupipe.commands.bench import _BY
from gpupipe.errors import ConfigError, MissingDependency, PipelineError
from gpupipe.pipelines import imagenet, kinetics
from gpupipe.testing.photos import photograph

QUICK = ("--rounds", 1, "--seconds", 0.1, "--batch-size", 8, "--num-workers", 1, "--device", "cpu")


@pytest.mark.parametrize(
    "steps",
    [
        imagenet.val(32, 40),
        T.Compose([T.Resize((30, 50)), T.RandomHorizontalFlip(1.0), T.CenterCrop(40), T.ToTensor()]),
        T.Compose([T.RandomResizedCrop(24, scale=(1, 1), ratio=(4 / 3, 4 / 3)), T.RandomHorizontalFlip(0.0)]),
        T.Compose([T.RandomResizedCrop(24, scale=(4, 5)), T.ToTensor()]),  # none of ten windows fits
    ],
)
@pytest.mark.parametrize("size", [(60, 80), (80, 60)])
def test_steps_with_pillow_are_those_of_torchvision(steps: T.Compose, size: tuple[int, int]) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    image = Image.fromarray(photograph(*size, 1)).resize((80, 60) if size == (60, 80) else (60, 80))
    theirs = transforms.Compose([translated(t, transforms) for t in steps])(image)
    assert np.array_equal(np.asarray(PillowSteps(steps)(image)), np.asarray(theirs))


def test_windows_with_pillow_are_drawn_like_torchvisions() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    crop = T.RandomResizedCrop((1, 1), scale=(0.1, 0.9))
    ramp = Image.fromarray(np.repeat(np.arange(240, dtype=np.uint8)[None, :, None], 3, axis=2).repeat(180, axis=0))
    sides = []
    for make in (PillowSteps(T.Compose([crop])), translated(crop, transforms)):
        found = np.array([np.asarray(make(ramp))[0, 0, 0] for _ in range(1500)], np.float64)
        sides.append((found.mean(), found.std()))  # the center of the window, in pixels
    assert np.allclose(*sides, atol=5)


def test_steps_that_are_not_written_with_pillow() -> None:
    for step in (T.ColorJitter(0.4), T.Resize(20, max_size=30), T.Resize(20, "bicubic")):
        with pytest.raises(PipelineError, match="not among the steps written with Pillow"):
            PillowSteps(T.Compose([step]))(Image.new("RGB", (40, 30)))


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_loaders_of_others_do_the_same_work(name: str, photos: Path) -> None:
    if name in ("torchvision", "timm"):
        pytest.importorskip(name)
    steps = imagenet.train(24)
    with build([name], datasets.ImageFolder(photos), steps, batch_size=8, num_workers=1, device="cpu") as found:
        assert not found.left_out
        images, target = next(iter(found.start[name]()))
    assert images.shape == (8, 3, 24, 24) and images.dtype == torch.float32 and target.shape == (8,)
    assert 0.2 < images.std() < 3 and abs(images.mean()) < 2.5
    assert bool(found.pixels[name]) == (name == "dali-by-hand")


def test_loaders_of_others_say_what_they_cannot_do(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = datasets.ImageFolder(photos)
    work: dict[str, Any] = {"batch_size": 8, "num_workers": 0, "device": "cpu"}
    steps = T.Compose([T.Resize((20, 20)), T.ToTensor()])
    with build(["pillow", "dali-by-hand"], images, steps, **work) as found:
        assert set(found.left_out) == {"dali-by-hand"} and not found.missing
        assert "it is written for RandomResizedCrop" in found.left_out["dali-by-hand"]
    with pytest.raises(PipelineError, match="it is written for"):
        build(["dali-by-hand"], images, steps, **work, required=True)
    with pytest.raises(ConfigError, match="on files only"):
        build(["pillow"], datasets.Arrays(np.zeros((9, 8, 8, 3), np.uint8)), steps, **work, required=True)
    gone = Peer("Gone", lambda work: imported("no_such_module_at_all"))
    monkeypatch.setitem(candidates_module.OTHERS, "pillow", gone)
    with build(["pillow", "null"], images, steps, **work) as found:
        assert "no_such_module_at_all cannot be imported" in found.missing["pillow"]
    with pytest.raises(MissingDependency):
        build(["pillow"], images, steps, **work, required=True)


@pytest.mark.slow
def test_clips_by_pyav_are_those_of_the_dataset(videos: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "v.mp4").write_bytes(videos["cfr.mp4"].read_bytes())
    clips = datasets.VideoFolder(tmp_path, 4, stride=2)
    with build(["pyav"], clips, kinetics.train(24), batch_size=2, num_workers=0, device="cpu") as found:
        images, target = next(iter(found.start["pyav"]()))
    assert images.shape == (2, 3, 4, 24, 24) and target.tolist() == [0, 0] and "resizes tensors" in found.pixels["pyav"]
    path = clips.entry(0).path
    whole = by_pyav(path, 0, int(clips.frame_counts[0]), 1)
    assert torch.equal(by_pyav(path, 3, 4, 2), whole[3:10:2])
    assert torch.equal(by_pyav(path, len(whole) - 2, 4, 1), whole[[-2, -1, -1, -1]])
    assert set(CLIP_PEERS) == set(DECODERS) and usual(clips=True)[-3:] == list(DECODERS)


# ---- with a model


def test_what_limits_a_training() -> None:
    rates = {"a": [100.0], "b": [400.0], "c": [300.0], "model": [200.0]}
    rates |= {name_with("a"): [90.0], name_with("b"): [196.0], name_with("c"): [120.0]}
    result = Result("a", rates)
    assert limited_by(result, "a") == ("loader", 0.45)
    assert limited_by(result, "b")[0] == "model" and limited_by(result, "c") == ("both", 0.6)
    result.rates[name_with("b")] = [230.0]
    assert _BY[limited_by(result, "b")[0]] == "disturbed: set OMP_NUM_THREADS=1 or use more --rounds"


@pytest.mark.slow
def test_bench_trains_a_model(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def small(): return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5))\n"
        "def none(): return 3\n"
        "def deep(): return nn.Conv2d(7, 3, 3)\n"
    )
    net = tmp_path / "net.py"
    options = ("imagenet.train:size=24", photos, "--engines", "torch,pillow,null", *QUICK)
    text = gpupipe("bench", *options, "--model", f"{net}:small").stdout
    assert "none: a batch from memory" in text and "limited by" in text and "training" in text
    found = answer("bench", *options, "--model", f"{net}:small")
    assert set(found["training"]) == {"torch", "pillow"} and found["candidates"]["model"]["median"] > 0
    assert found["training"]["pillow"]["limited_by"] in ("model", "loader", "both", "disturbed")
    assert "returned int, not a torch.nn.Module" in error("bench", *options, "--model", f"{net}:none")
    assert "has no function 'nothing'" in error("bench", *options, "--model", f"{net}:nothing")
    assert "ModuleNotFoundError" in error("bench", *options, "--model", "no_such_module:f")
    unlike = gpupipe("bench", *options, "--model", f"{net}:deep", code=2).stderr
    assert "the model does not take batches [8, 3, 24, 24]" in unlike
    only = ("imagenet.train:size=24", photos, "--engines", "null", *QUICK)
    assert "needs a loader of samples" in error("bench", *only, "--model", f"{net}:small")


def test_models_of_torchvision() -> None:
    pytest.importorskip("torchvision.models")
    assert isinstance(open_model("mobilenet_v3_small"), nn.Module)
    with pytest.raises(ConfigError, match="has no such model, as resnet18 is"):
        open_model("resnet19")


@pytest.mark.parametrize("change", ["insert(0, '/of the module')", "pop(0)", "clear()"])
def test_a_module_of_a_model_may_change_the_path(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = tmp_path / f"path_{change[:3]}.py"
    made.write_text(f"import sys\nfrom torch import nn\nsys.path.{change}\ndef net(): return nn.Identity()\n")
    before = list(sys.path)
    assert isinstance(open_model(f"{made}:net"), nn.Module)
    kept = {"ins": ["/of the module", *before], "pop": before, "cle": []}
    assert sys.path == kept[change[:3]]


def test_a_step_trains_with_classes_shares_and_dicts() -> None:
    class Dict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return {"out": self.layer(x)}

    for model in (nn.Linear(4, 3), Dict()):
        training = Training(model, "cpu")
        before = [p.clone() for p in training.model.parameters()]
        training.step((torch.ones(2, 4), torch.tensor([1, 70], dtype=torch.int32)))
        training.step((torch.ones(2, 4), torch.full((2, 3), 1 / 3)))
        assert not any(torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True))
