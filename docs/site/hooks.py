"""Hooks of MkDocs: pages from files outside docs/, generated pages, and links that work on the site and on a forge.

Nothing here imports MkDocs or gpupipe at the top, because tests check the navigation without them.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

SITE = Path(__file__).resolve().parent
DOCS = SITE.parent
ROOT = DOCS.parent

OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "gpupipe/README.md": "project/map_of_the_code.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "tests/scripts/README.md": "project/tested_scripts.md",
}
"""Page of the site by file of the checkout."""

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def examples() -> dict[str, str]:
    """Return the page of each script in ``examples/``."""
    files = sorted((ROOT / "examples").glob("*.py"))
    return {f"examples/{file.name}": f"examples/{file.stem}.md" for file in files if ast.get_docstring(tree(file))}


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def example_page(file: Path) -> str:
    """Return a page with the docstring of a script as prose, then the script."""
    text = file.read_text(encoding="utf-8")
    (first, *_) = tree(file).body
    title, _, rest = (ast.get_docstring(tree(file)) or "").partition("\n")
    code = "\n".join(text.splitlines()[first.end_lineno or 0 :]).strip("\n")
    prose = re.sub(r"(?m)^((?:    .*\n?)+)", lambda it: f"```sh\n{dedented(it[0])}```\n", rest.strip("\n") + "\n")
    prose = re.sub(r"(?<!`)``(?!`)", "`", prose)
    title = re.sub(r"``?", "`", title).rstrip(".")
    return f"# {title}\n\n{prose}\n`examples/{file.name}`:\n\n```python\n{code}\n```\n"


def dedented(text: str) -> str:
    return "".join(line[4:] + "\n" for line in text.rstrip("\n").splitlines())


def pages() -> dict[str, str]:
    """Return the page of the site by file of the checkout, for every file that has one."""
    own = {
        f"docs/{file.relative_to(DOCS)}": str(file.relative_to(DOCS))
        for file in sorted(DOCS.rglob("*.md"))
        if SITE not in file.parents
    }
    return own | OUTSIDE | examples()


def relinked(text: str, source: str, here: str, known: dict[str, str], repository: str | None = None) -> str:
    """Return a page with links to pages of the site in place of links to files.

    Args:
        text: the page.
        source: its file in the checkout.
        here: its place on the site.
        known: pages by file; see :func:`pages`.
        repository: address of the checkout on a forge. Without one, a link to a file that has no page becomes text.
    """

    def linked(link: re.Match[str]) -> str:
        bang, title, target = link.groups()
        name, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not name:
            return link[0]
        file = os.path.normpath(os.path.join(os.path.dirname(source), name))
        page = known.get(file) or known.get(f"{file}/README.md")
        if page is None and bang:
            page = f"images/{os.path.basename(file)}"
        if page is not None:
            there = os.path.relpath(page, os.path.dirname(here) or ".")
            return f"{bang}[{title}]({there}{'#' if anchor else ''}{anchor})"
        return f"[{title}]({repository}/{file})" if repository else f"{title}"

    parts, end = [], 0
    for code in FENCE.finditer(text):
        parts += [LINK.sub(linked, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(linked, text[end:])])


def images(text: str, source: str) -> Iterator[Path]:
    """Yield the pictures that a page shows."""
    for bang, _, target in LINK.findall(FENCE.sub("", text)):
        file = Path(os.path.normpath(ROOT / os.path.dirname(source) / target))
        if bang and file.is_file():
            yield file


def neighbour(name: str) -> ModuleType:
    """Import a module of this folder."""
    spec = importlib.util.spec_from_file_location(f"gpupipe_site_{name}", SITE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# ---- the navigation


def expanded(nav: list[Any], names: list[str]) -> list[Any]:
    """Return the navigation with the pages of a folder in place of ``folder/``, and the pages that it leaves out."""
    left = set(names)

    def one(item: Any) -> Any:
        if isinstance(item, dict):
            return {title: one(value) for title, value in item.items()}
        if isinstance(item, list):
            return [one(it) for it in item]
        if item.endswith("/"):
            inside = sorted(name for name in names if name.startswith(item))
            left.difference_update(inside)
            return inside
        left.discard(item)
        return item

    shown = [one(item) for item in nav]
    return [*shown, {"More": sorted(left)}] if left else shown


def overviews(nav: list[Any], texts: dict[str, str]) -> tuple[list[Any], dict[str, str]]:
    """Return the navigation with an overview as the first page of each section, and these pages by name."""
    shown: list[Any] = []
    made: dict[str, str] = {}
    for section in nav:
        ((title, inside),) = section.items()
        if not isinstance(inside, list):
            shown.append(section)
            continue
        name = f"{title.lower().replace(' ', '_')}/index.md"
        if name in inside:
            shown.append({title: [name, *(page for page in inside if page != name)]})
            continue
        lines = [f"# {title}", ""]
        for page, heading in _titles(inside, texts):
            about = "" if page in examples().values() else first_sentence(texts[page])  # titles of examples say it
            lines.append(
                f"- [{heading}]({os.path.relpath(page, os.path.dirname(name))}){f': {about}' if about else ''}"
            )
        made[name] = "\n".join(lines) + "\n"
        shown.append({title: [name, *inside]})
    return shown, made


def _titles(inside: list[Any], texts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the pages of a section with their titles."""
    for item in inside:
        for title, page in item.items() if isinstance(item, dict) else [(None, item)]:
            heading = re.search(r"(?m)^# (.+)$", texts[page])
            yield page, title or (heading[1] if heading else page)


