"""What the benchmarks for a GPU make of their readings, and put beside what was predicted: all of it needs no GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


# ---- predictions


def test_every_row_of_the_table_has_a_prediction() -> None:
    from _gpu_predictions import NUMBERS, PIXELS

    from gpupipe.parity.tolerances import TABLE

    assert set(PIXELS) == set(TABLE) - {"decode"}
    for row, predicted in PIXELS.items():
        assert 0 <= predicted.interior.mean <= predicted.interior.max <= 255, row
    assert all(n.low is not None or n.high is not None for n in NUMBERS.values())
    assert all(n.low is None or n.high is None or n.low < n.high for n in NUMBERS.values())


def row(**values: float) -> dict[str, float]:
    keys = ("max", "mean", "over_1", "border_max", "border_mean", "border_over_1")
    return dict.fromkeys(keys, 0.0) | values


def test_a_verdict_says_what_is_more_than_predicted() -> None:
    from _gpu_predictions import PIXELS, verdict

    gray, resize, flip = (PIXELS[r] for r in ("gray pil", "resize bilinear uint8 antialias", "flip"))
    assert verdict(gray, row(max=1, mean=0.005)) == "as predicted"
    assert verdict(gray, row()) == "equal" and verdict(flip, row()) == "as predicted"
    assert verdict(gray, row(max=2, mean=0.02)) == "max 2 instead of at most 1; mean 0.02 instead of at most 0.01"
    assert verdict(flip, row(max=3, mean=0.1, over_1=0.2)).startswith("max 3 instead of at most 0; mean 0.1")
    assert verdict(resize, row(max=2, mean=0.1, border_max=50, border_mean=2)) == "as predicted"
    assert verdict(resize, row(border_max=80)) == "border_max 80 instead of at most 61"


def test_numbers_stand_beside_their_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    from _gpu_predictions import NUMBERS, compare

    found = compare({"training: stall": 0.05, "loader: plain, 4:2:0": 12345.0, "loader: to torchvision": 4.0})
    assert [f["as_predicted"] for f in found.values()] == [False, True, False]
    said = capsys.readouterr().out
    assert "NOT AS PREDICTED: share of a ResNet-50 step" in said and ": 0.05, predicted at most 0.02" in said
    assert ": 12,345, predicted 10,000 to 17,000 images/s" in said and "predicted at least 5" in said
    assert str(NUMBERS["copy: bus"]) == "45 to 57 GB/s"
    with pytest.raises(KeyError):
        compare({"loader: of nothing": 1.0})


# ---- what the scripts make of readings


def candidate(*speeds: float) -> dict[str, Any]:
    return {"images_per_second": list(speeds), "median_images_per_second": sorted(speeds)[len(speeds) // 2]}


def test_the_loaders_numbers_are_ratios_within_a_round() -> None:
    import gpu_loader as module
    from _gpu_predictions import NUMBERS

    loads = {f"hw_decoder_load={x}": candidate(100 + (x == 0.4)) for x in module.LOADS}
    stages = {
        "main": {
            module.OURS.name: candidate(99, 198, 297), module.HAND.name: candidate(100, 200, 300),
            module.TORCHVISION.name: {"failed": "no such module"},
        },
        "upsampling": {"plain, 4:2:0": candidate(11_000), "fancy, 4:4:4": candidate(9_000)},
        "hw_decoder_load": loads,
    }  # fmt: skip
    found = module.measured(stages)
    assert found == {
        "loader: to by hand": pytest.approx(0.99), "loader: plain, 4:2:0": 11_000, "loader: fancy, 4:4:4": 9_000,
        "loader: best hw_decoder_load": 0.4,
    }  # fmt: skip
    del loads["hw_decoder_load=0.0"]  # a sweep that was cut has no best
    assert "loader: best hw_decoder_load" not in module.measured(stages)
    every = {
        stage: {job.name: candidate(1.0) for job in jobs} for stage, jobs in module.STAGES.items()
    }  # all stages of the script have the names that the numbers are made of
    assert set(module.measured(every)) == {key for key in NUMBERS if key.startswith("loader: ")}


def test_jobs_of_a_stage_differ_and_ask_for_photographs_that_are_there() -> None:
    import gpu_loader as module

    for stage, jobs in module.STAGES.items():
        assert len({job.name for job in jobs}) == len(jobs) == len(set(jobs)), stage
        assert {job.files for job in jobs} <= {None, *module.CHROMA}
    sweep = [job.hw_decoder_load for job in module.STAGES["hw_decoder_load"]]
    assert sweep == [0, 0.25, 0.4, 0.5, 0.65, 0.8, 1]


def test_what_copies_cost_beside_a_step() -> None:
    import gpu_copy as module

    readings = {
        module.PAGEABLE: {"alone": [0.02, 0.02, 0.02], "with_compute": [0.100, 0.102, 0.100]},
        module.PINNED: {"alone": [0.01, 0.01, 0.01], "with_compute": [0.090, 0.091, 0.090]},
        module.RING: {"alone": [0.005, 0.005, 0.005], "with_compute": [0.084, 0.084, 0.085]},
        module.ALREADY: {"alone": [0.004, 0.004, 0.004], "with_compute": [0.080, 0.081, 0.080]},
    }
    rows = module.summarize(200_000_000, 50.0, readings, [0.080, 0.080, 0.080])
    pageable, ring = rows[module.PAGEABLE], rows[module.RING]
    assert pageable["gigabytes_per_second"] == pytest.approx(10) and pageable["of_bus"] == pytest.approx(0.2)
    assert pageable["milliseconds_added_to_compute"] == pytest.approx(20)
    assert pageable["saved_of_a_pageable_step"] == 0
    assert ring["milliseconds_added_to_compute"] == pytest.approx(4) and ring["hidden_share"] == pytest.approx(0.2)
    assert rows[module.ALREADY]["saved_of_a_pageable_step"] == pytest.approx(0.2)
    result = {"bus": {"gigabytes_per_second": 50.0}, "batches": {module.FLOATS: {"ways": rows}}}
    found = module.measured(result)
    assert found["copy: pinning saves"] == pytest.approx(0.2) and found["copy: ring"] == pytest.approx(0.8)
    assert set(found) == {"copy: bus", "copy: pageable", "copy: ring", "copy: pinning saves"}
    assert module.measured({**result, "batches": {}}) == {"copy: bus": 50.0}


def test_the_copies_are_measured_saved_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the GPU's part played: copies are clones, the step is nothing."""
    import _common
    import gpu_copy as module
    import torch

    class Step:
        def __init__(self, device: Any, milliseconds: float):
            assert milliseconds > 0

        def __call__(self) -> None: ...

    names = (module.PAGEABLE, module.PINNED, module.RING, module.ALREADY)
    monkeypatch.setattr(module, "ways", lambda device: dict.fromkeys(names, torch.Tensor.clone))
    monkeypatch.setattr(module, "bus", lambda device: {"gigabytes_per_second": 50.0})
    monkeypatch.setattr(module, "Compute", Step)
    monkeypatch.setattr(module, "BATCHES", {module.FLOATS: ((2, 3, 8, 8), torch.float32, 85)})
    monkeypatch.setattr(_common, "RESULTS", tmp_path)
    for name, value in (("is_available", True), ("current_device", 0), ("synchronize", None)):
        monkeypatch.setattr(torch.cuda, name, lambda *a, value=value: value)
    monkeypatch.setattr(_common, "machine", dict)
    monkeypatch.setattr("sys.argv", ["gpu_copy.py", "--quick"])
    module.main()
    found = json.loads((tmp_path / "gpu_copy.json").read_text())
    assert set(found["batches"][module.FLOATS]["ways"]) == set(names)
    assert found["predictions"]["copy: bus"]["as_predicted"] is True


