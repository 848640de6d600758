"""Formats that other packages bring."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from gpupipe import datasets
from gpupipe.errors import ConfigError
from gpupipe.formats import registry
from gpupipe.formats.zip import Zip


class Comics(Zip):
    """Archives of comic books."""

    suffixes = (".cbz",)


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "gpupipe.formats" else [])
    registry._plugins.cache_clear()
    registry.formats.cache_clear()
    yield points
    registry._plugins.cache_clear()
    registry.formats.cache_clear()


def test_an_entry_point_adds_a_format(point: list[EntryPoint]) -> None:
    point.append(EntryPoint("Comics", f"{__name__}:Comics", "gpupipe.formats"))
    assert datasets.Comics is Comics
    assert registry.format_of("a.cbz") is Comics and registry.format_of("a.zip") is Zip


def test_a_format_that_cannot_be_imported_is_named(point: list[EntryPoint]) -> None:
    point.append(EntryPoint("Lost", "no_such_module:Lost", "gpupipe.formats"))
    with pytest.raises(ConfigError, match=r"the format Lost of the package .* cannot be imported: ModuleNotFoundError"):
        datasets.Lost  # noqa: B018


def test_an_entry_point_that_is_no_dataset_is_refused(point: list[EntryPoint]) -> None:
    point.append(EntryPoint("Number", "math:pi", "gpupipe.formats"))
    with pytest.raises(ConfigError, match=r"not a subclass of gpupipe\.datasets\.Dataset"):
        datasets.Number  # noqa: B018
