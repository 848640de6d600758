"""The pages that people read name only files, headings, commands and classes that exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

import gpupipe
from gpupipe.cli import app
from gpupipe.reasons import ADVICE

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "gpupipe/*.md", "benchmarks/*.md", "tests/scripts/*.md")
    for page in sorted(ROOT.glob(pattern))
)
ROOMS = ("gpupipe", "pipelines", "tests", "benchmarks", "examples")
CODE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")


def prose(text: str) -> str:
    return CODE.sub("", text)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(text: str, folder: Path) -> list[str]:
    """The links of a page in ``folder`` that lead to no file, or to no heading of one."""
    found = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(text)):
        name, _, anchor = link.partition("#")
        file = folder / name if name else None
        there = file is None or file.exists()
        if not there or (anchor and anchor not in anchors(text if file is None else file.read_text())):
            found.append(link)
    return found


def missing_files(text: str) -> list[str]:
    """The paths that a page names and that are not there: in the checkout or, of modules, in any of the rooms."""
    named = re.findall(r"`((?:tests|benchmarks|examples|gpupipe|pipelines|docs)/[\w/.]*)`", text)
    modules = re.findall(r"`([\w/]+\.py)`", text)
    files = [f"/{file.relative_to(ROOT)}" for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    lost = [name for name in modules if not any(file.endswith(f"/{name}") for file in files)]
    return [*(name for name in named if not (ROOT / name).exists() and name not in lost), *lost]


def unknown_commands(text: str) -> list[str]:
    """What a page has of ``gpupipe`` and ``make`` in its code and cannot be run."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    code = [*SPAN.findall(prose(text)), *(line for kind, body in CODE.findall(text) for line in body.splitlines())]
    found = []
    for line in code:
        if call := re.match(r"(?:python -m )?gpupipe (\w+)(.*)", line):
            options = {name for it in getattr(commands.get(call[1]), "params", ()) for name in it.opts}
            own = re.split(r"\.py\s", call[2].partition("#")[0])[0]  # what follows a script are its own arguments
            given = set(re.findall(r"(?<=\s)--[\w-]+", own))
            found += [line] if call[1] not in commands or given - options - {"--help"} else []
        if target := re.match(r"make (\w+)", line):
            rule = re.compile(rf"^{target[1]}:", re.MULTILINE)
            found += [] if rule.search((ROOT / "Makefile").read_text()) else [line]
    return found


def unknown_names(text: str) -> list[str]:
    """The names of gpupipe's public modules that a page uses and that do not exist."""
    code = [*SPAN.findall(prose(text)), *(body for _, body in CODE.findall(text))]
    modules = {name: getattr(gpupipe, name) for name in ("datasets", "engines", "transforms")}
    modules |= {"gpupipe": gpupipe, "T": gpupipe.transforms}
    modules |= {f"gpupipe.{name}": module for name, module in modules.items() if name not in ("gpupipe", "T")}
    return [
        f"{module}.{name}"
        for body in code
        for module, name in re.findall(
            r"(?<![\w./])((?:gpupipe\.)?(?:datasets|engines|transforms)|gpupipe|T)\.(?!json)(\w+)", body
        )
        if not hasattr(modules[module], name) and not exists(f"{module}.{name}")
    ]