# ---- what MkDocs calls

_TEXTS: dict[str, str] = {}
"""The Markdown of all pages, for llms.txt."""
_SECTIONS: list[Any] = []
"""The navigation without overviews, for llms.txt."""


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    def add(name: str, content: str | bytes) -> None:
        files.append(File.generated(config, name, content=content))

    add("style.css", (SITE / "style.css").read_text(encoding="utf-8"))
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        add(page, text)
        for image in images(text, source):
            add(f"images/{image.name}", image.read_bytes())
    for source, page in examples().items():
        add(page, example_page(ROOT / source))
    for name in ("messages", "gallery", "api"):
        for page, content in neighbour(name).pages().items():
            add(page, content)
    _TEXTS.update({file.src_uri: file.content_string for file in files.documentation_pages()})
    nav = expanded(config.nav, list(_TEXTS))
    _SECTIONS[:] = nav
    config.nav, made = overviews(nav, _TEXTS)
    for page, content in made.items():
        add(page, content)
    return files


def first_sentence(text: str) -> str:
    """Return the first sentence below the heading of a page."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    for part in FENCE.sub("", text).split("\n\n"):
        if re.match(r"[`\w*]", part.strip()):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(part.split())).replace("**", "")
            return re.split(r"(?<=[.:])\s", plain)[0].rstrip(":")
    return ""


def llms(nav: list[Any], texts: dict[str, str]) -> str:
    """Return llms.txt: every page with its address and first sentence, by section of the navigation."""
    lines = ["# gpupipe", "", f"> {first_sentence(texts['index.md'])}"]

    for section in nav:
        ((title, inside),) = section.items()
        lines += ["", f"## {title}", ""]
        for page, heading in _titles([inside] if isinstance(inside, str) else inside, texts):
            address, about = page.removesuffix(".md") + ".html", first_sentence(texts[page])
            lines.append(f"- [{heading}]({address}){f': {about}' if about else ''}")
    return "\n".join(lines) + "\n"


def on_post_build(config: Any) -> None:
    Path(config.site_dir, "llms.txt").write_text(llms(_SECTIONS, _TEXTS), encoding="utf-8")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    here = page.file.src_uri
    known = pages()
    source = {there: source for source, there in known.items()}.get(here)
    # Generated pages link pages of the site.
    return markdown if source is None else relinked(markdown, source, here, known, config.repo_url)
