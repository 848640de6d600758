"""The scripts: one module per family. Importing this package fills ``SCRIPTS``."""

from . import (  # noqa: F401
    arrays,
    changes,
    contrastive,
    crops,
    datasets,
    dense,
    frameworks,
    imagenet,
    kaggle,
    loops,
    own,
    pretext,
    samplers,
    semi,
    streams,
    targets,
    tensors,
    transformers,
    video,
    written,
)  # fmt: skip  # isort: skip
