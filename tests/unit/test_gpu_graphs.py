"""The graphs for a GPU, drawn without one: every operator exists for the device that it is put on, and what is fed to
it is on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import plans_of

pytest.importorskip("nvidia.dali")

import parity_measure as parity
from nvidia.dali import backend
from nvidia.dali.tensors import TensorListCPU

from gpupipe.engines.dali.graph import DecoderOptions, Graph, build_graph
from gpupipe.engines.dali.graph_end import graph_end
from gpupipe.engines.dali.runner import Piece, Runner
from gpupipe.reading.reader import Feed

NAMES = [*parity.CASES, *parity.RECIPES]
_BACKEND: Any = backend
REGISTERED = {
    "cpu": _BACKEND.RegisteredCPUOps(),
    "gpu": _BACKEND.RegisteredGPUOps(),
    "mixed": _BACKEND.RegisteredMixedOps(),
}
ALLOWED = {"MakeContiguous"}  # what a copy to the GPU is made of


def draw(name: str, **options: Any) -> Graph:
    given: dict[str, Any] = {"feed": Feed("paths"), "decoder": DecoderOptions(), **options}
    pipeline = {**parity.CASES, **parity.RECIPES}[name]()
    end = graph_end(pipeline.skeleton, whole=True, common=lambda: (150, 170))
    return build_graph(pipeline, end=end, batch_size=4, num_threads=1, prefetch=2, device_id=0, **given)


def nodes(graph: Graph) -> dict[int, Any]:
    """All operators that the outputs come from."""
    found: dict[int, Any] = {}
    todo = [output.node.source for output in graph.outputs]
    while todo:
        source = todo.pop()
        if source is not None and id(source) not in found:
            found[id(source)] = source
            todo += [node.source for node in source.inputs]
    return found


def schema(source: Any) -> tuple[str, str]:
    """(name of the operator, device)"""
    text = str(source.spec)
    device = text.partition("device: ")[2].split()[0]
    return text.splitlines()[0].removeprefix("OpSpec for ").rstrip(":"), device


FEEDS = {
    "paths": Feed("paths"),
    "encoded": Feed("encoded"),
    "pixels": Feed("pixels"),
    "handed": Feed("encoded", handed=True),
    "turned": Feed("paths", turned=True),
    "both": Feed("paths", handed=True, turned=True),
}


@pytest.mark.part(of=4)
@pytest.mark.parametrize(
    ("name", "feed"),
    # Feeds differ in what is before the first op, not in what becomes of images; pixels have no decoder that crops.
    [*((name, feed) for name in NAMES for feed in ("paths", "pixels")), *(("random crop", feed) for feed in FEEDS)],
)
def test_every_operator_exists_for_its_device(name: str, feed: str) -> None:
    graph = draw(name, feed=FEEDS[feed])
    for source in nodes(graph).values():
        operator, device = schema(source)
        assert operator in ALLOWED or operator in REGISTERED[device], f"{operator} is not there for {device}"
    assert all(output.node.device == "gpu" for output in graph.outputs)


@pytest.mark.part(of=4)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_fed_is_on_the_cpu_and_images_stay_on_the_gpu(name: str) -> None:
    """An image that came back to the CPU, or a number for each sample that had to be fetched from the GPU, would make
    the host wait in every batch."""
    for source in nodes(draw(name)).values():
        operator, device = schema(source)
        if operator == "ExternalSource":
            assert device == "cpu"
        if device == "cpu" and operator != "_Shape":  # it looks at no pixel
            assert all(node.device == "cpu" for node in source.inputs), operator


@pytest.mark.part(of=4)
@pytest.mark.parametrize("name", NAMES)
def test_dali_takes_the_numbers_of_every_op(name: str) -> None:
    """It refuses arrays whose rows do not lie one after another."""

    class Pipe:
        def __init__(self) -> None:
            self.fed: list[str] = []

        def feed_input(self, name: str, value: Any) -> None:
            TensorListCPU(value, "")
            self.fed.append(name)

        def _run_once(self) -> None:
            pass

    pipe = Pipe()
    graph = replace(draw(name), pipe=pipe)  # type: ignore[type-var]
    dataset = parity.arrays("noise", {**parity.CASES, **parity.RECIPES}[name], 4)
    (plan,) = plans_of(dataset, batch_size=4)
    assert plan.ops is not None
    numbers = {given.name: given.array(plan.ops) for given in graph.inputs}
    runner = Runner(lambda: graph, torch.device("cpu"), ahead=1)
    runner._graph = graph
    runner.add([Piece(None, slice(None), numbers)])  # type: ignore[arg-type]
    runner.begin()
    assert pipe.fed == list(numbers)


def test_decoders_get_their_options() -> None:
    options = DecoderOptions(hw_decoder_load=0.25, jpeg_fancy_upsampling=True)
    (decoder,) = [s for s in nodes(draw("random crop", decoder=options)).values() if schema(s)[1] == "mixed"]
    text = str(decoder.spec)
    assert "hw_decoder_load: 0.25" in text and "jpeg_fancy_upsampling: True" in text
    assert "ImageSlice" not in schema(decoder)[0]
