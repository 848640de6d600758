"""The table of docs/sources.md has every dataset of images, and names no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpupipe import datasets
from gpupipe.datasets.arrays import Arrays
from gpupipe.datasets.images import EncodedImages

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sources.md"


def rows() -> dict[str, list[str]]:
    table = re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE.read_text(), re.M)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in table}


def test_every_dataset_of_images_has_a_row() -> None:
    kinds = {name: getattr(datasets, name) for name in datasets.__all__}
    public = {n for n, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, (EncodedImages, Arrays))}
    assert rows().keys() == public
    assert all(len(cells) == 4 for cells in rows().values())


@pytest.mark.parametrize("name", [name for name, cells in rows().items() if "gpupipe-loader[" in cells[2]])
def test_what_it_needs_is_what_its_docstring_says(name: str) -> None:
    extras = set(re.findall(r"gpupipe-loader\[\w+\]", rows()[name][2]))
    documented = set(re.findall(r"gpupipe-loader\[\w+\]", getattr(datasets, name).__doc__ or ""))
    assert extras == documented
    declared = (PAGE.parents[1] / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra.partition('[')[2][:-1]} = \[", declared, re.M) for extra in extras)
