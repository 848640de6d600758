"""Functions that low layers call and higher layers provide. ``gpupipe/__init__.py`` registers them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def _nothing(*arguments: Any) -> Any:
    raise RuntimeError("gpupipe/__init__.py did not run: import gpupipe before its parts")


one_sample: Callable[[Any, int], Any] = _nothing
"""Return one sample of a dataset, with its image transformed by the reference engine."""
one_image: Callable[[Any, Any], Any] = _nothing
"""Return an image as a pipeline's reference makes it."""
pipeline_of: Callable[[Any], Any] = _nothing
"""Return a pipeline that does what transforms of another library do, for a dataset of gpupipe's own."""
show: Callable[[Any, Any, Any, int], Path] = _nothing
"""Write a page about a step of a loader; see :meth:`gpupipe.DataLoader.show`."""
