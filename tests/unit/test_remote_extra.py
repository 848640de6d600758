"""URLs whose client is not installed."""

from __future__ import annotations

import pytest

from gpupipe import datasets
from gpupipe.errors import MissingDependency
from gpupipe.sources.remote import choose


@pytest.mark.parametrize(
    ("scheme", "advice"),
    [
        ("s3", r"pip install 'gpupipe-loader\[remote\]'"),
        ("gs", r"pip install 'gpupipe-loader\[remote\]'"),
        ("abfs", r"pip install 'gpupipe-loader\[remote\]'"),
        ("dropbox", "install fsspec, and its package for dropbox"),
        ("unheard", "install fsspec, and its package for unheard"),
    ],
)
def test_a_url_without_its_package_names_the_extra(scheme: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec alone, which torch brings along, knows the schemes but lacks their packages."""
    monkeypatch.setattr(choose, "_installed", lambda name: name == "fsspec")
    with pytest.raises(MissingDependency, match=f"{scheme}:// cannot be read by any installed package: {advice}"):
        choose.client_for(scheme, 4, 5.0)


def test_datasets_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_installed", lambda name: name == "fsspec")
    with pytest.raises(MissingDependency, match=r"gpupipe-loader\[remote\]"):
        datasets.WebDataset("s3://bucket/train-{000..001}.tar")
