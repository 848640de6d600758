"""Report of the demo: one self-contained HTML file without scripts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from PIL import Image

from ..bench.measure import Result
from ..html import document, embedded, table
from ..parity.compare import Comparison, Worst
from ..parity.drawing import amplification, amplified, cell
from .run import Demo
from .train import NAMES, Curve
from .words import factor, loader_name

_COLORS = {"dali": "var(--one)", "torch": "var(--two)"}
_STYLE = """<style>
.photos { display: grid; grid-template-columns: repeat(4, 1fr); gap: .5rem; margin: 1.5rem 0; }
.photos img { width: 100%; aspect-ratio: 4 / 3; object-fit: cover; border-radius: .4rem; display: block; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .5rem .8rem; align-items: center; }
.bars i { display: block; height: 1.1rem; border-radius: .25rem; }
@media (max-width: 40rem) { .bars { grid-template-columns: 1fr max-content; } .bars span { grid-column: 1 / 3; } }
</style>"""


def page(demo: Demo, machine: dict[str, Any], following: Sequence[tuple[str, str]]) -> str:
    """Return the report as HTML.

    Args:
        following: (command, what it does): what to do next.
    """
    both = demo.comparison is not None
    title = "One network, trained twice" if both else "The reference alone"
    lead = (
        f"{demo.train_images:,} images of {len(demo.classes)} classes ({html.escape(demo.source)}), "
        f"{len(demo.curves[0].epochs)} epochs in batches of {demo.batch_size}, {demo.held_out_images:,} images held "
        "out. "
    )
    lead += (
        "DALI decoded and augmented for the first training, worker processes with Pillow for the second, with equal "
        "seeds, initial weights, order, crops and flips."
        if both
        else "DALI is not installed, so there is nothing to compare; pip install nvidia-dali-cuda120."
    )
    parts = [_STYLE, f"<h1>{title}</h1><p class=lead>{lead}</p>", _photos(demo), _cards(demo)]
    parts += ["<h2>Loss of every step</h2>", _chart(demo.curves), _epochs(demo.curves)]
    if demo.comparison is not None:
        parts += ["<h2>Pixels</h2>", _steps(demo.comparison), _pictures(demo.comparison.worst)]
    parts += ["<h2>A bad file</h2>", _bad_file(demo), "<h2>Resume</h2>", _resume(demo)]
    parts += ["<h2>Speed</h2>", _speed(demo.speed)]
    commands = "".join(f"<pre>{html.escape(c)}</pre><p class=lead>{html.escape(what)}</p>" for c, what in following)
    parts += ["<h2>Next</h2>", commands]
    parts += [
        "<h2>Pipeline</h2>",
        f"<pre>{html.escape(repr(demo.pipeline))}</pre>",
        "<h2>Machine</h2>",
        _facts(machine),
    ]
    parts.append("".join(f"<p class=lead>{html.escape(c.description)}</p>" for c in demo.curves))
    return document("gpupipe demo", parts)


def _photos(demo: Demo) -> str:
    images = []
    for picture in demo.pictures:
        small = picture.copy()
        small.thumbnail((240, 240))
        images.append(f'<img alt="one of the images" src="{embedded(small)}">')
    return f'<div class="photos">{"".join(images)}</div>'


def _cards(demo: Demo) -> str:
    ((name, (ratio, _, _)),) = _ratios(demo.speed)
    right = [f"{100 * curve.epochs[-1].accuracy:.1f} %" for curve in demo.curves]
    cards = [
        (f"{ratio:.2f} ×", f"as fast: {loader_name(name)}, beside {loader_name(demo.speed.baseline)}"),
        (" and ".join(dict.fromkeys(right)),
         f"of held-out images right, {' and '.join(NAMES[curve.engine] for curve in demo.curves)}"),
    ]  # fmt: skip
    if demo.comparison is not None:
        cards.append((f"{demo.apart:.1g}", "largest difference of the losses"))
        whole = demo.comparison.steps[-1].difference
        cards.append((f"{whole.mean:.2g}", "gray levels of 255 apart, on average"))
    return (
        '<div class="cards">'
        + "".join(f'<div class="card"><b>{b}</b><span>{s}</span></div>' for b, s in cards)
        + "</div>"
    )


def _ratios(result: Result) -> list[tuple[str, tuple[float, float, float]]]:
    return [(name, result.ratio(name)) for name in result.rates if name != result.baseline]


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
            f'<line x1="{left}" x2="{width - 12}" y1="{y(v):.1f}" y2="{y(v):.1f}" class="line"/>'
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
    head = ["epoch"] + [f"{what}, {NAMES[c.engine]}" for what in ("loss", "held out right") for c in curves]
    rows = []
    for i in range(len(curves[0].epochs)):
        e = [c.epochs[i] for c in curves]
        rows.append([str(i + 1)] + [f"{x.loss:.4f}" for x in e] + [f"{100 * x.accuracy:.1f} %" for x in e])
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
    head = ["after", "equal", "largest", "at border", "mean", "over 1", "promise"]
    return (
        f"<p>{comparison.steps[-1].difference.images} images, the pipeline stopped after each transform, in gray "
        "levels of 0 to 255. <i>equal</i>: images with all values equal. <i>at border</i>: where a filter reaches over "
        "the edge of a reduced image, which the two treat differently. <i>over 1</i>: values off by more than one "
        "level.</p>" + table(head, rows)
    )


def _pictures(worst: Sequence[Worst]) -> str:
    if not worst:
        return ""
    times = amplification(max(w.max for w in worst))
    cells = []
    for w in worst:
        row = Image.new("RGBA", (3 * 128 + 8, 128))
        for k, pixels in enumerate((w.dali, w.reference, amplified(w.dali, w.reference, times))):
            row.paste(cell(pixels, 128), (k * 132, 0))
        cells.append(
            f'<figure><img alt="DALI, reference, difference" src="{embedded(row)}"><figcaption>largest {w.max:.3g}, '
            f"mean {w.mean:.3g}</figcaption></figure>"
        )
    return (
        f"<p>The images that differ most. For each: DALI, reference, their difference times {times}.</p>"
        f'<div class="grid">{"".join(cells)}</div>'
    )


def _bad_file(demo: Demo) -> str:
    bad = demo.bad_file
    rows = [
        ("file", bad.name),
        ("kind", bad.kind),
        ("reason", bad.reason),
        ("replaced by", bad.replacement),
        ("batch", f"{bad.images} of {bad.wanted} images"),
    ]
    code = 'loader = DataLoader(dataset, ..., on_error="replace")\nprint(loader.report())'
    return (
        "<p>A file that ends too early is one of a batch. The batch is complete, and the report names the file.</p>"
        + table([], [(a, html.escape(b)) for a, b in rows], kind="facts")
        + f"<pre>{html.escape(code)}</pre>"
    )


def _resume(demo: Demo) -> str:
    r = demo.resumed
    verdict = (
        '<span class="good">bit-identical</span>' if r.equal else '<span class="bad">different: this is a bug</span>'
    )
    code = "state = loader.state_dict()\nloader.load_state_dict(state)"
    return (
        f"<p>An epoch of {r.steps} batches stopped after {r.step}. Another loader continued from a state of "
        f"{r.state_bytes} bytes: the other {r.steps - r.step} batches are {verdict}.</p><pre>{code}</pre>"
    )


def _speed(result: Result) -> str:
    fastest = max(map(result.median, result.rates))
    bars = []
    for name in result.rates:
        color = "var(--line)" if name == result.baseline else "var(--one)"
        bars.append(
            f"<span>{html.escape(loader_name(name))}</span>"
            f'<i style="width: {100 * result.median(name) / fastest:.1f}%; background: {color}"></i>'
            f"<b>{result.median(name):,.0f} images/s</b>"
        )
    ((_, (ratio, low, high)),) = _ratios(result)
    return (
        f'<div class="bars">{"".join(bars)}</div><p>{factor(ratio)} ({low:.2f} to {high:.2f} in '
        f"{len(result.rates[result.baseline])} rounds that take turns). Loading crops of 224 x 224 alone, on "
        "this machine, while other programs may run.</p>"
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
