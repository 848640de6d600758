"""Report of the demo: one self-contained HTML file without scripts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from PIL import Image

from ..html import document, embedded, table
from ..parity.compare import Comparison, Worst
from ..parity.drawing import amplification, amplified
from .run import Demo
from .train import NAMES, Curve

_COLORS = {"dali": "var(--one)", "torch": "var(--two)"}
_STYLE = """<style>
.photos { display: grid; grid-template-columns: repeat(4, 1fr); gap: .5rem; margin: 1.5rem 0; }
.photos img { width: 100%; aspect-ratio: 4 / 3; object-fit: cover; border-radius: .4rem; display: block; }
.whole { width: 100%; }
@media (max-width: 40rem) { .photos { grid-template-columns: repeat(2, 1fr); }
  th, td { padding: .3rem .35rem; } td:first-child { white-space: normal; overflow-wrap: anywhere; }
  svg text { font-size: 17px; } }
</style>"""


def page(demo: Demo, machine: dict[str, Any], following: Sequence[tuple[str, str]]) -> str:
    """Return the report as HTML.

    Args:
        following: (command, what it does): what to do next.
    """
    both = len(demo.curves) == 2
    title = "One network, trained twice" if both else "The reference alone"
    lead = f"{demo.about}, {demo.source}. " + (
        "DALI decoded and augmented for the first training, worker processes with Pillow for the second, with equal "
        "seeds, initial weights, order, crops and flips."
        if both
        else "DALI is not installed, so there is nothing to compare; pip install nvidia-dali-cuda120."
    )
    photos = "".join(f'<img alt="one of the images" src="{embedded(_small(it))}">' for it in demo.pictures)
    parts = [_STYLE, f"<h1>{title}</h1><p class=lead>{html.escape(lead)}</p>", f'<div class="photos">{photos}</div>']
    found = [
        [f'<span class="{"good" if ok else "bad"}">{"✓" if ok else "✗"}</span> {name}', html.escape(text)]
        for ok, name, text in demo.findings()
    ]
    parts += ["<h2>What was found</h2>", table([], found, kind="facts")]
    parts += ["<h2>Loss of every step</h2>", _chart(demo.curves), _epochs(demo.curves)]
    if demo.comparison is not None:
        parts += ["<h2>Pixels</h2>", _steps(demo.comparison), _picture(demo.comparison.worst)]
    commands = "".join(f"<pre>{html.escape(c)}</pre><p class=lead>{html.escape(what)}</p>" for c, what in following)
    parts += ["<h2>Next</h2>", commands, "<h2>Pipeline</h2>", f"<pre>{html.escape(repr(demo.pipeline))}</pre>"]
    parts += ["<h2>Machine</h2>", _facts(machine)]
    return document("gpupipe demo", parts)


def _small(picture: Image.Image) -> Image.Image:
    small = picture.copy()
    small.thumbnail((240, 240))
    return small


def _chart(curves: Sequence[Curve]) -> str:
    """Draw loss by step. The reference is dashed, so that both curves stay visible where they coincide."""
    width, height = 760, 240
    top, steps = max(max(c.losses) for c in curves), max(len(c.losses) for c in curves)
    drawn = []
    for k, c in enumerate(curves):
        points = " ".join(
            f"{i / max(steps - 1, 1) * width:.1f},{20 + (1 - v / top) * (height - 40):.1f}"
            for i, v in enumerate(c.losses)
        )
        thick, thin = 'stroke-width="5" stroke-opacity=".45"', 'stroke-width="1.6" stroke-dasharray="6 4"'
        style = f'stroke="{_COLORS[c.engine]}" fill="none" {thick if c.engine == "dali" else thin}'
        x = width - 270 + 130 * k
        drawn.append(f'<polyline points="{points}" {style}/><line x1="{x}" x2="{x + 28}" y1="20" y2="20" {style}/>')
        drawn.append(f'<text x="{x + 36}" y="24">{NAMES[c.engine]}</text>')
    axis = f'<line x1="0" x2="{width}" y1="{height - 20}" y2="{height - 20}" class="line"/>'
    words = f'<text x="0" y="14">{top:.2g}</text><text x="0" y="{height - 4}">0, after {steps} steps</text>'
    return f'<svg viewBox="0 0 {width} {height}" role="img">{axis}{words}{"".join(drawn)}</svg>'


def _epochs(curves: Sequence[Curve]) -> str:
    head = ["epoch"] + [f"{what}, {NAMES[c.engine]}" for what in ("loss", "held out right") for c in curves]
    rows = []
    for i, epochs in enumerate(zip(*(c.epochs for c in curves), strict=True), 1):
        rows.append([str(i), *(f"{e.loss:.4f}" for e in epochs), *(f"{100 * e.accuracy:.1f} %" for e in epochs)])
    return table(head, rows)


def _steps(comparison: Comparison) -> str:
    rows = []
    for s in comparison.steps:
        d, kind = s.difference, {"ok": "good", "not ok": "bad"}.get(s.verdict, "")
        verdict = f'<span class="{kind}">{s.verdict}</span>'
        rows.append([html.escape(s.name), f"{100 * d.equal:.0f} %", f"{d.max:.3g}", f"{d.mean:.3f}", verdict])
    return (
        f"<p>{comparison.steps[-1].difference.images} images, the pipeline stopped after each transform, in gray "
        "levels of 0 to 255. <i>equal</i>: images with all values equal. <i>largest</i> and <i>mean</i>: differences. "
        "Single values differ most at the edge of a reduced image, where the two filters end differently.</p>"
        + table(["after", "equal", "largest", "mean", "promise"], rows)
    )


def _picture(worst: Sequence[Worst]) -> str:
    if not worst:
        return ""
    most = max(worst, key=lambda w: w.mean)  # a single large value at an edge shows nothing
    times = amplification(most.max)
    enlarged = max(1, 224 // max(most.dali.shape[:2]))
    height, width = (side * enlarged for side in most.dali.shape[:2])
    row = Image.new("RGBA", (3 * width + 16, height))
    for k, pixels in enumerate((most.dali, most.reference, amplified(most.dali, most.reference, times))):
        row.paste(Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST), (k * (width + 8), 0))
    return (
        f'<figure><img class="whole" alt="DALI, reference, difference" src="{embedded(row)}"><figcaption>The image '
        f"that differs most: DALI, reference, their difference times {times}. Largest {most.max:.3g}, mean "
        f"{most.mean:.3g} gray levels.</figcaption></figure>"
    )


def _facts(machine: dict[str, Any]) -> str:
    rows = []
    for name, value in machine.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value)) or "none"
        rows.append([html.escape(name.replace("_", " ")), html.escape("none" if value is None else str(value))])
    return table([], rows, kind="facts")
