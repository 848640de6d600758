"""``from_torch``: convert a torch DataLoader with all its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import DataLoader as TorchLoader

from ..errors import ConfigError
from ..translate.classes import class_name
from ..types import Shard

if TYPE_CHECKING:
    from ..engines.base import EngineConfig
    from .arguments import DeviceLike, EngineName
    from .dataloader import DataLoader

_SAME = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "pin_memory_device", "in_order",
)  # fmt: skip


def from_torch(
    torch_loader: Any,
    *,
    device: DeviceLike = None,
    engine: EngineName | EngineConfig = "auto",
    seed: int | None = None,
    shard: Shard | None = None,
    on_error: Literal["raise"] = "raise",
) -> DataLoader:
    """Return a gpupipe loader with the dataset, sampler and settings of a ``torch.utils.data.DataLoader``.

    Args:
        torch_loader: only read; it can still be used.
        device, engine, seed, shard, on_error: as in :class:`gpupipe.DataLoader`.

    Raises:
        ConfigError: the argument is not a torch loader or has an ``__iter__`` of its own, or
            :class:`gpupipe.DataLoader` rejects a setting.

    >>> import numpy as np
    >>> from torch.utils.data import DataLoader, Subset
    >>> from gpupipe import datasets
    >>> pixels = datasets.Arrays(np.zeros((4, 8, 8, 3), np.uint8), [3, 1, 4, 1])
    >>> images, target = next(iter(from_torch(DataLoader(Subset(pixels, [2, 0]), batch_size=2), device="cpu")))
    >>> images.shape, target
    (torch.Size([2, 3, 8, 8]), tensor([4, 3]))
    """
    from .dataloader import DataLoader

    if not isinstance(torch_loader, TorchLoader):
        raise ConfigError(f"from_torch takes a torch.utils.data.DataLoader, not {class_name(torch_loader)}")
    if type(torch_loader).__iter__ is not TorchLoader.__iter__:
        raise ConfigError(
            f"from_torch: {class_name(torch_loader)} has its own __iter__, which would not run; give its dataset "
            "and settings to gpupipe.DataLoader instead"
        )
    batches: dict[str, Any] = {"drop_last": torch_loader.drop_last, "batch_size": torch_loader.batch_size}
    if torch_loader.batch_size is None and torch_loader.batch_sampler is not None:
        batches = {"batch_sampler": torch_loader.batch_sampler}
    elif not isinstance(torch_loader.dataset, IterableDataset):  # its sampler yields nothing useful
        batches |= _sampling(torch_loader)
    return DataLoader(
        torch_loader.dataset,
        **batches,
        **{name: getattr(torch_loader, name) for name in _SAME},
        # False is torch's default: worker processes restart in every epoch. None does that here, while False would end
        # DALI's threads as well.
        persistent_workers=torch_loader.persistent_workers or None,
        device=device,
        engine=engine,
        seed=seed,
        shard=shard,
        on_error=on_error,
    )


def _sampling(torch_loader: Any) -> dict[str, Any]:
    """Return ``shuffle`` if torch made the sampler, so that the new loader makes its own; otherwise ``sampler``."""
    from torch.utils.data import RandomSampler, SequentialSampler

    sampler = torch_loader.sampler
    if getattr(sampler, "data_source", None) is torch_loader.dataset:
        if type(sampler) is SequentialSampler:
            return {"shuffle": False}
        plain = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
        # A sampler that torch made draws from the loader's own generator.
        if plain and sampler.generator is torch_loader.generator:
            return {"shuffle": True}
    return {"sampler": sampler}
