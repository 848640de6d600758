"""``gpupipe explain``"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from rich.text import Text

from ..errors import ConfigError
from ..reasons import ADVICE
from .answer import tell
from .console import console, pairs

_PACKAGE = Path(__file__).resolve().parents[1]
_PAGES = (_PACKAGE / "docs" / "warnings.md", _PACKAGE.parent / "docs" / "warnings.md")
"""Where the page of all codes is in an installed package, and in a checkout."""
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def run(code: str | None) -> int:
    if code is None:
        tell(codes=ADVICE)
        console().print(pairs([(name, advice) for name, advice in ADVICE.items()], "codes of warnings"))
        return 0
    name = code.strip("[]")
    if name not in ADVICE:
        similar = get_close_matches(name, ADVICE, 1)
        hint = f"did you mean {similar[0]}?" if similar else "gpupipe explain lists them"
        raise ConfigError(f"{code} is not the code of a warning; {hint}")
    text = page_of(name)
    tell(code=name, advice=ADVICE[name], text=text)
    screen = console()
    screen.print(Text(name, "bold"))
    screen.print(Text(text))
    screen.print(Text(f"In short: {ADVICE[name]}.", "dim"))
    return 0


def page_of(code: str) -> str:
    """Return what the page says of a code, without links. Empty if the page is missing."""
    page = next((path.read_text(encoding="utf-8") for path in _PAGES if path.is_file()), "")
    found = re.search(rf"^### {re.escape(code)}\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE)
    return _LINK.sub(r"\1", " ".join(found[1].split())) if found else ""
