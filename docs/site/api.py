"""The pages of the API reference, one for each public module. mkdocstrings reads the docstrings, without importing."""

from __future__ import annotations

MODULES = {
    "index": ("API", "What scripts import, by module.", ()),
    "dataloader": ("DataLoader", "", ("gpupipe.DataLoader", "gpupipe.from_torch", "gpupipe.BlockShuffle")),
    "datasets": ("Datasets", "Where samples are.", ("gpupipe.datasets",)),
    "transforms": ("Transforms", "They have torchvision's names and arguments.", ("gpupipe.transforms",)),
    "targets": ("Targets", "What moves with an image.", ("gpupipe.targets",)),
    "samplers": ("Samplers", "Orders that are functions of seed and epoch.", ("gpupipe.samplers",)),
    "collate": ("Collate functions", "Batches of images of different sizes.", ("gpupipe.collate",)),
    "engines": ("Engines", "Options of what executes a pipeline.", ("gpupipe.engines",)),
    "world": ("Processes", "", ("gpupipe.World", "gpupipe.Shard", "gpupipe.Plan", "gpupipe.Batch")),
    "pipelines": ("Pipelines", "Ready-made pipelines.", ()),
    "integrations": ("Integrations", "", ("gpupipe.integrations.ray", "gpupipe.integrations.transformers")),
    "memory": ("Memory", "What is held, and giving it back.", ("gpupipe.memory",)),
    "errors": ("Errors and warnings", "", ("gpupipe.errors", "gpupipe.reasons")),
}
"""By page: title, first sentence, and what is documented."""


def pages() -> dict[str, str]:
    """Return the pages by their place on the site."""
    from pathlib import Path

    pipelines = sorted(Path(__file__).resolve().parents[2].joinpath("pipelines").glob("[a-z]*.py"))
    found = {}
    for name, (title, first, objects) in MODULES.items():
        if name == "pipelines":
            objects = tuple(f"pipelines.{file.stem}" for file in pipelines)
        body = "\n\n".join(f"::: {it}" for it in objects)
        if name == "index":
            rows = [
                f"| [{title}]({page}.md) | {about} |" for page, (title, about, _) in MODULES.items() if page != name
            ]
            body = "\n".join(["| module | contents |", "|---|---|", *rows])
        found[f"api/{name}.md"] = f"# {title}\n\n{first}\n\n{body}\n"
    return found
