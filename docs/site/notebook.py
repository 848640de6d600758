"""Write examples/quickstart.ipynb from docs/start.md, whose code the tests run.

python docs/site/notebook.py
"""

from __future__ import annotations

import json
import re
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


def cell(kind: str, text: str) -> dict[str, Any]:
    return {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
