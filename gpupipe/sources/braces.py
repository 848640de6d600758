"""Expansion of braces in names, as in a shell."""

from __future__ import annotations

import re
from itertools import product

_RANGE = re.compile(r"(-?[0-9]+)[.]{2}(-?[0-9]+)(?:[.]{2}(-?[0-9]+))?|([A-Za-z])[.]{2}([A-Za-z])")
_MOST = 1_000_000
"""Maximum number of names of one pattern. More are a typing mistake and would fill the memory."""


def braces(text: str) -> list[str]:
    """Expand braces, which may be nested, as a shell does.

    >>> braces("train-{08..10}.{tar,zip}")
    ['train-08.tar', 'train-08.zip', 'train-09.tar', 'train-09.zip', 'train-10.tar', 'train-10.zip']

    Raises :class:`ValueError` for more than a million names.
    """
    parts: list[list[str]] = []
    at = 0
    while at < len(text):
        opening = text.find("{", at)
        closing = _closing(text, opening) if opening >= 0 else -1
        if opening < 0 or closing < 0:
            parts.append([text[at:]])
            break
        choices = _choices(text[opening + 1 : closing])
        if choices is None:  # not expanded, as in a shell
            choices = ["{" + inner + "}" for inner in braces(text[opening + 1 : closing])]
        parts += [[text[at:opening]], choices]
        at = closing + 1
    # Count the names before making them: a few short lists can have more than fit into memory.
    count = 1
    for part in parts:
        count *= len(part)
    if count > _MOST:
        raise ValueError(f"{text!r} stands for {count:,} names")
    return ["".join(chosen) for chosen in product(*parts)]


def _closing(text: str, opening: int) -> int:
    """Return the position of the brace that closes the one at ``opening``; -1 if there is none."""
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if not depth:
            return i
    return -1


def _choices(inner: str) -> list[str] | None:
    """Return the alternatives in a pair of braces; ``None`` if the text is neither a range nor a list."""
    match = _RANGE.fullmatch(inner)
    if match is None:
        options = _split(inner)
        return None if len(options) < 2 else [name for option in options for name in braces(option)]
    first, last, step, letter, other = match.groups()
    if letter is not None:
        a, b = ord(letter), ord(other)
        return [chr(c) for c in range(a, b + (1 if a <= b else -1), 1 if a <= b else -1)]
    a, b = int(first), int(last)
    # The sign of a step does not matter, and 0 counts as 1, as in bash.
    by = abs(int(step or 1)) or 1
    if abs(b - a) // by >= _MOST:
        raise ValueError(f"{{{inner}}} stands for {abs(b - a) // by + 1:,} names")
    # A zero at the beginning of either number pads all numbers.
    padded = any(re.match(r"-?0[0-9]", n) for n in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{n:0{width}d}" for n in range(a, b + (1 if a <= b else -1), by if a <= b else -by)]


def _split(inner: str) -> list[str]:
    """Split at the commas outside of nested braces."""
    options, depth, start = [], 0, 0
    for i, c in enumerate(inner):
        depth += (c == "{") - (c == "}")
        if c == "," and not depth:
            options.append(inner[start:i])
            start = i + 1
    return [*options, inner[start:]]
