"""Two ranks under Lightning's own launcher, which starts this script again. Started by ``test_lightning.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import conftest  # noqa: F401
import lightning as L
import torch
from records import features, make
from support import SEED
from torch import Tensor, nn

from gpupipe import DataLoader, Shard


class Data(L.LightningDataModule):
    """``cut``: each loader has its shard. Otherwise Lightning makes them anew with a sampler for each rank."""

    def __init__(self, cut: bool):
        super().__init__()
        self.cut = cut

    # Here the ranks run already, and from_env() sees them.
    def train_dataloader(self) -> Any:
        return make(batch_size=4, shard=Shard.from_env() if self.cut else None)

    def val_dataloader(self) -> Any:
        return make(batch_size=4, shuffle=False, shard=Shard.from_env() if self.cut else None)


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.trained: list[list[Any]] = [[], []]
        self.validated: list[int] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loader = self.trainer.train_dataloader
        assert type(loader) is DataLoader and loader.shard.world_size == 2 and loader.seed == SEED
        self.trained[self.current_epoch].append([batch[1].tolist(), loader.valid])
        return self.layer(features(batch[0])).mean()

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.validated += batch[1][: self.trainer.val_dataloaders.valid].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def train(out: str, how: str) -> None:
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, num_sanity_val_steps=0,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Model()
    if how == "directly":
        trainer.fit(model, make(batch_size=4, shard=None), make(batch_size=4, shuffle=False, shard=None))
    else:
        trainer.fit(model, datamodule=Data(how == "shard"))
    seen = {"trained": model.trained, "validated": model.validated}
    Path(out, f"{how}-{trainer.global_rank}.json").write_text(json.dumps(seen))
    trainer.strategy.barrier()  # the first process ends the other one when it ends


if __name__ == "__main__":
    folder, *ways = sys.argv[1:]
    for way in ways:  # the first trainer starts the other process, and the next ones find it
        train(folder, way)
