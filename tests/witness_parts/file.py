"""The file of checksums."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .marks import mark

__all__ = ["Record", "merged", "read", "written"]

Record = dict[str, Any]
"""``machine``: {fact: value}; ``fields``: {op: names}; ``cases``: {case: {engine: {part: text}}}. Of what is done now
also ``skipped``: {case: why}; and ``engines``: which ones looked, if not all."""


def written(record: Record) -> str:
    """JSON with a line for each engine of each case, so that what changes shows in a diff. A text that is there more
    than once is kept in a table, by its checksum: ``"#a1b2c3"``."""
    values = [v for seen in record["cases"].values() for parts in seen.values() for v in parts.values()]
    texts = {f"#{mark(v)}": v for v, n in Counter(values).items() if n > 1 and len(v) > 16}
    short = {v: k for k, v in texts.items()}
    assert len(short) == len(texts), "two texts with one checksum: make it longer"
    cases = []
    for name, seen in record["cases"].items():
        inner = [f" {_json(engine)}: {_json({k: short.get(v, v) for k, v in p.items()})}" for engine, p in seen.items()]
        cases.append(f"{_json(name)}: {{\n" + ",\n".join(inner) + "\n}")
    tables = {"machine": record["machine"], "fields": record["fields"], "texts": texts}
    lines = [
        f"{_json(key)}: {json.dumps(t, indent=0, sort_keys=True, ensure_ascii=False)}" for key, t in tables.items()
    ]
    return "{\n" + ",\n".join([*lines, '"cases": {\n' + ",\n".join(cases) + "\n}"]) + "\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read(file: Path) -> Record:
    """What :func:`written` wrote."""
    record: Record = json.loads(file.read_text())
    texts = record.pop("texts")
    for seen in record["cases"].values():
        for parts in seen.values():
            parts.update({part: texts.get(value, value) for part, value in parts.items()})
    return record


def merged(was: Record | None, now: Record, names: Iterable[str]) -> Record:
    """The cases of both, the new ones in the places of the old ones; in the order of ``names``, without any other."""
    if was is None:
        return now
    every = was["cases"] | now["cases"]
    both = {key: was[key] | now[key] for key in ("machine", "fields")}
    return {**now, **both, "cases": {name: every[name] for name in names if name in every}}
