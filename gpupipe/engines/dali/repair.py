"""Batches computed by the reference, after DALI failed on them or where DALI must not decode a file.

Pillow decodes every sample and identifies bad ones. If there are none, DALI rejected data that it should have decoded,
and the reference's batch is used.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...codecs.files import Undecodable
from ...errors import BadSample
from ...kernels.apply import Arrays
from ...kernels.batches import finish_plan, stack_plan
from ...reading.reader import Loaded
from ...reading.sample import bad_sample
from ...reading.setup import Setup
from ...reading.take import Take
from ..torch.reference import applied


def make_as_reference(setup: Setup, ready: Loaded) -> tuple[list[BadSample], Any]:
    """Return (bad samples, images). If no sample is bad, the images are those of the torch engine, on the CPU."""
    plan, dataset = ready.plan, setup.dataset
    batch = Take.of_setup(setup).batch(plan)

    def make(row: int) -> list[Arrays] | BadSample:
        try:
            return applied(plan, row, batch(row))
        except Undecodable as e:
            return bad_sample(dataset, int(plan.indices[row]), e)

    others = [row for row in range(len(plan)) if row not in ready.exchanged]
    found: dict[int, Any] = {}
    with ThreadPoolExecutor(setup.threads, "gpupipe-second-look") as pool:
        for rows in (ready.exchanged, others):  # if one of the first is bad, skip the others
            found |= zip(rows, pool.map(make, rows), strict=True)
            bad = {one.index: one for one in found.values() if isinstance(one, BadSample)}
            if bad:
                return list(bad.values()), None
    images = [image for row in range(len(plan)) for image in found[row]]
    return [], finish_plan(plan, stack_plan(plan, images), setup.pipeline.memory_format, dataset.medium)
