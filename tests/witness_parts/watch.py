"""What the witness writes down of one loader: everything that comes out of it, and what it says of itself."""

from __future__ import annotations

from typing import Any

from gpupipe import DataLoader, Plan, SampleError

from .marks import (
    PLAN_PARTS,
    batch_marks,
    count_of,
    every_op,
    fields_of,
    form_of,
    mark,
    names_of,
    ops_of,
    plan_marks,
)

__all__ = ["Watch", "refused"]


def refused(error: Exception) -> dict[str, str]:
    """A loader that could not be built: the kind of error, and not its words."""
    return {"refused": type(error).__name__}


class Watch:
    """Collects one line per epoch of each part: the marks of its steps."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}
        self.fields: dict[str, str] = {}
        """Of each kind of op that came by, the names of its fields."""
        self._epoch: dict[str, list[str]] = {}
        self._forms: list[str] = []
        self._names: list[str] = []
        self._first: dict[str, Any] = {}

    def epochs(self, loader: DataLoader, count: int = 2) -> Watch:
        """All batches of that many epochs, from where the loader stands."""
        for _ in range(count):
            self.steps(iter(loader))
            self.end_epoch()
        return self

    def steps(self, iterator: Any, most: int = 10**6) -> Watch:
        """The next batches of an iterator. Errors of samples have the number of their step before them."""
        for seen in range(most):
            try:
                batch = next(iterator)
            except StopIteration:
                break
            except SampleError as e:
                self._step("errors", f"{seen}!" + ",".join(f"{s.index}:{s.kind}" for s in e.samples))
                continue
            self._batch(batch)
        return self

    def _step(self, part: str, text: str) -> None:
        self._epoch.setdefault(part, []).append(text)

    def _batch(self, batch: Any) -> None:
        images, target = batch if isinstance(batch, list) and len(batch) == 2 else (batch, None)
        shown = [] if isinstance(images, Plan) else [images]
        if isinstance(images, Plan):
            self._plan(images)
        else:
            self._step("images", batch_marks(images))
        if target is not None:
            self._step("target", batch_marks(target))
            shown.append(target)
        form = " ".join(form_of(x, count_of(batch)) for x in shown)
        if form and form not in self._forms:
            self._forms.append(form)

    def _plan(self, plan: Plan) -> None:
        for part, text in plan_marks(plan).items():
            self._step(part, text)
        ops = ops_of(plan)
        if ops is None:
            return
        names = names_of(ops)
        if names not in self._names:
            self._names.append(names)
        self.fields |= {type(op).__name__: " ".join(fields_of(op)) for op in every_op(ops)}

    def end_epoch(self) -> None:
        """Close the lines of an epoch. Settings are those of the pipeline, so each that came by stands there once; of
        bits one checksum is enough, because numbers say at which step."""
        for part, marks in self._epoch.items():
            if set(marks) == {"-"}:
                continue
            lines = self.found.setdefault(part, [])
            if part == "settings":
                lines += [text for text in dict.fromkeys(marks) if text not in lines]
            else:
                lines.append(mark(" ".join(marks)) if part == "bits" else " ".join(marks))
        self._epoch = {}

    def coarse(self) -> Watch:
        """Less of what many cases have in common: one checksum of which samples there are, in which order; targets
        together with their images."""
        if "images" in self.found:
            if "target" in self.found:
                images, targets = (" / ".join(self.found.pop(part)).split() for part in ("images", "target"))
                pairs = zip(images, targets, strict=True)
                self.found["batch"] = [" ".join("/" if a == "/" else mark(a + b) for a, b in pairs)]
            return self
        parts = [k for k in ("order", "sizes", "target") if k in self.found]
        self.found["samples"] = [mark("\n".join(line for k in parts for line in [k, *self.found.pop(k)]))]
        self._forms = []
        return self

    def says(self, loader: DataLoader) -> Watch:
        """The loader's state as it is now, without the dataset's fingerprint, which depends on the encoded files. From
        the second time on only what became different since the first."""
        state = {k: v for k, v in loader.state_dict().items() if k != "dataset"}
        self._first = self._first or state
        changed = {k: v for k, v in state.items() if state is self._first or self._first.get(k) != v}
        gone = [f"no {k}" for k in self._first if k not in state]
        if changed.get("rng"):
            changed["rng"] = mark(changed["rng"])  # 5,000 bytes of a generator
        text = " ".join([*(f"{k}={v}" for k, v in changed.items()), *gone]) or "as at first"
        self.found.setdefault("state", []).append(text)
        return self

    def facts(self, loader: DataLoader) -> Watch:
        """Lengths, counts and bad samples."""
        counts = [f"{k}={v}" for k, v in loader.stats().items() if isinstance(v, int)]
        size = f"length={len(loader)} of {len(loader.dataset)}"
        self.found["stats"] = [" ".join([size, *counts, f"valid={loader.valid}"])]
        bad = [f"{s.index}:{s.kind}×{s.count}" for s in loader.report().samples]
        if bad:
            self.found["report"] = [" ".join(bad)]
        return self

    def done(self) -> dict[str, str]:
        """Everything, checksums first, with a slash after an epoch."""
        if self._forms:
            self.found["form"] = self._forms
        if self._names:
            self.found["names"] = self._names
        first = {part: place for place, part in enumerate((*PLAN_PARTS, "batch", "images", "target"))}
        return {k: " / ".join(self.found[k]) for k in sorted(self.found, key=lambda k: (first.get(k, len(first)), k))}
