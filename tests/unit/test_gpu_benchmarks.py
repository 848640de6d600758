"""What the benchmarks for a GPU make of their readings: all of it needs no GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


# ---- what the scripts make of readings


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


def test_the_copies_are_measured_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_stall_of_a_step_is_what_is_above_the_replayed_batchs_of_the_same_round() -> None:
    import gpu_training as module

    def turn(seconds: float) -> dict[str, float]:
        return {"step_seconds": seconds, "images_per_second": 256 / seconds, "host_waited": 0.0}

    turns = {module.CEILING: [turn(0.08), turn(0.09)], module.OURS: [turn(0.1), turn(0.1)], module.TORCHVISION: []}
    found = module.summarize(turns)
    assert found[module.OURS]["stall_share"] == pytest.approx([0.2, 0.1])
    assert found[module.CEILING]["stall_share"] == [0, 0] and module.TORCHVISION not in found


def test_rows_of_the_table_without_a_measurement_are_named() -> None:
    import gpu_parity as module

    spread = {"max": 3.0, "mean": 0.3, "over_1": 0.0}
    kinds = {"photographs": {"reference": {**spread, "interior": spread, "border": dict.fromkeys(spread, 0.0)}}}
    found = module.rows({"flips": kinds})
    assert found["rows"]["flip"]["max"] == 3 and "gray pil" in found["unmeasured"]


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
    assert job.fancy_upsampling is True and job.hw_decoder_load == 0.4
    plain = resolved(Job("a", "dali-by-hand", fancy_upsampling=False), Work(paths, device="cpu"))
    assert plain.fancy_upsampling is False


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


def test_the_page_shows_what_was_measured(tmp_path: Path) -> None:
    from _gpu_figures import NEVER, gpu

    assert NEVER in gpu(tmp_path)
    result = {
        "machine": {"gpus": ["some GPU"], "cpu": "some CPU", "cores": 16, "date": "2030-01-01"},
        "decoders": {"fancy upsampling": {"4:2:0, load 0.5": {
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
    assert NEVER not in text
    assert "| fancy upsampling | 4:2:0, load 0.5 | CPU | 100 % | 0 | 0.00 |" in text
    assert "**3** bytes changed in 200 batches" in text
    assert "The GPU tests: 2 passed, 1 failed, 1 not run." in text
