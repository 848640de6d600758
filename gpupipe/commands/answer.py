"""What a command answers: text for people, or with ``--json`` one object for programs."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from .console import print_error

_CURRENT: list[Answer] = []
"""The answer of the command that runs, if it prints JSON."""


class Answer:
    """Values, errors and exit code of one run of a command."""

    def __init__(self, command: str):
        self.command = command
        self.code = 0
        self.values: dict[str, Any] = {}
        self.text = io.StringIO()
        """What the command prints. It is part of the object only if the command has told no values."""

    def fail(self, error: Exception) -> None:
        """End with exit code 2 and a message on standard error."""
        self.code = 2
        self.values = {"error": {"type": type(error).__name__, "message": str(error)}}
        print_error(error)

    def write(self, out: TextIO) -> None:
        """Write the object on one line."""
        values = self.values or {"text": self.text.getvalue().splitlines()}
        print(json.dumps({"command": self.command, "exit_code": self.code, **values}, default=_plain), file=out)


@contextmanager
def answering(command: str, as_json: bool) -> Iterator[Answer]:
    """Collect what a command tells. With ``as_json`` only the object goes to standard output."""
    answer = Answer(command)
    if not as_json:
        yield answer
        return
    out = sys.stdout
    _CURRENT.append(answer)
    try:
        with redirect_stdout(answer.text):
            yield answer
    finally:
        _CURRENT.remove(answer)
    answer.write(out)


def tell(**values: Any) -> None:
    """Add values to the object that ``--json`` prints. Without ``--json`` nothing happens.

    Args:
        values: JSON values, dataclasses, paths and numbers of numpy.
    """
    for answer in _CURRENT:
        answer.values.update(values)


def write_now(code: int) -> None:
    """Write the object of a command that ends the process itself."""
    for answer in _CURRENT:
        answer.code = code
        answer.write(sys.__stdout__ or sys.stdout)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value.tolist() if hasattr(value, "tolist") else str(value)
