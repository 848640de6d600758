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
