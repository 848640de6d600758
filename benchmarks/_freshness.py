"""Whether results are those of this checkout: which commit they were measured on, and what changed since.

A script that writes a result names in ``MEASURES`` the files and folders that the result depends on, besides itself.
Only code counts: comments, docstrings and formatting may change. If code changed in a way that cannot concern a result,
``figures.py --still NAME --because REASON`` writes that down, in place of a measurement.
"""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _common  # noqa: F401  (makes a source checkout importable)

from gpupipe.bench.machine import facts

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = {
    "gpu_tests": "gpu_all",
    "peers": "sources",
    "recorded_clips": "video_clips",
    "transforms": "transforms_table",
}
"""Scripts of results that have another name."""


def judge(results: Path, shown: set[str]) -> tuple[list[str], list[str]]:
    """Return (what is wrong with results, which that pages show have to be measured again), a line for each."""
    wrong, outdated = [], []
    if not _has_history():
        return [], []
    for file in sorted(results.glob("*.json")):
        result = json.loads(file.read_text())
        commit = result.get("machine", {}).get("commit")
        problem = _problem(commit)
        if problem is None:
            since = result.get("still_true", {}).get("at", commit)
            changed = _first_change(since, file.stem) if file.stem in shown else None
            outdated += [f"{file.stem}: {changed} changed since {since}"] if changed else []
        else:
            wrong.append(f"{file.stem}: {problem}")
    return wrong, outdated


def confirm(file: Path, reason: str) -> None:
    """Write into a result that the changes until now do not concern it."""
    commit = facts()["commit"]
    if _problem(commit) is not None:
        raise SystemExit("commit the changes first")
    result = json.loads(file.read_text())
    result["still_true"] = {"at": commit, "because": reason}
    file.write_text(json.dumps(result, indent=1) + "\n")


def script_of(result: str) -> Path:
    name = result.removesuffix("_cpu").removesuffix("_gpu")
    return ROOT / "benchmarks" / f"{SCRIPTS.get(name, name)}.py"


def measures(script: Path) -> tuple[str, ...]:
    """Return ``MEASURES`` of a script, without running it."""
    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.Assign) and _is_measures(node):
            return tuple(ast.literal_eval(node.value))
    raise ValueError(f"{script.name} names no MEASURES")


def _problem(commit: Any) -> str | None:
    if not isinstance(commit, str):
        return "it names no commit"
    if commit.endswith("+"):
        return f"it was measured on {commit[:-1]} with changes that are in no commit"
    if _git("merge-base", "--is-ancestor", commit, "HEAD") is None:
        return f"its commit {commit} is no ancestor of HEAD; measure after a rebase, not before"
    return None


def _first_change(commit: str, result: str) -> str | None:
    """Return a file whose code differs from that of the commit."""
    script = script_of(result)
    places = [str(script.relative_to(ROOT)), *measures(script)]
    for line in (_git("diff", "--name-only", "--no-renames", commit, "--", *places) or "").splitlines():
        if line.endswith(".py") and _code(_git("show", f"{commit}:{line}")) != _code(_now(line)):
            return line
    return None


def _now(path: str) -> str | None:
    file = ROOT / path
    return file.read_text() if file.is_file() else None


def _code(source: str | None) -> str | None:
    """Return what a module does, without line numbers and docstrings."""
    if source is None:
        return None
    tree = ast.parse(source)
    for node in _bodies(tree):
        node.body = [it for it in node.body if not _is_text(it) and not _is_measures(it)]
    return ast.dump(tree)


def _bodies(tree: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_measures(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name("MEASURES")]):
            return True
    return False


def _has_history() -> bool:
    """Whether this is a checkout with all of its commits: a source archive and a shallow clone are not."""
    return _git("rev-parse", "--is-shallow-repository") == "false\n"


def _git(*arguments: str) -> str | None:
    """Return what git prints, or ``None`` if it fails or is not installed."""
    try:
        done = subprocess.run(("git", "-C", str(ROOT), *arguments), capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
