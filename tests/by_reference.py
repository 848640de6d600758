"""Live sessions whose images are made by Pillow and the reference, so that batches can be compared bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor

from gpupipe.live.making import FailedImages, Maker, Making
from gpupipe.live.recipe import Recipe
from gpupipe.loader import live_session


class Made(Making):
    """A recipe that the reference makes."""

    def __init__(self, recipe: Recipe):
        self._recipe = recipe

    def result(self) -> list[Tensor]:
        problems = {}
        for number in range(len(self._recipe.encoded)):
            try:
                self._recipe.picture(number)
            except Exception as e:
                problems[number] = e
        if problems:
            raise FailedImages(problems)
        return [self._recipe.by_reference(job) for job in range(len(self._recipe.jobs))]

    def give_up(self) -> None:
        pass


class ByReference(Maker):
    """Makes every job by the reference's forms."""

    def __init__(self, *given: Any, **options: Any):
        pass

    def start(self, recipe: Recipe) -> Making:
        return Made(recipe)

    def close(self) -> None:
        pass


@contextmanager
def by_reference() -> Iterator[None]:
    """Let sessions that are made within this context use :class:`ByReference`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_session, "OnCpu", ByReference)
        yield
