"""Report of the demo: one self-contained HTML file without scripts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from PIL import Image

from ..html import document, embedded, table
from ..parity.compare import Comparison, Worst
from ..parity.drawing import amplification, amplified, cell
from .train import Curve, Demo

NAMES = {"dali": "DALI", "torch": "reference"}
_COLORS = {"dali": "#4d8f00", "torch": "#c2410c"}


def page(demo: Demo, machine: dict[str, Any]) -> str:
    """Return the report as HTML."""
    both = demo.comparison is not None
    title = "One network, trained twice" if both else "The reference alone"
    lead = (
        f"{demo.train_images:,} images of {demo.classes} classes ({html.escape(demo.source)}), "
        f"{len(demo.curves[0].epochs)} epochs in batches of {demo.batch_size}, {demo.val_images:,} images held out. "
    )
    lead += (
        "DALI decoded and augmented for the first training, torch's DataLoader with Pillow for the second, with equal "
        "seeds, initial weights, order, crops and flips."
        if both
        else "DALI is not installed, so there is nothing to compare; pip install nvidia-dali-cuda120."
    )
    parts = [f"<h1>{title}</h1><p class=lead>{lead}</p>", _cards(demo)]
    parts += ["<h2>Loss of every step</h2>", _chart(demo.curves), _epochs(demo.curves)]
    if demo.comparison is not None:
        parts += ["<h2>Pixels</h2>", _steps(demo.comparison), _pictures(demo.comparison.worst)]
    parts += [
        "<h2>Pipeline</h2>",
        f"<pre>{html.escape(repr(demo.pipeline))}</pre>",
        "<h2>Machine</h2>",
        _facts(machine),
    ]
    parts.append("".join(f"<p class=lead>{html.escape(c.description)}</p>" for c in demo.curves))
    return document("gpupipe demo", parts)


def _cards(demo: Demo) -> str:
    cards = [
        (f"{100 * c.epochs[-1].accuracy:.1f} %", f"right on held-out images, {NAMES[c.engine]}") for c in demo.curves
    ]
    if demo.comparison is not None:
        whole = demo.comparison.steps[-1].difference
        a, b = (c.losses for c in demo.curves)
        cards.append((f"{max(abs(x - y) for x, y in zip(a, b, strict=True)):.1g}", "largest difference of the losses"))
        cards.append((f"{whole.mean:.2f}", "gray levels of 255 apart, on average"))
    return (
        '<div class="cards">'
        + "".join(f'<div class="card"><b>{b}</b><span>{s}</span></div>' for b, s in cards)
        + "</div>"
    )


def _chart(curves: Sequence[Curve]) -> str:
    """Draw loss by step. The reference is dashed, so that both curves stay visible where they coincide."""
    width, height, left, bottom = 760, 260, 44, 34
    top = max(max(c.losses) for c in curves) * 1.05
    steps = max(len(c.losses) for c in curves)

    def x(i: float) -> float:
        return left + i / max(steps - 1, 1) * (width - left - 12)

    def y(v: float) -> float:
        return 10 + (1 - v / top) * (height - bottom - 10)

    marks = []
    for k in range(5):
        v = top * k / 4
        marks.append(
            f'<line x1="{left}" x2="{width - 12}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#e9ebf0"/>'
            f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.2f}</text>'
        )
    per_epoch = len(curves[0].epochs[0].losses)
    for epoch in range(len(curves[0].epochs)):
        marks.append(f'<text x="{x(epoch * per_epoch):.1f}" y="{height - 14}">epoch {epoch + 1}</text>')
    lines, legend = [], []
    for k, c in enumerate(curves):
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(c.losses))
        style = f'stroke="{_COLORS[c.engine]}" fill="none" ' + (
            'stroke-width="5" stroke-opacity=".45"'
            if c.engine == "dali"
            else 'stroke-width="1.6" stroke-dasharray="6 4"'
        )
        lines.append(f'<polyline points="{points}" {style}/>')
        legend.append(
            f'<line x1="{width - 250 + 120 * k}" x2="{width - 222 + 120 * k}" y1="20" y2="20" {style}/>'
            f'<text x="{width - 214 + 120 * k}" y="24">{NAMES[c.engine]}</text>'
        )
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(marks + lines + legend)}</svg>'


def _epochs(curves: Sequence[Curve]) -> str:
    head = ["epoch"] + [f"{what}, {NAMES[c.engine]}" for what in ("loss", "held out right", "images/s") for c in curves]
    rows = []
    for i in range(len(curves[0].epochs)):
        e = [c.epochs[i] for c in curves]
        rows.append(
            [str(i + 1)]
            + [f"{x.loss:.4f}" for x in e]
            + [f"{100 * x.accuracy:.1f} %" for x in e]
            + [f"{x.images_per_second:,.0f}" for x in e]
        )
    return table(head, rows)


def _steps(comparison: Comparison) -> str:
    rows = []
    for s in comparison.steps:
        d = s.difference
        kind = {"ok": "good", "not ok": "bad"}.get(s.verdict, "")
        rows.append(
            [html.escape(s.name), f"{100 * d.equal:.0f} %", f"{d.interior.max:.3g}", f"{d.border.max:.3g}",
             f"{d.mean:.3f}", f"{100 * d.over_1:.2f} %", f'<span class="{kind}">{s.verdict}</span>']
        )  # fmt: skip
    head = ["after", "images equal", "largest inside", "at the border", "mean", "off by more than 1", "promise"]
    return (
        f"<p>{comparison.steps[-1].difference.images} images, the pipeline stopped after each transform, in gray "
        "levels of 0 to 255. The border is where a filter reaches over the edge of a reduced image, which the two "
        "treat differently.</p>" + table(head, rows)
    )


def _pictures(worst: Sequence[Worst]) -> str:
    if not worst:
        return ""
    factor = amplification(max(w.max for w in worst))
    cells = []
    for w in worst:
        row = Image.new("RGB", (3 * 128 + 8, 128), (255, 255, 255))
        for k, pixels in enumerate((w.dali, w.reference, amplified(w.dali, w.reference, factor))):
            row.paste(cell(pixels, 128), (k * 132, 0))
        cells.append(
            f'<figure><img alt="DALI, reference, difference" src="{embedded(row)}"><figcaption>largest {w.max:.3g}, '
            f"mean {w.mean:.3g}</figcaption></figure>"
        )
    return (
        f"<p>The images that differ most. For each: DALI, reference, their difference times {factor}.</p>"
        f'<div class="grid">{"".join(cells)}</div>'
    )


def _facts(machine: dict[str, Any]) -> str:
    rows = []
    for name, value in machine.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value)) or "none"
        rows.append([html.escape(name), html.escape("none" if value is None else str(value))])
    return table([], rows, kind="facts")
