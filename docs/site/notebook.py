"""Write examples/quickstart.ipynb from docs/start.md, whose code the tests run, with what its code prints.

python docs/site/notebook.py
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE, NOTEBOOK = ROOT / "docs" / "start.md", ROOT / "examples" / "quickstart.ipynb"


def notebook(page: str) -> str:
    """Return a page as a notebook: prose and shell commands as text, Python as code."""
    cells = []
    for text, code in re.findall(r"(.*?)(?:^```python\n(.*?)^```\n|\Z)", page, re.DOTALL | re.MULTILINE):
        if text.strip():
            linked = re.sub(r"\]\((?!https?:|#|\.\./)([^)]+)\)", r"](../docs/\1)", text.strip())
            cells.append(cell("markdown", linked.replace("](../examples/", "](")))
        if code.strip():
            cells.append(cell("code", code.strip()) | {"execution_count": None, "outputs": []})
    for number, one in enumerate(cells):
        one["id"] = f"cell-{number}"
    about = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def with_outputs(made: str) -> str:
    """Run the code of a notebook in a temporary folder, and return the notebook with what each cell prints."""
    whole = json.loads(made)
    space: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["GPUPIPE_CACHE"] = folder
        for count, one in enumerate((it for it in whole["cells"] if it["cell_type"] == "code"), 1):
            one["execution_count"] = count
            one["outputs"] = outputs(compile("".join(one["source"]), "cell", "exec", ast.PyCF_ONLY_AST), space, count)
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def outputs(code: Any, space: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell. Return what it prints, and the value of its last expression."""
    last = ast.Expression(code.body.pop().value) if isinstance(code.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "cell", "exec"), space)
        if last is not None:
            value = eval(compile(last, "cell", "eval"), space)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        found.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        found.append({"output_type": "execute_result", "data": data, "execution_count": count, "metadata": {}})
    return found


def without_outputs(made: str) -> str:
    """Return a notebook as :func:`notebook` makes it."""
    whole = json.loads(made)
    for one in whole["cells"]:
        if one["cell_type"] == "code":
            one |= {"execution_count": None, "outputs": []}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def cell(kind: str, text: str) -> dict[str, Any]:
    return {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}


if __name__ == "__main__":
    NOTEBOOK.write_text(with_outputs(notebook(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
