"""What torch's loader gives, gpupipe's gives too."""

from __future__ import annotations

from typing import Any

import pytest

from .__main__ import judged, ways
from .base import Outcome, cases, differs

pytest.importorskip("nvidia.dali")
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # damaged files are Pillow's

KNOWN: dict[str, str] = {
    "KnowsItsWorker-2-fork": "not understood yet",
    "a_collate_function_that_raises-0": "an exception ends the iterator",
    "a_collate_function_that_raises-2-fork": "an exception ends the iterator",
    "a_dataset_that_cannot_be_shown-0": "not understood yet",
    "a_dataset_that_cannot_be_shown-2-fork": "not understood yet",
    "a_list_that_a_closure_holds-0": "not understood yet",
    "a_list_that_a_closure_holds-2-fork": "not understood yet",
    "a_loader_within_a_dataset-2-fork": "not understood yet",
    "a_transform_that_raises-0": "an exception ends the iterator",
    "a_transform_that_raises-2-fork": "an exception ends the iterator",
    "a_worker_sets_up_its_dataset-2-fork": "not understood yet",
    "another_transform_in_mid_epoch-0": "not understood yet",
    "batches_of_another_size-0": "not understood yet",
    "batches_of_another_size-2-fork": "not understood yet",
    "call_of_an_instances_class-0": "a replaced function is not recognised",
    "changes_in_mid_epoch-0": "not understood yet",
    "damage_that_nobody_catches-0": "an exception ends the iterator",
    "damage_that_nobody_catches-2-fork": "an exception ends the iterator",
    "forward_of_a_class-0": "a replaced function is not recognised",
    "get_params_of_a_class-0": "a replaced function is not recognised",
    "get_params_of_a_class-2-fork": "a replaced function is not recognised",
    "get_params_of_an_instance-0": "a replaced function is not recognised",
    "getitem_of_the_class-0": "a replaced function is not recognised",
    "hflip_of_the_module-0": "a replaced function is not recognised",
    "make_params_of_an_instance-0": "a replaced function is not recognised",
    "many_at_once-0": "not understood yet",
    "many_at_once-2-fork": "not understood yet",
    "pil_loader_of_the_module-0": "a replaced function is not recognised",
    "resize_of_pillow-0": "a replaced function is not recognised",
    "resize_of_pillow-2-fork": "a replaced function is not recognised",
    "scripted_transforms-0": "not understood yet",
    "scripted_transforms-2-fork": "not understood yet",
    "target_transform_that_depends_on_time-0": "a replaced function is not recognised",
    "target_transform_that_depends_on_time-2-fork": "a replaced function is not recognised",
    "transform_of_an_instance-0": "a replaced function is not recognised",
    "a_sampler_without_end-0": "not understood yet",
    "a_sampler_without_end-2-fork": "not understood yet",
}
"""What still differs, and why."""


def parameters(workers: list[int], starts: list[str]) -> list[Any]:
    return [
        pytest.param(name, arguments, id=(told := "-".join(map(str, (name, *arguments.values())))), marks=marks(told))
        for name, case in cases().items()
        for arguments in ways(case, workers, starts)
    ]


def marks(told: str) -> list[Any]:
    if told.startswith("a_sampler_without_end") and told in KNOWN:
        return [pytest.mark.skip(KNOWN[told])]  # it takes all memory
    return [pytest.mark.xfail(reason=KNOWN[told], strict=True)] if told in KNOWN else []


@pytest.mark.parametrize(("name", "arguments"), parameters([0, 2], ["fork"]))
def test_it_gives_what_torchs_loader_gives(name: str, arguments: dict[str, Any]) -> None:
    found, _ = judged(cases()[name], "auto", arguments)
    assert found is None


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "arguments"), parameters([2], ["spawn"]))
def test_it_does_so_in_processes_that_are_spawned(name: str, arguments: dict[str, Any]) -> None:
    found, _ = judged(cases()[name], "auto", arguments)
    assert found is None


def test_differences_are_found() -> None:
    assert differs(Outcome([1, 2]), Outcome([1, 3])) == "[1]: 2, not 3"
    assert differs(Outcome({"a": 1}), Outcome({"a": 1})) is None
    assert "raises ValueError" in str(differs(Outcome(error=ValueError()), Outcome(1)))
