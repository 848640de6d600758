"""Reasons why DALI does not do the work, and other things that a script should change, with codes and advice.

:data:`ADVICE` is the only table of codes. ``docs/warnings.md`` explains every code at length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

ADVICE = {
    "engine": "change the transform that the engine names",
    "looks-at-pixels": "let Pillow's and torchvision's functions change the image, and end with to_tensor",
    "other": "check the setup",
    "other-batch": "keep the number of samples in all ranks' batches when a state is loaded",
    "ranks-apart": "make the loaders in the same order on all ranks, and a loader of one rank without shard=",
    "read-by-torch": "iterate over gpupipe.DataLoader",
    "seeded-again": "pass seed= to the loader, and choose an epoch with set_epoch()",
    "uneven-ranks": "use a global_batch_size that the number of ranks divides, or weigh losses by samples",
}
"""Advice for the script, by code. Codes are stable: filters and issue reports refer to them."""

_NAME = r"([\w.]+(?:<(?:locals|lambda)>[\w.]*)*)"
_ADDRESS = re.compile(
    rf"<(?:(?:function|built-in method) )?{_NAME}(?: object)?(?: of [^<>]*)? at 0x[0-9a-f]+>"
    rf"|<bound method {_NAME} of [\w.]*(?:<locals>[\w.]*)*>"
)


class GpupipeWarning(UserWarning):
    """Tells what a script should change to use gpupipe fully.

    Attributes:
        reasons: the causes, each with its code.
    """

    def __init__(self, message: str, reasons: Iterable[Reason] = ()):
        super().__init__(message)
        self.reasons = tuple(reasons)

    @property
    def code(self) -> str:
        """Code of the first reason, which ``docs/warnings.md`` explains."""
        return self.reasons[0].code if self.reasons else "other"


class FallbackWarning(GpupipeWarning):
    """DALI does not do the work: the script's code looks at every image, or gpupipe's torch engine does it."""


@dataclass(frozen=True)
class Reason:
    """Why something differs from what a user may expect.

    >>> print(Reason("torch reads the dataset itself", "read-by-torch"))
    iterate over gpupipe.DataLoader, because torch reads the dataset itself [read-by-torch]
    """

    text: str
    """The finding, in one line."""
    code: str = "other"
    """A code in :data:`ADVICE`."""

    def __post_init__(self) -> None:
        if self.code not in ADVICE:
            raise ValueError(f"{self.code!r} is not a code of gpupipe.reasons.ADVICE")
        object.__setattr__(self, "text", without_addresses(self.text))

    def __str__(self) -> str:
        return sentence([self])


def sentence(reasons: Iterable[Reason]) -> str:
    """Join advice and causes in a sentence, with one part for each code."""
    texts: dict[str, list[str]] = {}
    for reason in reasons:
        texts.setdefault(reason.code, []).append(reason.text)
    parts = [f"{ADVICE[code]}, because {' and '.join(each)} [{code}]" for code, each in texts.items()]
    return parts[0] if len(parts) == 1 else "; ".join(f"({i}) {part}" for i, part in enumerate(parts, 1))


def without_addresses(text: str) -> str:
    """Replace representations of objects by their names.

    >>> without_addresses("<function f at 0x7f00> of <__main__.A object at 0x7f01>")
    'f of A'
    """
    # Representations may be nested, so replace the inner ones first and look again.
    while (shorter := _ADDRESS.sub(lambda found: (found[1] or found[2]).removeprefix("__main__."), text)) != text:
        text = shorter
    return text
