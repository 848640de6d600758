"""URLs whose client is not installed."""

from __future__ import annotations

import importlib.util

import pytest

from gpupipe import datasets
from gpupipe.errors import MissingDependency


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfs"])
def test_datasets_name_the_extra(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=rf"{scheme}:// is read by obstore: .*gpupipe-loader\[remote\]"):
        datasets.WebDataset(f"{scheme}://bucket/train-{{000..001}}.tar")