def exists(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    assert broken_links(text, (ROOT / page).parent) == []
    assert missing_files(text) == []
    assert unknown_commands(text) == []
    assert unknown_names(text) == []


@pytest.mark.parametrize("page", PAGES)
def test_python_on_a_page_is_python(page: str) -> None:
    for kind, body in CODE.findall((ROOT / page).read_text()):
        if kind in ("python", "py"):
            ast.parse(body)


def test_every_page_can_be_found() -> None:
    """From the README, or from a page that it links."""
    seen, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen:
            seen.add(page)
            links = re.findall(r"\]\((?!https?:)([^)#\s]+\.md)", page.read_text())
            waiting += [(page.parent / link).resolve() for link in links]
    assert {ROOT / page for page in PAGES} - seen == set()


def site(name: str) -> Any:
    """A module of docs/site."""
    spec = importlib.util.spec_from_file_location(f"gpupipe_site_{name}", ROOT / f"docs/site/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_has_every_page_and_no_other() -> None:
    """Without building it; ``make docs`` does, and fails on any warning."""
    hooks = site("hooks")
    config = (ROOT / "docs/site/mkdocs.yml").read_text()
    named = set(re.findall(r"^ +- .*: ([\w/]+\.md)$", config.partition("\nnav:")[2], re.MULTILINE))
    made = {"gallery.md", "messages.md"}
    assert {f"docs/{page}" for page in named} <= {*PAGES, "docs/index.md", *(f"docs/{page}" for page in made)}
    text = "[a](../README.md#gpupipe) ![b](../x.png) [c](machines.md) [d](../gpupipe/rng.py)\n```\n[e](../a.md)\n```\n"
    known = {"README.md": "index.md", "docs/machines.md": "machines.md"}
    assert hooks.relinked(text, "docs/start.md", "start.md", known) == (
        "[a](index.md#gpupipe) ![b](images/x.png) [c](machines.md) d\n```\n[e](../a.md)\n```\n"
    )
    assert hooks.expanded([{"A": "a.md"}, {"B": "b/"}], ["a.md", "b/c.md", "d.md"]) == [
        {"A": "a.md"}, {"B": ["b/c.md"]}, {"More": ["d.md"]},
    ]  # fmt: skip
    assert hooks.overviews([{"A": "a.md"}, {"B": ["b/c.md"]}], {"b/c.md": "# C\n\nTells it. And more."}) == (
        [{"A": "a.md"}, {"B": ["b/index.md", "b/c.md"]}], {"b/index.md": "# B\n\n- [C](c.md): Tells it.\n"},
    )  # fmt: skip


def test_the_notebook_is_the_first_page() -> None:
    """tests/cli/test_page_examples.py runs the code of that page."""
    made = site("notebook").notebook((ROOT / "docs/start.md").read_text())
    stored = (ROOT / "examples/quickstart.ipynb").read_text()
    assert site("notebook").without_outputs(stored) == made, "run python docs/site/notebook.py"
    for cell in json.loads(stored)["cells"]:
        if "print(" in "".join(cell["source"]) and cell["cell_type"] == "code":
            assert cell["outputs"] and cell["execution_count"], "run python docs/site/notebook.py"
    cells = json.loads(made)["cells"]
    assert [cell["cell_type"] for cell in cells][:2] == ["markdown", "code"] and len(cells) > 8
    text = "".join(line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
    assert broken_links(text, ROOT / "examples") == []


def test_every_message_is_on_a_page_of_the_site() -> None:
    (page,) = site("messages").pages().values()
    assert page.count("\n- `") > 300
    assert "] is not a code" not in page
    assert all(f"[{code}](warnings.md#{code})" in page for code in ADVICE)


def test_what_is_wrong_on_a_page_is_seen() -> None:
    text = "# A `b`: c\n[x](#a-b-c) [x](#d) [x](docs/no.md) [x](README.md#no) [x](README.md#how-fast-it-is)\n"
    assert broken_links(text, ROOT) == ["#d", "docs/no.md", "README.md#no"]
    assert missing_files("`gpupipe/rng.py`, `engines/base.py`, `gpupipe/no`, `loader/no.py`") == [
        "gpupipe/no",
        "loader/no.py",
    ]
    text = "`gpupipe index DIR --no-such`, `gpupipe demo --epochs 2` and `gpupipe no`\n```sh\nmake test\nmake no\n```\n"
    assert unknown_commands(text) == ["gpupipe index DIR --no-such", "gpupipe no", "make no"]
    text = "`datasets.Zip`, `datasets.No`, `gpupipe.Shard.from_env()`, `gpupipe.no()`, `engines.Dali(graph='whole')`"
    assert unknown_names(text) == ["datasets.No", "gpupipe.no"]
