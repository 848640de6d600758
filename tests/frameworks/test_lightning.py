"""Lightning's Trainer sees what a plain loop sees, also after a resume at any point of an epoch."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from records import EPOCHS, STEPS, Record, features, make, plain, record
from support import SEED, N, write_photos
from torch import Tensor, nn
from torch.utils.data import DataLoader as TorchLoader, DistributedSampler, RandomSampler, default_collate

from gpupipe import BlockShuffle, DataLoader, Shard, engines, samplers, transforms as T
from gpupipe.datasets import ImageFolder, Mixture, Subset
from gpupipe.planning.order import Shuffle

L = pytest.importorskip("lightning")
BasePredictionWriter = pytest.importorskip("lightning.pytorch.callbacks").BasePredictionWriter
_update_dataloader = pytest.importorskip("lightning.pytorch.utilities.data")._update_dataloader

HERE = Path(__file__).parent
ALL = list(range(N))

pytestmark = [
    # Lightning's own advice, and what it does with torch that torch has renamed since.
    pytest.mark.filterwarnings(r"ignore:The number of training batches \(\d+\) is smaller than the logging"),
    pytest.mark.filterwarnings(r"ignore:The `srun` command is available on your system"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings(r"ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


class Model(L.LightningModule):  # type: ignore[misc,name-defined]
    """Remembers what it was given: by epoch, and in validation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.trained: dict[int, list[Record]] = {}
        self.validated: list[int] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        seen = self.trained.setdefault(self.current_epoch, [])
        seen.append(record(batch))
        return self.layer(features(batch[0])).mean()

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.validated += batch[1][: self.trainer.val_dataloaders.valid].tolist()

    def test_step(self, batch: list[Tensor], index: int) -> None:
        self.validated += batch[1].tolist()

    def predict_step(self, batch: list[Tensor], index: int) -> Tensor:
        return batch[1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class SaveAt(L.Callback):  # type: ignore[misc,name-defined]
    """Saves a checkpoint after one step, at the end of one epoch, or in its validation; nobody is killed."""

    def __init__(self, path: Path, epoch: int, step: int | None, hook: str = "batch"):
        self.path, self.at, self.hook = path, (epoch, step), hook

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        if self.hook == "batch" and (trainer.current_epoch, index) == self.at:
            trainer.save_checkpoint(self.path)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if self.hook == "epoch" and trainer.current_epoch == self.at[0]:
            trainer.save_checkpoint(self.path)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if self.hook == "validation" and trainer.current_epoch == self.at[0] and not trainer.sanity_checking:
            trainer.save_checkpoint(self.path)


def trainer(*callbacks: Any, **arguments: Any) -> Any:
    quiet = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return L.Trainer(accelerator="cpu", max_epochs=EPOCHS, callbacks=list(callbacks), **{**quiet, **arguments})


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    grad = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(grad)


def test_fit_sees_what_a_plain_loop_sees() -> None:
    model, loader, val = Model(), make(), make(shuffle=False)
    trainer().fit(model, loader, val)
    assert [model.trained[e] for e in range(EPOCHS)] == plain()
    sanity = list(range(10))  # two batches before the training
    assert model.validated == sanity + EPOCHS * list(range(N))
    assert "_iterator" not in vars(loader)  # Lightning would have overwritten it
    loader.set_epoch(1)
    assert [record(b) for b in loader] == plain()[1]


def test_fit_with_a_sampler_that_has_no_epochs() -> None:
    """torch's own loader would have drawn again at every iter(), of which Lightning makes one too many."""
    arguments: dict[str, Any] = {"shuffle": None, "sampler": RandomSampler(range(N))}
    model = Model()
    trainer().fit(model, make(**arguments))
    assert [model.trained[e] for e in range(EPOCHS)] == plain(**arguments)


def test_a_data_module_gives_the_same() -> None:
    class Data(L.LightningDataModule):  # type: ignore[misc,name-defined]
        def train_dataloader(self) -> Any:
            return make()

        def val_dataloader(self) -> Any:
            return make(shuffle=False)

    model = Model()
    trainer(num_sanity_val_steps=0).fit(model, datamodule=Data())
    assert [model.trained[e] for e in range(EPOCHS)] == plain()
    assert model.validated == EPOCHS * list(range(N))


@pytest.mark.parametrize(
    ("epoch", "step", "hook"),
    [(0, 0, "batch"), (1, 2, "batch"), (1, STEPS - 1, "batch"), (0, None, "epoch"), (1, None, "validation")],
)
def test_resume_goes_on_with_the_very_next_batch(tmp_path: Path, epoch: int, step: int | None, hook: str) -> None:
    path = tmp_path / "some.ckpt"
    trainer(SaveAt(path, epoch, step, hook)).fit(Model(), make(), make(shuffle=False))
    saved = torch.load(path, weights_only=True)["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    delivered = N if step is None else min(N, 5 * (step + 1))
    assert [(s["epoch"], s["delivered"]) for s in saved] == [(epoch, delivered)]

    model = Model()
    # The state brings its own seed. Only at the end of an epoch Lightning loads no state, but sets the epoch.
    seed = SEED if hook == "epoch" else 99
    trainer().fit(model, make(seed=seed), make(shuffle=False), ckpt_path=path)
    rest = [r for e in range(EPOCHS) for r in plain()[e]][epoch * STEPS + (STEPS if step is None else step + 1) :]
    assert [r for e in sorted(model.trained) for r in model.trained[e]] == rest


def test_resume_after_an_epoch_with_a_sampler_that_has_none(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"shuffle": None, "sampler": RandomSampler(range(N))}
    path = tmp_path / "some.ckpt"
    trainer(SaveAt(path, 0, None, "epoch")).fit(Model(), make(**arguments))
    model = Model()
    trainer().fit(model, make(**arguments), ckpt_path=path)
    assert [model.trained[e] for e in sorted(model.trained)] == plain(**arguments)[1:]


def test_an_epoch_cut_short_is_followed_by_the_next_one() -> None:
    model = Model()
    trainer(limit_train_batches=2).fit(model, make())
    assert [model.trained[e] for e in range(EPOCHS)] == [epoch[:2] for epoch in plain()]


def test_validate_and_test() -> None:
    model, loader = Model(), make(shuffle=False)
    trainer().validate(model, loader, verbose=False)
    trainer().test(model, loader, verbose=False)
    assert model.validated == 2 * list(range(N))


class Written(BasePredictionWriter):  # type: ignore[misc,valid-type]
    def __init__(self) -> None:
        super().__init__("batch")
        self.batches: list[tuple[list[int], list[int]]] = []

    def write_on_batch_end(
        self, trainer: Any, module: Any, prediction: Any, batch_indices: Any, batch: Any, index: int, number: int
    ) -> None:
        assert type(trainer.predict_dataloaders) is DataLoader
        self.batches.append((batch_indices, prediction.tolist()))


@pytest.mark.parametrize("arguments", [{"drop_last": False}, {"drop_last": True}, {"shard": Shard(1, 2)}], ids=str)
def test_predict_sees_every_sample_and_knows_which(arguments: dict[str, Any]) -> None:
    """Lightning makes the loader anew, keeps its last batch, and notes the indices of every batch."""
    writer = Written()
    predicted = trainer(writer).predict(Model(), make(shuffle=False, **arguments))
    theirs = torch.cat(predicted).tolist()
    cut = "shard" in arguments
    assert theirs == ([i for labels, _ in plain(1, shuffle=False, **arguments)[0] for i in labels] if cut else ALL)
    assert [labels for _, labels in writer.batches] == [indices for indices, _ in writer.batches]
    assert [i for _, labels in writer.batches for i in labels] == theirs


@pytest.mark.filterwarnings("ignore:You requested to overfit but enabled train dataloader shuffling")
def test_overfit_batches_puts_another_order_into_the_loader() -> None:
    model = Model()
    trainer(overfit_batches=2).fit(model, make())
    assert [model.trained[e] for e in range(EPOCHS)] == [epoch[:2] for epoch in plain(shuffle=False)]


def test_a_loader_that_lightning_makes_anew_differs_in_its_sampler_only(tmp_path: Path) -> None:
    """It goes through the attributes that are named as arguments."""
    other = {
        "batch_size": 3, "num_workers": 1, "pin_memory": True, "drop_last": True, "timeout": 9.0,
        "worker_init_fn": print, "multiprocessing_context": "fork", "generator": torch.Generator(),
        "prefetch_factor": 3, "persistent_workers": True, "engine": engines.Torch(), "device": "cpu", "seed": 5,
        "on_error": "skip", "max_bad": 2,
    }  # fmt: skip
    given = {name: p.default for name, p in inspect.signature(DataLoader).parameters.items()}
    at_their_defaults = {
        "collate_fn", "pin_memory_device", "in_order", "shard", "cache", "cache_bytes", "scaled", "epoch_length",
        "infinite", "exclude", "global_batch_size", "live",
    }  # fmt: skip
    assert set(given) - set(other) - at_their_defaults == {"dataset", "shuffle", "sampler", "batch_sampler"}
    for arguments in ({"shuffle": True, "device": "cpu", "engine": "torch"}, {"shuffle": True, **other}):
        loader = DataLoader(make().dataset, **arguments)
        sampler: Any = DistributedSampler(range(N), 2, 1)  # type: ignore[arg-type]
        again = _update_dataloader(loader, sampler)
        was, now = (vars(x._session.arguments) for x in (loader, again))
        changed = {name: now[name] for name in was if was[name] is not now[name] and was[name] != now[name]}
        collate = changed.pop("collate_fn", default_collate)
        workers = changed.pop("prefetch_factor", 2)
        assert (changed, collate, workers) == ({"sampler": sampler, "shuffle": False}, default_collate, 2)
        assert again.shard == Shard(1, 2)


def test_a_global_batch_is_divided_when_lightning_cuts_the_loader_into_ranks() -> None:
    loader = DataLoader(make().dataset, global_batch_size=6, shuffle=True, device="cpu", engine="torch")
    again = _update_dataloader(loader, DistributedSampler(range(N), 2, 1))  # type: ignore[arg-type]
    assert (loader.batch_size, again.batch_size, again.shard) == (6, 3, Shard(1, 2))


def _scheduled(order: str, folder: Path) -> dict[str, Any]:
    """Arguments of a loader whose order none of torch's samplers stands for."""
    photos = ImageFolder(write_photos(folder))
    if order == "mixture":
        halves = [Subset(photos, range(first, len(photos), 2), transform=T.Resize((8, 8))) for first in (0, 1)]
        return {"dataset": Mixture({halves[0]: 0.75, halves[1]: 0.25}, stop=16), "shuffle": True}
    if order == "balanced":
        return {"dataset": photos, "sampler": samplers.ClassBalanced(np.arange(len(photos)) % 2)}
    return {"dataset": photos, "shuffle": BlockShuffle(4096, blocks=2) if order == "small blocks" else "blocks"}


@pytest.mark.parametrize("order", ["blocks", "small blocks", "mixture", "balanced"])
def test_an_order_stays_when_lightning_cuts_the_loader_into_ranks(order: str, tmp_path: Path) -> None:
    connector = pytest.importorskip("lightning.pytorch.trainer.connectors.data_connector")
    given = {"batch_size": 4, "engine": "null", "seed": SEED, **_scheduled(order, tmp_path)}
    for rank in range(2):
        loader = DataLoader(**given)
        sampler = connector._get_distributed_sampler(loader, shuffle=True, overfit_batches=0, num_replicas=2, rank=rank)
        again: Any = _update_dataloader(loader, sampler)
        assert again.shard == Shard(rank, 2) and isinstance(again.sampler, DistributedSampler)
        own = DataLoader(**given, shard=Shard(rank, 2))
        for epoch in range(2):
            again.sampler.set_epoch(epoch)  # as Lightning does
            own.set_epoch(epoch)
            assert list(again.sampler) == list(own.sampler)
        assert again.state_dict()["order"] == own.state_dict()["order"]


def test_fabric_iterates_over_the_loader_itself() -> None:
    loader = make()
    ours = L.Fabric(accelerator="cpu").setup_dataloaders(loader)
    assert len(ours) == STEPS and isinstance(loader, TorchLoader)
    assert [[record(batch) for batch in ours] for _ in range(EPOCHS)] == plain()
    assert loader.state_dict()["epoch"] == EPOCHS


WAYS = ("shard", "hook", "directly")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each of two ranks saw, in a file for each way. They import Lightning for seconds, so once for all."""
    out = tmp_path_factory.mktemp("ranks")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(HERE / "lightning_ranks.py"), str(out), *WAYS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.thorough
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize("how", WAYS)
def test_two_ranks_that_lightning_starts_itself(two_ranks: Path, how: str) -> None:
    ranks = [json.loads((two_ranks / f"{how}-{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        steps = list(zip(*(r["trained"][epoch] for r in ranks), strict=True))
        assert len(steps) == 3
        if how == "shard":
            real = [i for parts in steps for labels, valid in parts for i in labels[:valid]]
            assert real == Shuffle(N, SEED, epoch).at(np.arange(N))[0].tolist()
            continue
        for rank in range(2):
            theirs: Any = DistributedSampler(range(N), 2, rank)  # type: ignore[arg-type]
            theirs.set_epoch(epoch)
            assert [i for parts in steps for i in parts[rank][0]] == list(theirs)
    assert sorted(ranks[0]["validated"] + ranks[1]["validated"]) == sorted(2 * list(range(N)))
