"""Hugging Face Trainer: exact resume in the middle of an epoch."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from ..errors import ConfigError, StateError
from ..loader.dataloader import DataLoader

__all__ = ["LoaderState"]


class LoaderState(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Keep the position of the training loader in the Trainer's checkpoints::

        class MyTrainer(Trainer):
            def get_train_dataloader(self):
                world = gpupipe.World.here()
                return gpupipe.DataLoader(dataset, global_batch_size=256, shuffle=True, seed=0, shard=world.shard)

        trainer = MyTrainer(..., callbacks=[LoaderState()])
        trainer.train(resume_from_checkpoint=True)

    By itself, the Trainer builds torch's DataLoader from the attributes of a loader to skip batches. The callback sets
    ``ignore_data_skip``, so that the loader begins at the next batch instead. The state is in ``trainer_state.json``.

    Raises:
        ConfigError: the loader is not gpupipe's; it was given to a Trainer that skips batches itself; or the run
            continues in the middle of an epoch whose number of batches ``gradient_accumulation_steps`` does not divide:
            the Trainer would count the batches of the last step from where it continued.
        StateError: the checkpoint has no state of a loader.
    """

    def __init__(self) -> None:
        self._loader: DataLoader | None = None

    def state(self) -> dict[str, Any]:
        """Return what the Trainer saves."""
        return {"args": {}, "attributes": {} if self._loader is None else {"position": self._loader.state_dict()}}

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        args.ignore_data_skip = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loader = kwargs.get("train_dataloader")
        if not isinstance(loader, DataLoader):
            raise ConfigError(
                f"LoaderState: the training loader is a {type(loader).__name__}; return a gpupipe.DataLoader from "
                "get_train_dataloader()"
            )
        if not args.ignore_data_skip:
            raise ConfigError(
                "LoaderState was added to a Trainer that skips batches itself; pass it as callbacks=[LoaderState()], "
                "or set ignore_data_skip=True"
            )
        self._loader = loader
        if not state.global_step:
            return
        saved = state.stateful_callbacks.get(type(self).__name__)
        position = saved["attributes"].get("position") if isinstance(saved, dict) else None
        if position is None:
            raise StateError(
                f"the checkpoint of step {state.global_step} has no state of a loader, because it was saved without "
                "LoaderState; leave LoaderState out to let the Trainer skip batches, or begin anew"
            )
        loader.load_state_dict(position)
        group = args.gradient_accumulation_steps
        if group > 1 and len(loader) % group and 0 < _batches(position) < len(loader):
            raise ConfigError(
                f"gradient_accumulation_steps={group} does not divide the {len(loader)} batches of an epoch, and the "
                "Trainer would not make the last step of an epoch that it continues; use drop_last=True with a number "
                "that divides them, or epoch_length="
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._loader is not None:  # the Trainer counts steps from where it continued
            position = self._loader.state_dict()
            state.epoch = position["epoch"] + _batches(position) / len(self._loader)


def _batches(position: dict[str, Any]) -> int:
    """Return the number of batches of an epoch that were delivered."""
    return int(-(-position["delivered"] // position["global_batch"]))
