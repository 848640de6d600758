"""Reasons why gpupipe leaves work to torch, and other things that a script should change, with codes and advice.

:data:`ADVICE` is the only table of codes. ``docs/warnings.md`` explains every code at length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

ADVICE = {
    "asks-worker": "give each worker's dataset what it needs in worker_init_fn",
    "batches-read-outside": "iterate over the loader itself, and resume it with load_state_dict()",
    "beside-image": "give the transform one image, and masks, boxes and keypoints of its size as tv_tensors",
    "blocks-lost": "leave the sampler out and give DataLoader shuffle='blocks' and shard=Shard.from_env()",
    "cannot-copy": "keep open files, locks and connections out of the dataset until a sample is read",
    "changed-global": "give the dataset the transform as an attribute, and change it there",
    "changed-persistent": "leave persistent_workers=True out",
    "changes-itself": "let __getitem__ change nothing in the dataset or the transform",
    "collate-changes": "let collate_fn change nothing that it holds",
    "compares-types": "ask isinstance(x, T) in place of type(x)",
    "dataset-form": "give the dataset one column of images and columns of numbers, booleans or texts",
    "differs": "let __getitem__ only open the image, call the transforms that the dataset holds, and return the result",
    "empty": "give the dataset samples",
    "engine": "change the transform that the engine names",
    "forked": "make the loader in the process that iterates over it, or close() it before a fork",
    "global-order": "give the sampler a generator=, or save states at the ends of epochs",
    "in-order": "leave in_order=False out",
    "looks-at-values": "compute with images before the transforms or in the training loop",
    "mixes-samples": "make each sample from its own row alone",
    "negative-index": "give indices from 0 to len(dataset) - 1",
    "no-versions": "let the server send ETag or Last-Modified",
    "order-lost": "leave the sampler out, and give DataLoader the one of gpupipe.samplers and shard=Shard.from_env()",
    "original-images": "leave images before their transforms out of the samples",
    "other": "check the setup",
    "other-batch": "keep the number of samples in all ranks' batches when a state is loaded",
    "other-library": "use one of gpupipe.datasets on the same files",
    "own-function": "use transforms of gpupipe or torchvision in place of the function",
    "own-image-loader": "use torchvision's own image loader",
    "own-methods": "use the library's class itself in place of the subclass",
    "own-pixels": "give images to transforms or functions of torchvision, and end with to_tensor in place of numpy",
    "own-seeds": "leave random numbers to the transforms, and seeds to DataLoader",
    "own-view": "let the object that holds transforms only call them and return what they make",
    "pil-images": "end the transforms with ToTensor()",
    "pin-memory-device": "use device= in place of pin_memory_device=",
    "ranks-apart": "make the loaders in the same order on all ranks, and a loader of one rank without shard=",
    "read-by-torch": "iterate over gpupipe.DataLoader",
    "rebuilt": "pass shard=gpupipe.Shard.from_env() to gpupipe.DataLoader, so that frameworks keep it",
    "replaced-function": "do not replace the library's methods and functions",
    "sample-fails": "make sure that every sample can be read",
    "sampler-keys": "let the sampler give integers, and let the dataset know the rest",
    "seeded-again": "pass seed= to the loader, and choose an epoch with set_epoch()",
    "single-samples": "use batch_size=1",
    "small-images": 'leave it so, or pass engine="dali" for what only gpupipe has, such as an exact resume',
    "stream": "use a dataset with __len__ and __getitem__",
    "target-transform": "give one integer per sample as its label, and the same one each time",
    "transform-argument": "give the transform arguments that gpupipe supports",
    "transform-order": "put the transform where it gets the kind of input that gpupipe supports",
    "trial-fails": 'use engine="torch", which makes no trials',
    "uneven-ranks": "use a global_batch_size that the number of ranks divides, or weigh losses by samples",
    "unknown-dataset": "use gpupipe.datasets, or a dataset that holds its transforms as objects",
    "unknown-transform": "use a transform that gpupipe has",
    "unlike-parts": "concatenate folders of images with the same transform object and the same settings",
    "unlike-samples": "let all samples have the same form and go through the same transforms",
    "unlike-sizes": "end the transforms with a crop or Resize((height, width))",
    "unlike-trials": "treat all samples of the dataset alike",
    "varying-size": "put a Resize or a crop of fixed size before the function, and return uint8, float16 or float32",
    "views": "make all views of an image in one place, from one image per sample",
    "whole-batches": "leave __getitems__ out, so that __getitem__ is used",
    "worker-option": 'leave worker_init_fn, timeout and multiprocessing_context out, or use engine="torch"',
}
"""Advice for the script, by code. Codes are stable: filters and issue reports refer to them."""

_NAME = r"([\w.]+(?:<(?:locals|lambda)>[\w.]*)*)"
_ADDRESS = re.compile(
    rf"<(?:(?:function|built-in method) )?{_NAME}(?: object)?(?: of [^<>]*)? at 0x[0-9a-f]+>"
    rf"|<bound method {_NAME} of [\w.]*(?:<locals>[\w.]*)*>"
)
_INTERNAL = re.compile(r"\b(StandIn|Standing|Mark|Pending\w*|Unread\w*|Traced\w*|Looked\w*|InspectionError)\b")


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
        """Code of the first reason. ``gpupipe explain CODE`` shows its page."""
        return self.reasons[0].code if self.reasons else "other"


class FallbackWarning(GpupipeWarning):
    """DALI does not do the work: torch's DataLoader or gpupipe's torch engine does it."""


@dataclass(frozen=True)
class Reason:
    """Why something differs from what a user may expect.

    >>> print(Reason("batch_size=None gives single samples", "single-samples"))
    use batch_size=1, because batch_size=None gives single samples [single-samples]
    """

    text: str
    """The finding, in one line."""
    code: str = "other"
    """A code in :data:`ADVICE`."""

    def __post_init__(self) -> None:
        if self.code not in ADVICE:
            raise ValueError(f"{self.code!r} is not a code of gpupipe.reasons.ADVICE")
        object.__setattr__(self, "text", without_addresses(self.text))

    @staticmethod
    def of(found: Reason | str | Exception) -> Reason:
        """Build a reason from an exception that may carry a code."""
        return found if isinstance(found, Reason) else Reason(str(found), getattr(found, "code", "other"))

    def __str__(self) -> str:
        return sentence([self])


def sentence(reasons: Iterable[Reason]) -> str:
    """Join advice and causes in a sentence, with one part for each code."""
    texts: dict[str, list[str]] = {}
    for reason in reasons:
        texts.setdefault(reason.code, []).append(reason.text)
    parts = [f"{ADVICE[code]}, because {' and '.join(each)} [{code}]" for code, each in texts.items()]
    return parts[0] if len(parts) == 1 else "; ".join(f"({i}) {part}" for i, part in enumerate(parts, 1))


def about(name: str, why: str) -> str:
    """Make a sentence about ``name`` from one about "it".

    >>> about("Frames", "its samples differ"), about("Frames", "no image is there")
    ("Frames's samples differ", 'Frames: no image is there')
    """
    for pronoun, subject in (("its ", f"{name}'s "), ("it ", f"{name} ")):
        if why.startswith(pronoun):
            return subject + why.removeprefix(pronoun)
    return f"{name}: {why}"


def failure(e: BaseException) -> str:
    """Describe an error of user code in one line, without its text if one of gpupipe's objects in place of an image
    caused it.

    >>> failure(ValueError("no such label"))
    'ValueError: no such label'
    """
    text = " ".join(str(e).split())
    return type(e).__name__ if not text or _INTERNAL.search(text) else f"{type(e).__name__}: {text}"


def without_addresses(text: str) -> str:
    """Replace representations of objects by their names.

    >>> without_addresses("<function f at 0x7f00> of <__main__.A object at 0x7f01>")
    'f of A'
    """
    # Representations may be nested, so replace the inner ones first and look again.
    while (shorter := _ADDRESS.sub(lambda found: (found[1] or found[2]).removeprefix("__main__."), text)) != text:
        text = shorter
    return text
