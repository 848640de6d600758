"""Hugging Face's Trainer sees what a plain loop sees, also after a resume at any point of an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from records import STEPS, Record, features, make, plain, record
from torch import Tensor, nn

from gpupipe import Shard
from gpupipe.errors import ConfigError, StateError

transformers = pytest.importorskip("transformers")
Trainer, TrainingArguments = transformers.Trainer, transformers.TrainingArguments
LoaderState = pytest.importorskip("gpupipe.integrations.transformers").LoaderState

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.seen = nn.Linear(3, 1), list[Record]()

    def forward(self, batch: list[Tensor]) -> dict[str, Tensor]:
        self.seen.append(record(batch))
        dropped = nn.functional.dropout(features(batch[0]), 0.5, self.training)
        return {"loss": self.layer(dropped).square().mean()}


class Ours(Trainer):  # type: ignore[misc,valid-type]
    loader_arguments: dict[str, Any] = {}

    def get_train_dataloader(self) -> Any:
        return make(shard=Shard.from_env(), **self.loader_arguments)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        return model(inputs)["loss"]

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs


def train(folder: Path, *callbacks: Any, resume: str | None = None, **arguments: Any) -> tuple[Model, Any]:
    model = Model()
    made = TrainingArguments(
        str(folder), num_train_epochs=2, save_strategy="steps", save_steps=1, report_to=[], disable_tqdm=True,
        use_cpu=True, learning_rate=0.1, logging_steps=1, **arguments,
    )  # fmt: skip
    trainer = Ours(model, made, callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=None if resume is None else str(folder / resume))
    return model, trainer.state


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model, Any]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, *train(folder, LoaderState())


def test_without_a_resume_it_sees_what_a_loop_sees(whole: tuple[Path, Model, Any]) -> None:
    assert whole[1].seen == [one for epoch in plain(2) for one in epoch]


@pytest.mark.parametrize("step", [1, STEPS - 1, STEPS, STEPS + 2])
def test_a_resumed_run_ends_where_a_whole_one_ends(step: int, whole: tuple[Path, Model, Any]) -> None:
    folder, before, state = whole
    after, resumed = train(folder, LoaderState(), resume=f"checkpoint-{step}")
    assert after.seen == before.seen[step:]
    assert torch.equal(after.layer.weight, before.layer.weight)  # also the dropout
    assert resumed.log_history[:-1] == state.log_history[:-1]  # epochs too; the last line has times


def test_a_checkpoint_without_a_position_is_refused(whole: tuple[Path, Model, Any], tmp_path: Path) -> None:
    train(tmp_path, max_steps=2)
    with pytest.raises(StateError, match="the checkpoint of step 2 has no state of a loader"):
        train(tmp_path, LoaderState(), resume="checkpoint-2")


def test_another_loader_and_a_late_callback_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, max_steps=1)
    trainer = Ours(Model(), made)
    trainer.add_callback(LoaderState())
    with pytest.raises(ConfigError, match="skips batches itself; pass it as callbacks"):
        trainer.train()
    monkeypatch.setattr(Ours, "get_train_dataloader", lambda self: torch.utils.data.DataLoader([0, 1]))
    with pytest.raises(ConfigError, match="the training loader is a DataLoader"):
        Ours(Model(), made, callbacks=[LoaderState()]).train()


def test_accumulation_that_does_not_divide_an_epoch_is_refused_in_the_middle(tmp_path: Path) -> None:
    assert STEPS == 5
    arguments: dict[str, Any] = {"gradient_accumulation_steps": 2}
    before, _ = train(tmp_path, LoaderState(), **arguments)  # 3 steps an epoch
    with pytest.raises(ConfigError, match="gradient_accumulation_steps=2 does not divide the 5 batches"):
        train(tmp_path, LoaderState(), resume="checkpoint-1", **arguments)
    after, _ = train(tmp_path, LoaderState(), resume="checkpoint-3", **arguments)
    assert after.seen == before.seen[STEPS:] and torch.equal(after.layer.weight, before.layer.weight)
