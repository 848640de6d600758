"""Docstrings have roles, literals and doctests of reStructuredText. The site shows them as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


class Roles(griffe.Extension):
    """Replace ``:class:`X``` and double backticks in every docstring, and fence doctests."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """See griffe."""
        if obj.docstring is not None:
            text = re.sub(r":(?:class|func|meth|mod|data|attr|exc):`~?([^`]+)`", r"`\1`", obj.docstring.value)
            text = re.sub(r"(?<!`)``(?!`)", "`", text)
            obj.docstring.value = DOCTEST.sub(r"\1```pycon\n\g<0>\n\1```", text)


class Arguments(griffe.Extension):
    """Show the arguments of ``gpupipe.DataLoader``, which a decorator takes from a dataclass."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """See griffe."""
        if pkg.path != "gpupipe":
            return
        init = pkg["loader.dataloader.DataLoader"].members["__init__"]
        kind = griffe.ParameterKind.positional_or_keyword
        shown = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_only)]
        for field in pkg["loader.arguments.Arguments"].attributes.values():
            if field.name == "_":  # KW_ONLY
                kind = griffe.ParameterKind.keyword_only
            elif "property" not in field.labels and "init=False" not in str(field.value):
                shown.append(griffe.Parameter(field.name, annotation=field.annotation, default=field.value, kind=kind))
        init.parameters = griffe.Parameters(*shown)