def test_the_stall_of_a_step_is_what_is_above_the_replayed_batchs_of_the_same_round() -> None:
    import gpu_training as module

    def turn(seconds: float) -> dict[str, float]:
        return {"step_seconds": seconds, "images_per_second": 256 / seconds, "host_waited": 0.0}

    turns = {module.CEILING: [turn(0.08), turn(0.09)], module.OURS: [turn(0.1), turn(0.1)], module.TORCHVISION: []}
    found = module.summarize(turns)
    assert found[module.OURS]["stall_share"] == pytest.approx([0.2, 0.1])
    assert found[module.CEILING]["stall_share"] == [0, 0] and module.TORCHVISION not in found


def test_clips_are_compared_only_with_what_ran() -> None:
    import video_clips as module

    rows = {name: {"median_clips_per_second": speed} for name, speed in ((module.OURS, 100.0), (module.NVDEC, 250.0))}
    assert module.measured(rows) == {"video: nvdec to pyav": 2.5}
    rows[module.TORCHCODEC] = {"median_clips_per_second": 200.0}
    assert module.measured(rows)["video: to torchcodec"] == 1.25


def test_parity_is_judged_beside_the_predictions() -> None:
    import gpu_parity as module
    import parity_measure as measure

    def kinds(**values: float) -> dict[str, Any]:
        spread = {"max": 0.0, "mean": 0.0, "over_1": 0.0} | values
        empty = {"max": 0.0, "mean": 0.0, "over_1": 0.0}
        return {"photographs": {"reference": {**spread, "interior": spread, "border": empty}}}

    files = {name: kinds(max=3, mean=0.3)["photographs"] for name in list(measure.DECODERS)[:2]}
    result = {
        "cases": {"flips": kinds(), "jpeg, pil": kinds(max=70, mean=1.0), "invert, pil": kinds(max=1)},
        "decoders": {"random crop": files},
    }
    found = module.judged(result)
    assert found["rows"]["flip"]["verdict"] == "as predicted" and found["rows"]["flip"]["predicted"] == "equal"
    assert found["surprises"] == {
        "jpeg": "max 70 instead of at most 60", "invert": "max 1 instead of at most 0",
    }  # fmt: skip
    assert all(of["verdict"] == "as predicted" for of in files.values())
    assert "gray pil" in found["unmeasured"]


