"""Charts of benchmark results, drawn from their JSON alone. Needs the ``bench`` extra."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from ..errors import ConfigError, MissingDependency

__all__ = ["draw", "pyplot", "read"]

_COLORS = {"dali": "#76b900", "torch": "#e2703a", "null": "#9aa2b1", "torchvision": "#5b6b8c"}


def pyplot() -> Any:
    """Return matplotlib's pyplot without a screen. Raises :class:`MissingDependency` if matplotlib is not installed."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise MissingDependency("charts need matplotlib: pip install 'gpupipe-loader[bench]'") from None
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def read(path: str | Path) -> dict[str, Any]:
    """Read a result written by ``gpupipe bench --json``. Raises :class:`ConfigError` if the file is anything else."""
    try:
        result = json.loads(Path(path).read_text())
        _ = result["candidates"], result["baseline"]
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise ConfigError(f"{path}: not a benchmark result ({type(e).__name__}: {e})") from None
    return dict(result)


def draw(result: dict[str, Any], out: str | Path) -> Path:
    """Draw bars of the medians in images/s, with a dot for every round. Return ``out`` as a path.

    Args:
        result: with ``candidates`` (name to ``images_per_second``, ``median``, ``ratio``) and ``baseline``.
        out: file whose suffix sets the format, such as ``.svg`` or ``.png``.
    """
    plt = pyplot()
    shown = {name: c for name, c in result["candidates"].items() if name != "null"}
    if not shown:
        raise ConfigError("there is nothing to draw: only the null engine was measured")
    names = sorted(shown, key=lambda name: shown[name]["median"])
    figure, axes = plt.subplots(figsize=(8, 0.7 * len(names) + 1.6), layout="constrained")
    for row, name in enumerate(names):
        c = shown[name]
        axes.barh(row, c["median"], color=_COLORS.get(name, "#9aa2b1"), height=0.62)
        axes.plot(c["images_per_second"], [row] * len(c["images_per_second"]), "o", color="#1a1d24", markersize=3.5)
        label = f"{c['median']:,.0f}  ({c['ratio']:.2f} x {result['baseline']})"
        axes.annotate(label, (max(c["images_per_second"]), row), (8, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("images/s: median, and a dot for every round")
    axes.set_xlim(0, max(max(c["images_per_second"]) for c in shown.values()) * 1.35)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(_title(result), loc="left", fontsize=10)
    figure.savefig(out, dpi=150)
    plt.close(figure)
    return Path(out)


def _title(result: dict[str, Any]) -> str:
    machine, settings = result.get("machine", {}), result.get("settings", {})
    where = (
        ", ".join(machine.get("gpus") or [])
        or f"{machine.get('cpu', 'unknown CPU')}, {machine.get('cores', '?')} cores"
    )
    return f"{settings.get('pipeline', '')} on {where}".strip()
