"""Commands of ``gpupipe`` as a person calls them, in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from gpupipe.cli import app

__all__ = ["answer", "error", "gpupipe"]


def gpupipe(*arguments: object, code: int = 0) -> Result:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output + result.stderr
    return result


def answer(*arguments: object, code: int = 0) -> dict[str, Any]:
    """What a command tells a program."""
    found: dict[str, Any] = json.loads(gpupipe(*arguments, "--json", code=code).stdout)
    return found


def error(*arguments: object) -> str:
    """The message of a command that must fail, which is readable: one line, and no traceback."""
    result = gpupipe(*arguments, code=2)
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines(keepends=True) if not line.startswith("gpupipe: ")]  # progress
    assert len(lines) == 1 and lines[0].startswith("error: ") and lines[0].endswith("\n"), result.stderr
    return lines[0]
