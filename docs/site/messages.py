"""The page of every message, made of the texts in the code."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpupipe"

ERRORS = {
    "ConfigError": "An argument is wrong, or two of them do not fit together.",
    "DatasetError": "A dataset is empty or missing, or its index is unusable.",
    "MemoryBudgetError": "A batch does not fit into /dev/shm.",
    "StepError": "An epoch has no step of this number.",
    "PipelineError": "An engine cannot run this pipeline.",
    "TranslationError": "An object of torch or torchvision has no equivalent in gpupipe.",
    "StateError": "A state does not belong to this loader.",
    "SampleError": "Samples of one batch could not be read.",
    "EngineError": "An engine failed for another reason than a sample.",
    "MissingDependency": "A package is not installed.",
}
REASONS = {"UnsupportedError": 1, "Reason": 1, "_refuse": 2}
"""What is called to give a reason, with the place of its code."""

BEGINNING = """# Every message by its text

Search this page for words of a message. `…` stands for the part that differs, such as a path or a number. The list is
made of the texts in the code of this version.

"""


def template(node: ast.expr) -> str | None:
    """Return the text of a string expression with ``…`` for what is filled in, or ``None`` if it has no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return f"{template(node.left) or '…'}{template(node.right) or '…'}"
    return None


def calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yield (name, call) of every call of a plain name."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node


def found() -> dict[str, set[str]]:
    """Return the texts of messages by name of the error, or by code of the reason."""
    texts: dict[str, set[str]] = defaultdict(set)
    for file in sorted(PACKAGE.rglob("*.py")):
        for name, call in calls(file):
            if not call.args or not (text := template(call.args[0])) or not re.search(r"[a-z]{3}", text):
                continue
            if name in ERRORS:
                texts[name].add(shown(text))
            elif name in REASONS and len(call.args) > REASONS[name]:
                code = call.args[REASONS[name]]
                if isinstance(code, ast.Constant) and isinstance(code.value, str):
                    at = template(call.args[REASONS[name] - 1])
                    texts[f"[{code.value}]"].add(shown(at or text))
    return texts


def shown(text: str) -> str:
    return re.sub(r"(… ?)+…", "…", " ".join(text.split())).replace("`", "'")


def advice() -> dict[str, str]:
    """Return the advice of every code, as ``gpupipe.reasons.ADVICE`` has it."""
    for node in ast.parse((PACKAGE / "reasons.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ADVICE":
            table: dict[str, str] = ast.literal_eval(node.value)
            return table
    raise LookupError("gpupipe/reasons.py has no ADVICE")


def pages() -> dict[str, str]:
    """Return the page by its place on the site."""
    texts = found()
    parts = [BEGINNING, "## Warnings\n"]
    parts.append("A message says what to change, then why, and ends with its code.\n")
    for code, do in advice().items():
        parts.append(f"### [{code}](warnings.md#{code})\n\n{do[0].upper()}{do[1:]}.\n")
        parts += [f"- `{text}`" for text in sorted(texts.get(f"[{code}]", ()))]
        parts.append("")
    parts.append("## Errors\n")
    for name, meaning in ERRORS.items():
        if texts[name]:
            parts.append(f"### {name}\n\n{meaning}\n")
            parts += [f"- `{text}`" for text in sorted(texts[name])]
            parts.append("")
    return {"messages.md": "\n".join(parts)}