def test_the_parts_of_parity_are_the_most_telling_first(tmp_path: Path) -> None:
    import gpu_parity as module
    import parity_measure as measure

    names = [part.name for part in module.parts(str(tmp_path), 4, "cpu")]
    assert len(set(names)) == len(names)
    assert names[0].startswith("decoders|random crop")
    last_photograph = max(i for i, n in enumerate(names) if n.startswith("cases|crop|photographs"))
    assert last_photograph < min(i for i, n in enumerate(names) if n.endswith("|noise"))
    assert {n.split("|")[1] for n in names} == {*measure.CASES, *measure.RECIPES}


# ---- loaders


def test_a_graph_by_hand_gets_the_settings_that_gpupipe_chose() -> None:
    pytest.importorskip("nvidia.dali")
    from _loaders import Job, Work, resolved

    paths = (str(ROOT / "not-read.jpg"),)
    job = resolved(Job("a", "dali-by-hand", hw_decoder_load=0.4, files="4:2:0"), Work(paths, device="cpu"))
    assert job.roi is True and job.fancy_upsampling is True and job.hw_decoder_load == 0.4
    plain = resolved(Job("a", "dali-by-hand", roi=False, fancy_upsampling=False), Work(paths, device="cpu"))
    assert plain.roi is False and plain.fancy_upsampling is False


def test_sets_of_files_belong_to_their_work(photos: Path) -> None:
    from _common import recoded
    from _loaders import Work
    from PIL import Image

    paths = sorted(map(str, photos.rglob("*.jpg")))[:3]
    with recoded(paths, ("4:2:0", "4:4:4")) as sets:
        work = Work(tuple(paths), epoch=7, sets=sets)
        assert work.of(None) is work and len(work.files()) == 9
        assert work.of("4:4:4").files()[:3] == list(sets["4:4:4"])
        for chroma, factor in (("4:2:0", 2), ("4:4:4", 1)):
            for path in sets[chroma]:
                with Image.open(path) as image:
                    assert image.mode == "RGB" and image.layer[0][1] == factor  # type: ignore[attr-defined]
    assert not Path(sets["4:2:0"][0]).exists()


# ---- docs/figures.md


def test_the_readme_shows_what_was_predicted_as_predictions_until_it_was_measured(tmp_path: Path) -> None:
    from _gpu_figures import gpu

    text = gpu(tmp_path)
    assert "They are not promises, and no measurement is kept" in text
    assert "| 10,000 to 17,000 images/s |" in text and "- JPEG: max 60, mean 1.5" in text
    result = {
        "machine": {"gpus": ["some GPU"], "cpu": "some CPU", "cores": 16, "date": "2030-01-01"},
        "decoders": {"fancy upsampling, windows": {"4:2:0, load 0.5": {
            "decoded_by": "CPU", "equal": 1.0, "max": 0.0, "mean": 0.0,
        }}},
        "race": {"default settings, windows": {"bytes": 3, "batches": 200}},
    }  # fmt: skip
    (tmp_path / "gpu_decoders.json").write_text(json.dumps(result))
    tests = {
        "machine": result["machine"], "measured": {},
        "outcomes": {"a": "passed", "b": "failed: because", "c": "passed", "d": "not run"},
    }  # fmt: skip
    (tmp_path / "gpu_tests.json").write_text(json.dumps(tests))
    text = gpu(tmp_path)
    assert "not promises" not in text
    assert "| fancy upsampling, windows | 4:2:0, load 0.5 | CPU | 100 % | 0 | 0.00 |" in text
    assert "**3** bytes changed in 200 batches" in text
    assert "The GPU tests: 2 passed, 1 failed, 1 not run." in text
