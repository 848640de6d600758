"""Parts of the self-contained HTML pages that commands write, without scripts."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1d24; --soft: #555c6b; --paper: #fff; --line: #e1e4ea; --box: #f5f6f8;
  --good: #3f7a00; --bad: #b91c1c; --one: #4d8f00; --two: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --soft: #a3aab8; --paper: #14171c; --line: #2e333d;
  --box: #1d2128; --good: #8fce45; --bad: #ff8a80; --one: #8fce45; --two: #ff9a5c; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 54rem;
  margin: 3rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem;
  overflow-wrap: anywhere; }
p { margin: .5rem 0; } .lead { color: var(--soft); } a { color: inherit; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; } td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.facts td { text-align: left; white-space: normal; } .facts td:first-child { color: var(--soft); white-space: nowrap; }
.wide { overflow-x: auto; } .good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .88rem; overflow-wrap: anywhere; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(15.5rem, 1fr)); gap: 1rem; }
.grid img { width: 100%; image-rendering: pixelated; border-radius: .3rem; display: block; }
.grid figure { margin: 0; } pre { background: var(--box); padding: .8rem 1rem; border-radius: .5rem; overflow-x: auto;
  font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; } svg { width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); } svg .line { stroke: var(--line); }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """Return a page with ``parts`` as its body."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def embedded(image: Image.Image) -> str:
    """Return the image as a URL that holds it."""
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """Return a table of cells that are HTML."""
    top = "<tr>" + "".join(f"<th>{h}</th>" for h in head) + "</tr>" if head else ""
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}">{top}{body}</table></div>'


def described(title: str, lines: Iterable[str]) -> str:
    """Return lines such as ``"engine: dali"`` as a table with a title, for a notebook."""
    pairs = (line.partition(": ") for line in lines)
    rows = [(html.escape(name), html.escape(text)) if colon else ("", html.escape(name)) for name, colon, text in pairs]
    return f"<b>{html.escape(title)}</b>{table([], rows)}"


class Page(type(Path())):  # type: ignore[misc]  # a class of its own on every system
    """Path of a written page or picture, which a notebook shows."""

    def _repr_html_(self) -> str:
        if self.suffix == ".png":
            return f'<img src="data:image/png;base64,{base64.b64encode(self.read_bytes()).decode()}">'
        page = html.escape(self.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40rem; border: 0"></iframe>'
