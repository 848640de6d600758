"""Report of the demo: one self-contained HTML file without scripts."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from PIL import Image

from ..html import document, embedded, table
from ..parity.compare import Comparison, Worst
from ..parity.drawing import amplification, amplified
from .run import Demo
from .train import NAMES, Curve
from .words import MedianRound, factor, loader_name

_WORDS = {
    "cpu": "processor",
    "memory_gb": "memory in GB",
    "gpus": "GPUs",
    "cuda": "CUDA",
    "libjpeg_turbo": "libjpeg-turbo",
}
"""Words for the facts about the machine."""
_COLORS = {"dali": "var(--one)", "torch": "var(--two)"}
_STYLE = """<style>
.photos { display: grid; grid-template-columns: repeat(4, 1fr); gap: .5rem; margin: 1.5rem 0; }
.photos img { width: 100%; aspect-ratio: 4 / 3; object-fit: cover; border-radius: .4rem; display: block; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .5rem .8rem; align-items: center; }
.bars i { display: block; height: 1.1rem; border-radius: .25rem; }
.whole { width: 100%; }
@media (max-width: 40rem) { .photos { grid-template-columns: repeat(2, 1fr); }
  th, td { padding: .3rem .35rem; } td:first-child { white-space: normal; overflow-wrap: anywhere; }
  svg text { font-size: 17px; } .bars { grid-template-columns: 1fr max-content; } .bars span { grid-column: 1 / 3; } }
</style>"""


def page(demo: Demo, machine: dict[str, Any], following: Sequence[tuple[str, str]]) -> str:
    """Return the report as HTML.

    Args:
        following: (command, what it does): what to do next.
    """
    both = demo.comparison is not None
    title = _title(demo) if both else "The reference alone"
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
    heading = "The loss falls" if demo.apart is None else f"The losses of both differ by at most {demo.apart:.1g}"
    parts += [f"<h2>{heading}</h2>", _chart(demo.curves), _epochs(demo.curves)]
    if demo.comparison is not None:
        parts += [f"<h2>{_pixels(demo.comparison)}</h2>", _steps(demo.comparison), _pictures(demo.comparison.worst)]
    parts += ["<h2>A bad file is reported and replaced</h2>", _bad_file(demo)]
    parts += ["<h2>A stopped epoch continues</h2>", _resume(demo)]
    parts += [f"<h2>Loading is {factor(MedianRound.of(demo.speed).ratio)}</h2>", _speed(demo)]
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


def _title(demo: Demo) -> str:
    """Return the conclusion."""
    right = [curve.epochs[-1].accuracy for curve in demo.curves]
    same = "the same share" if max(right) - min(right) < 0.005 else "nearly the same share"
    return f"One network, trained twice: {same} of held-out images is right"


def _pixels(comparison: Comparison) -> str:
    mean = comparison.steps[-1].difference.mean
    return f"The pixels differ by {mean:.2g} of 255 gray levels on average"


def _photos(demo: Demo) -> str:
    images = []
    for picture in demo.pictures:
        small = picture.copy()
        small.thumbnail((240, 240))
        images.append(f'<img alt="one of the images" src="{embedded(small)}">')
    return f'<div class="photos">{"".join(images)}</div>'


def _cards(demo: Demo) -> str:
    shown = MedianRound.of(demo.speed)
    right = [f"{100 * curve.epochs[-1].accuracy:.1f} %" for curve in demo.curves]
    cards = [
        (f"{shown.ratio:.2f} ×", f"as fast: {loader_name(shown.name)}, beside {loader_name(demo.speed.baseline)}"),
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


def _ticks(top: float) -> list[float]:
    """Return round numbers from 0 up to ``top``, four to eight of them."""
    raw = top / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = max(unit * k for k in (1, 2, 5) if unit * k <= raw)
    return [step * k for k in range(int(top / step + 1e-9) + 1)]


def _chart(curves: Sequence[Curve]) -> str:
    """Draw loss by step. The reference is dashed, so that both curves stay visible where they coincide."""
    width, height, left, bottom = 760, 260, 48, 34
    top = max(max(c.losses) for c in curves) * 1.05
    steps = max(len(c.losses) for c in curves)

    def x(i: float) -> float:
        return left + i / max(steps - 1, 1) * (width - left - 12)

    def y(v: float) -> float:
        return 10 + (1 - v / top) * (height - bottom - 10)

    marks = [f'<text x="{left - 8}" y="14" text-anchor="end">loss</text>']
    for v in _ticks(top)[:-1] if top - _ticks(top)[-1] < top / 20 else _ticks(top):
        marks.append(
            f'<line x1="{left}" x2="{width - 12}" y1="{y(v):.1f}" y2="{y(v):.1f}" class="line"/>'
            f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>'
        )
    marks.append(f'<text x="{width - 12}" y="{height - 14}" text-anchor="end">{steps} steps</text>')
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
            f'<line x1="{width - 270 + 120 * k}" x2="{width - 242 + 120 * k}" y1="20" y2="20" {style}/>'
            f'<text x="{width - 234 + 120 * k}" y="24">{NAMES[c.engine]}</text>'
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
            [html.escape(s.name), f"{100 * d.equal:.0f} %", f"{max(d.interior.max, d.border.max):.3g}", f"{d.mean:.3f}",
             f'<span class="{kind}">{s.verdict}</span>']
        )  # fmt: skip
    head = ["after", "equal", "largest", "mean", "promise"]
    return (
        f"<p>{comparison.steps[-1].difference.images} images, the pipeline stopped after each transform, in gray "
        "levels of 0 to 255. <i>equal</i>: images with all values equal. <i>largest</i> and <i>mean</i>: differences. "
        "Single values differ most at the edge of a reduced image, where the two filters end differently.</p>"
        + table(head, rows)
    )


def _pictures(worst: Sequence[Worst]) -> str:
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


def _speed(demo: Demo) -> str:
    shown, baseline = MedianRound.of(demo.speed), demo.speed.baseline
    fastest = max(shown.rates.values())
    bars = []
    for name, rate in shown.rates.items():
        color = "var(--line)" if name == baseline else "var(--one)"
        bars.append(
            f"<span>{html.escape(loader_name(name))}</span>"
            f'<i style="width: {100 * rate / fastest:.1f}%; background: {color}"></i>'
            f"<b>{rate:,.0f} images/s</b>"
        )
    who = ""
    if shown.name == "dali" and demo.device == "cpu":
        who = " Without a GPU, DALI decodes the images, and threads of gpupipe do the rest."
    return (
        f'<div class="bars">{"".join(bars)}</div><p>The round with the median ratio, {shown.ratio:.2f} '
        f"({shown.low:.2f} to {shown.high:.2f} in {len(demo.speed.rates[baseline])} rounds that take turns): loading "
        f"crops of 224 x 224 alone, on this machine, while other programs may run.{who}</p>"
    )


def _facts(machine: dict[str, Any]) -> str:
    rows = []
    for name, value in machine.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value)) or "none"
        rows.append([html.escape(_WORDS.get(name, name)), html.escape("none" if value is None else str(value))])
    return table([], rows, kind="facts")
