"""Every argument of torch's DataLoader is honored, or refused with what to do instead; none is dropped."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import (
    BATCH,
    EVAL,
    SEED,
    TRAIN,
    N,
    all_seen,
    images_of,
    native_threads,
    pictures,
    seen,
    warned,
)
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, default_collate
from torch.utils.data.distributed import DistributedSampler

import gpupipe.engines
from gpupipe import DataLoader, Shard, transforms as T
from gpupipe.datasets import Arrays, Dataset, ImageList
from gpupipe.engines.null import _NullRun
from gpupipe.errors import ConfigError, MissingDependency, PipelineError, StateError
from gpupipe.planning.epoch import EpochPlan
from gpupipe.planning.order import Shuffle
from gpupipe.types import Batch


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return Arrays(pictures(), np.arange(N), transform=TRAIN)


def null(dataset: Any, **arguments: Any) -> DataLoader:
    return DataLoader(dataset, **{"engine": "null", "device": "cpu", "seed": SEED, "batch_size": BATCH, **arguments})


def shuffled(epoch: int, seed: int = SEED, n: int = N) -> list[int]:
    return [int(i) for i in Shuffle(n, seed, epoch).at(np.arange(n))[0]]


# ---- the signature


def test_torchs_arguments_come_first_in_torchs_order() -> None:
    ours = inspect.signature(DataLoader.__init__).parameters
    theirs = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    positional = [n for n, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(ours)[: len(positional)] == positional
    assert set(theirs) <= set(ours)
    assert set(ours) - set(theirs) == {
        "device",
        "engine",
        "global_batch_size",
        "seed",
        "shard",
        "on_error",
        "max_bad",
        "cache",
        "cache_bytes",
        "scaled",
        "epoch_length",
        "infinite",
        "live",
        "exclude",
    }
    assert not any(p.kind is p.VAR_KEYWORD for p in ours.values())
    for name in ("batch_size", "shuffle", "num_workers", "pin_memory", "drop_last", "in_order"):
        assert ours[name].default == theirs[name].default, name


def test_pythons_own_errors_name_the_loader(arrays: Arrays) -> None:
    with pytest.raises(TypeError, match=r"^DataLoader.__init__\(\) got an unexpected keyword argument 'batchsize'"):
        DataLoader(arrays, batchsize=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^DataLoader.__init__\(\) missing 1 required positional argument: 'dataset'"):
        DataLoader()  # type: ignore[call-arg]


def test_defaults_give_one_sample_at_a_time_in_order(arrays: Arrays) -> None:
    loader = DataLoader(arrays, engine="null", device="cpu")
    assert (loader.batch_size, len(loader), loader.drop_last, loader.num_workers) == (1, N, False, 0)
    assert all_seen(loader) == list(range(N))


# ---- refused, with what to do instead


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": None}, "batch_size=None gives single samples: use batch_size=1"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, not 0"),
        ({"batch_size": 2.0}, "batch_size must be an integer"),
        ({"batch_size": True}, "batch_size must be an integer"),
        ({"num_workers": -1}, "num_workers must be an integer of at least 0"),
        ({"prefetch_factor": 0}, "prefetch_factor must be an integer of at least 1"),
        ({"timeout": -1}, "timeout must be a number of seconds"),
        ({"timeout": 3}, 'timeout=3.*threads.*engine="torch"'),
        ({"worker_init_fn": print, "num_workers": 1}, "worker_init_fn=.*worker processes"),
        ({"multiprocessing_context": "spawn"}, "multiprocessing_context='spawn'.*worker processes"),
        ({"pin_memory_device": "cuda"}, "pin_memory_device='cuda'.*use device="),
        ({"in_order": False}, "leave in_order=False out"),
        ({"on_error": "ignore"}, "on_error must be .*not 'ignore'"),
        ({"engine": "ffcv"}, "engine must be auto, dali, torch, null.*not 'ffcv'"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"device": "meta"}, "device='meta': batches can be delivered on"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"seed": True}, "seed must be an integer"),
        ({"shard": (0, 2)}, r"shard must be a gpupipe.Shard.*not \(0, 2\)"),
        ({"shuffle": True, "sampler": [1, 2]}, "shuffle=True and a sampler exclude each other"),
        ({"sampler": iter([1, 2])}, "read only once"),
        ({"sampler": 7}, "sampler=7 must be a torch sampler or a list"),
        ({"batch_sampler": 7, "batch_size": 1}, "batch_sampler=7 must give lists of indices"),
        (
            {"batch_sampler": BatchSampler(range(3), 2, False), "shuffle": True, "batch_size": 1},
            "batch_sampler excludes",
        ),
        ({"batch_sampler": BatchSampler(range(3), 2, False), "batch_size": 5}, "batch_sampler excludes batch_size"),
    ],
    ids=lambda v: str(v)[:40] if isinstance(v, dict) else "",
)
def test_refused_with_what_to_do_instead(arrays: Arrays, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        null(arrays, **arguments)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [([0, N], f"index {N} at position 1; this dataset has {N} samples"), ([0.5], "must give integers")],
)
def test_a_sampler_is_read_when_its_epoch_begins(arrays: Arrays, sampler: Any, message: str) -> None:
    loader = null(arrays, sampler=sampler)
    with pytest.raises(ConfigError, match=message):
        next(iter(loader))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", 0, torch.device("cuda")])
def test_cuda_without_a_gpu_is_refused_when_the_loader_is_built(arrays: Arrays, device: Any) -> None:
    with pytest.raises(ConfigError, match='torch sees no GPU; use device="cpu", or see gpupipe doctor'):
        DataLoader(arrays, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_is_the_cpu_where_there_is_no_gpu(arrays: Arrays) -> None:
    assert DataLoader(arrays, engine="null").device == torch.device("cpu")


def test_an_empty_dataset_is_refused(arrays: Arrays) -> None:
    with pytest.raises(ConfigError, match="no samples"):
        null(Arrays(np.zeros((0, 4, 4, 3), np.uint8), [], transform=TRAIN))


def test_two_shards_that_disagree_are_refused(arrays: Arrays) -> None:
    sampler: Any = DistributedSampler(range(N), num_replicas=2, rank=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"rank=1, world_size=2.*rank=0, world_size=2"):
        null(arrays, sampler=sampler, shard=Shard(0, 2))


# ---- honored


def test_torchs_own_collate_is_none_of_ones_own(arrays: Arrays) -> None:
    assert all_seen(null(arrays, collate_fn=default_collate)) == list(range(N))


def test_worker_init_fn_and_context_reach_the_workers(arrays: Arrays, tmp_path: Path) -> None:
    options: Any = {"worker_init_fn": partial(_mark, tmp_path), "multiprocessing_context": "fork", "timeout": 60}
    with DataLoader(arrays, batch_size=2, num_workers=2, engine="torch", device="cpu", **options) as loader:
        assert all_seen(loader) == list(range(N))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1"]


def _mark(folder: Path, worker: int) -> None:
    (folder / str(worker)).touch()


def test_a_generator_gives_its_seed_and_then_draws(arrays: Arrays) -> None:
    generator = torch.Generator().manual_seed(77)
    loader = null(arrays, shuffle=True, generator=generator, seed=None)
    assert loader.seed == 77
    assert all_seen(loader) == shuffled(0, seed=77)
    second, third = (null(arrays, shuffle=True, generator=generator, seed=None).seed for _ in range(2))
    assert len({77, second, third}) == 3
    before = generator.get_state()
    assert null(arrays, shuffle=True, generator=generator, seed=5).seed == 5
    assert torch.equal(generator.get_state(), before)


def test_without_a_seed_every_loader_draws_its_own(arrays: Arrays) -> None:
    def seeds() -> list[int]:
        torch.manual_seed(5)
        loaders = [null(arrays, shuffle=True, seed=None) for _ in range(3)]
        before = torch.random.get_rng_state()
        assert "seed drawn at the first batch" in repr(loaders[0])
        assert torch.equal(torch.random.get_rng_state(), before)  # neither making nor printing one draws
        return [loader.seed for loader in loaders]

    assert seeds() == seeds()
    assert len(set(seeds())) == 3
    one, two = (null(arrays, shuffle=True, seed=None) for _ in range(2))
    assert all_seen(one) != all_seen(two)


@pytest.mark.parametrize("workers", [0, 2])
def test_seeding_again_starts_over(arrays: Arrays, workers: int) -> None:
    loader = null(arrays, shuffle=True, seed=None, num_workers=workers)

    def epoch(seed: int | None) -> list[int]:
        if seed is not None:
            torch.manual_seed(seed)
        return all_seen(loader)

    one, going_on, other = epoch(1), epoch(None), epoch(2)
    assert one != going_on != other != one
    assert epoch(1) == one
    assert epoch(None) == going_on
    assert epoch(2) == other
    loader.set_epoch(1)
    assert epoch(1) == going_on  # the script chooses both


def test_seeding_a_generator_again_starts_over(arrays: Arrays) -> None:
    generator = torch.Generator().manual_seed(3)
    given = null(arrays, shuffle=True, seed=None, generator=generator)
    sampled = null(arrays, sampler=RandomSampler(range(N), generator=generator), seed=None)  # type: ignore[arg-type]
    for loader in (given, sampled):
        generator.manual_seed(3)
        first = all_seen(loader)
        assert first == shuffled(0, seed=3)
        generator.manual_seed(4)
        assert all_seen(loader) == shuffled(0, seed=4)
        torch.manual_seed(3)  # another generator
        assert all_seen(loader) == shuffled(1, seed=4)


def test_a_loaded_seed_stays_if_the_script_seeds_at_its_start(arrays: Arrays) -> None:
    torch.manual_seed(7)
    loader = null(arrays, shuffle=True, seed=None)
    epochs = [all_seen(loader) for _ in range(4)]
    assert all_seen(null(arrays, shuffle=True, seed=None)) != epochs[0]
    torch.manual_seed(7)
    loader = null(arrays, shuffle=True, seed=None)
    assert all_seen(loader) == epochs[0]
    state = loader.state_dict()
    torch.manual_seed(7)
    resumed = null(arrays, shuffle=True, seed=None)
    resumed.load_state_dict(state)
    assert [all_seen(resumed) for _ in range(3)] == epochs[1:]


def test_a_seed_that_was_given_stays(arrays: Arrays) -> None:
    loader = null(arrays, shuffle=True, seed=5)
    first = all_seen(loader)
    torch.manual_seed(0)
    assert all_seen(loader) == shuffled(1, seed=5) != first


def test_several_ranks_keep_their_seed_and_say_so(arrays: Arrays) -> None:
    loader = null(arrays, shuffle=True, seed=None, shard=Shard(0, 2))
    seed, first = loader.seed, all_seen(loader)
    with warned() as texts:
        for _ in range(2):
            torch.manual_seed(0)
            assert all_seen(loader) != first
    (text,) = texts
    assert "[seeded-again]" in text
    assert loader.seed == seed


def test_ranks_that_cannot_ask_each_other_have_the_same_seed(arrays: Arrays, rng_untouched: None) -> None:
    seeds = [null(arrays, seed=None, shard=Shard(r, 2), shuffle=True).seed for r in (0, 1, 0)]
    assert seeds == [seeds[0], seeds[0] + 1, seeds[0] + 2]  # numbered, as ranks make their loaders in the same order


def test_batch_sampler_of_torch_is_taken_apart(arrays: Arrays) -> None:
    loader = null(arrays, batch_sampler=BatchSampler(SequentialSampler(range(N)), 6, True), batch_size=1)
    assert (loader.batch_size, loader.drop_last, len(loader)) == (6, True, 3)
    assert all_seen(loader) == list(range(18))


def test_a_distributed_sampler_sets_shard_and_epoch_and_has_its_own_order(arrays: Arrays) -> None:
    samplers: list[Any] = [DistributedSampler(range(N), num_replicas=2, rank=r, seed=9) for r in range(2)]  # type: ignore[arg-type]
    loaders = [null(arrays, sampler=s, seed=None) for s in samplers]
    assert [x.shard for x in loaders] == [Shard(0, 2), Shard(1, 2)]
    assert [len(x) for x in loaders] == [3, 3]
    for epoch in (0, 3, 4):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for loader, sampler in zip(loaders, samplers, strict=True):
            assert all_seen(loader) == list(sampler)


def test_prefetch_factor_bounds_the_plans_in_flight(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one process, or of each worker. What is handed out is in flight no more."""
    made: list[int] = []
    plain = EpochPlan.__getitem__
    monkeypatch.setattr(EpochPlan, "__getitem__", lambda self, step: (made.append(step), plain(self, step))[1])
    for engine, bound in (("dali", 3), ("torch", 6)):
        with DataLoader(arrays, batch_size=1, num_workers=2, prefetch_factor=3, engine=engine, device="cpu") as loader:
            made.clear()
            iterator = iter(loader)
            ahead = 0
            for delivered in range(1, 9):
                next(iterator)
                ahead = max(ahead, len(made) - delivered)
            assert 0 < ahead <= bound, (engine, ahead)
            if engine == "dali":
                assert ahead == 3  # not less either: the graph is kept busy


def test_num_workers_are_dalis_threads(arrays: Arrays) -> None:
    counts = []
    for workers in (1, 4):
        with DataLoader(arrays, num_workers=workers, engine="dali", device="cpu") as loader:
            next(iter(loader))
            counts.append(native_threads())
            assert f"threads {workers}" in repr(loader)
    assert counts[1] - counts[0] >= 3  # the decoder has a pool of its own


def test_attributes_say_what_torchs_say(arrays: Arrays) -> None:
    loader = null(arrays, drop_last=True, num_workers=3, pin_memory=True, prefetch_factor=4)
    assert loader.dataset is arrays
    assert (loader.batch_size, loader.drop_last, loader.num_workers) == (BATCH, True, 3)
    assert (loader.pin_memory, loader.prefetch_factor, loader.on_error) == (True, 4, "raise")
    given = SequentialSampler(range(N))
    assert null(arrays, sampler=given).sampler is given


# ---- epochs


def test_set_epoch_chooses_and_without_it_every_iter_is_the_next(arrays: Arrays) -> None:
    loader = null(arrays, shuffle=True)
    assert all_seen(loader) == shuffled(0)
    assert all_seen(loader) == shuffled(1)
    loader.set_epoch(7)
    assert loader.state_dict()["epoch"] == 7
    assert all_seen(loader) == shuffled(7)
    assert all_seen(loader) == shuffled(8)
    loader.set_epoch(0)
    assert all_seen(loader) == shuffled(0)


def test_set_epoch_within_an_epoch_is_about_the_next(arrays: Arrays) -> None:
    loader = null(arrays, shuffle=True)
    iterator = iter(loader)
    first = seen(next(iterator))
    loader.set_epoch(5)
    assert first + all_seen(iterator) == shuffled(0)
    assert all_seen(loader) == shuffled(5)


def test_set_epoch_after_load_state_dict(arrays: Arrays) -> None:
    """A script that resumes calls both, and in either order."""
    loader = null(arrays, shuffle=True)
    loader.set_epoch(4)
    next(iter(loader))
    state = loader.state_dict()

    same = null(arrays, shuffle=True)
    same.load_state_dict(state)
    same.set_epoch(4)
    assert all_seen(same) == shuffled(4)[BATCH:]

    before = null(arrays, shuffle=True)
    before.set_epoch(4)
    before.load_state_dict(state)
    assert all_seen(before) == shuffled(4)[BATCH:]
    before.set_epoch(4)
    assert all_seen(before) == shuffled(4)  # the rest was delivered; asked for again, it is a whole one

    other = null(arrays, shuffle=True)
    other.load_state_dict(state)
    other.set_epoch(5)
    assert all_seen(other) == shuffled(5)


def test_resumed_script_with_a_distributed_sampler(arrays: Arrays) -> None:
    def loaders() -> tuple[Any, DataLoader]:
        sampler: Any = DistributedSampler(range(N), num_replicas=2, rank=0, seed=SEED)  # type: ignore[arg-type]
        return sampler, null(arrays, sampler=sampler, seed=None)

    sampler, loader = loaders()
    sampler.set_epoch(2)
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), all_seen(iterator)
    assert state["epoch"] == 2
    sampler, loader = loaders()
    loader.load_state_dict(state)
    sampler.set_epoch(2)
    assert all_seen(loader) == rest


@pytest.mark.parametrize("epoch", [-1, 1.0, True, None, "2"])
def test_set_epoch_refuses_what_is_no_epoch(arrays: Arrays, epoch: Any) -> None:
    with pytest.raises(ConfigError, match="set_epoch takes an integer of at least 0"):
        null(arrays).set_epoch(epoch)


# ---- engines


def test_auto_takes_dali_and_says_why(arrays: Arrays) -> None:
    loader = DataLoader(arrays, device="cpu")
    assert "engine: dali (auto: DALI is installed)" in repr(loader)


@pytest.mark.parametrize(
    "transforms",
    [
        [T.RandomCrop(32, padding=4, padding_mode="reflect")],
        [T.Resize((8, 8), interpolation="box")],
        [T.Resize((8, 8), interpolation="hamming")],
        [T.RandomRotation(20, "bicubic")],
    ],
    ids=repr,
)
def test_the_host_does_what_dali_lacks(transforms: list[Any]) -> None:
    dataset = Arrays(pictures(), np.arange(N), transform=T.Compose([*transforms, T.PILToTensor()]))
    made = []
    for engine in ("auto", "torch"):
        with DataLoader(dataset, batch_size=BATCH, engine=engine, device="cpu", seed=3) as loader:
            made.append([images for images, _ in loader])
            assert engine == "torch" or "engine: dali" in repr(loader)
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


MISFIT = T.Compose([T.RandomCrop(32), T.ToTensor(), T.ToDtype("bfloat16"), T.Resize((9, 9))])


def test_what_no_engine_can_run_is_refused_by_all_of_them() -> None:
    dataset = Arrays(pictures(), np.arange(N), transform=MISFIT)
    for engine in ("auto", "torch", "dali", gpupipe.engines.Dali()):
        with pytest.raises(PipelineError, match="single images on the host cannot be bfloat16"):
            DataLoader(dataset, engine=engine, device="cpu")


def test_without_dali_the_torch_engine_runs_and_says_so(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.engines.dali.config.installed", lambda: False)
    loader = DataLoader(arrays, batch_size=BATCH, device="cpu")
    assert "engine: torch (auto: DALI is not installed: pip install nvidia-dali-cuda120" in repr(loader)
    assert all_seen(loader) == list(range(N))
    with pytest.raises(MissingDependency, match="pip install nvidia-dali-cuda120"):
        DataLoader(arrays, engine="dali", device="cpu")


def test_images_of_different_sizes_are_refused_with_the_way_out(tmp_path: Path) -> None:
    for i, shape in enumerate([(40, 40, 3), (30, 20, 3)]):
        Image.fromarray(np.full(shape, i, np.uint8)).save(tmp_path / f"{i}.png")
    dataset = ImageList(sorted(tmp_path.glob("*.png")), transform=T.Compose([T.PILToTensor()]))
    for engine in ("torch", "dali"):
        loader = DataLoader(dataset, batch_size=2, engine=engine, device="cpu")
        with pytest.raises(PipelineError, match=r"different sizes: 40x40 .*30x20.*CenterCrop.*batch_size=1"), loader:
            next(iter(loader))
        with DataLoader(dataset, batch_size=1, engine=engine, device="cpu") as loader:
            assert [tuple(b.shape) for b in loader] == [(1, 3, 40, 40), (1, 3, 30, 20)]


# ---- where an epoch begins, and where a state is


def test_an_epoch_begins_with_its_first_batch_and_not_with_iter(arrays: Arrays) -> None:
    """Lightning calls iter() twice before the first epoch, and sets the epoch after it."""

    def epoch_of(batch: Any) -> int:
        return int(images_of(batch).epoch)

    loader = null(arrays, shuffle=True)
    iter(loader)
    iterator = iter(loader)
    assert epoch_of(next(iterator)) == 0
    iter(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["delivered"]) == (1, 0)
    iterator = iter(loader)
    loader.sampler.set_epoch(7)
    assert epoch_of(next(iterator)) == 7
    loader.set_epoch(3)  # now of the one after it
    assert epoch_of(next(iterator)) == 7
    assert epoch_of(next(iter(loader))) == 3
    assert epoch_of(next(iter(loader))) == 4


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_an_epoch_begun_in_inference_mode_goes_on_outside(arrays: Arrays, engine: str) -> None:
    with DataLoader(arrays, batch_size=BATCH, engine=engine, device="cpu") as loader:
        with torch.inference_mode():
            iterator = iter(loader)
            images, target = next(iterator)
        assert not images.is_inference() and not target.is_inference()
        assert all_seen(iterator) == list(range(BATCH, N))


def test_an_iterator_whose_engine_another_one_took_goes_on(arrays: Arrays) -> None:
    with null(arrays, shuffle=True) as loader:
        one, other = iter(loader), iter(loader)
        first, second = seen(next(one)), seen(next(other))
        assert first + all_seen(one) == shuffled(0)
        assert second + all_seen(other) == shuffled(1)


def test_a_loader_of_torchs_can_be_built_from_this_one(arrays: Arrays) -> None:
    loader = null(arrays)
    assert type(loader.batch_sampler) is BatchSampler and len(loader.batch_sampler) == len(loader)
    assert isinstance(loader.batch_sampler.sampler, type(loader.sampler))
    other = null(arrays, sampler=RandomSampler(arrays))  # type: ignore[arg-type]
    other.batch_sampler.sampler.set_epoch(3)
    assert other.state_dict()["epoch"] == 3
    theirs = torch.utils.data.DataLoader(range(N), batch_sampler=loader.batch_sampler)  # type: ignore[arg-type]
    assert [i for batch in theirs for i in batch.tolist()] == list(range(N))
    sharded = null(arrays, shard=Shard(0, 2))
    assert isinstance(sharded.sampler, DistributedSampler)
    with pytest.raises(ConfigError, match="would divide them again"):
        list(torch.utils.data.DataLoader(range(N), batch_sampler=sharded.batch_sampler))  # type: ignore[arg-type]


def test_what_was_loaded_is_kept_until_the_first_batch(arrays: Arrays) -> None:
    loader = null(arrays, shuffle=True)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    expected = seen(next(iterator))
    loader.load_state_dict(state)
    iter(loader)
    iterator = iter(loader)
    loader.set_epoch(0)
    assert loader.state_dict() == state
    assert seen(next(iterator)) == expected


def test_after_a_failure_the_state_is_where_the_last_batch_left_it(
    arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = _NullRun.__next__

    def failing(run: _NullRun) -> Batch:
        if (batch := real(run)).plan.step == 2:
            raise ZeroDivisionError("inside the engine")
        return batch

    monkeypatch.setattr(_NullRun, "__next__", failing)
    loader = null(arrays)
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(ZeroDivisionError, match="inside the engine"):
        next(iterator)
    assert loader.state_dict()["delivered"] == 10
    with pytest.raises(StopIteration):
        next(iterator)
    assert seen(next(iter(loader))) == [0, 1, 2, 3, 4]


def test_repr_shows_what_will_happen(arrays: Arrays) -> None:
    text = repr(null(arrays, shuffle=True, drop_last=True, shard=Shard(1, 2)))
    for part in ("2 batches of 5", "rank 1 of 2", "shuffled, seed 11", "dropped", "engine: null (as asked) on cpu",
                 "not started", "RandomResizedCrop"):  # fmt: skip
        assert part in text, part


def test_datasets_are_not_changed(arrays: Arrays) -> None:
    before = dict(vars(arrays))
    with DataLoader(arrays, batch_size=BATCH, engine="dali", device="cpu") as loader:
        list(loader)
    assert {k: v for k, v in vars(arrays).items() if k != "fingerprint"} == {
        k: v for k, v in before.items() if k != "fingerprint"
    }
    assert isinstance(arrays, Dataset) and arrays.transform == TRAIN
    assert EVAL != TRAIN


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"collate_fn": 5}, "collate_fn must be a function of a list of samples, not 5"),
        ({"generator": 5}, "generator must be a torch.Generator, not 5"),
        ({"timeout": "a"}, "timeout must be a number of seconds of at least 0, not 'a'"),
        ({"exclude": "a"}, "exclude must be indices of samples, such as [17, 4711], not 'a'"),
        ({"device": "gpu"}, "device='gpu' must be 'cpu', 'cuda', or 'cuda:' and a number"),
    ],
)
def test_wrong_arguments_are_named(arrays: Arrays, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        null(arrays, **arguments)
    assert str(e.value) == message


def test_what_is_no_dataset(arrays: Arrays) -> None:
    for wrong, message in ((None, "the dataset is None; give one with __len__"), (null(arrays), "give its dataset")):
        with pytest.raises(ConfigError, match=message):
            null(wrong)


def test_a_function_in_the_place_of_torchs_class(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as ``functools.partial(gpupipe.DataLoader, ...)``, for libraries that make their own loaders."""
    theirs = torch.utils.data.DataLoader([1, 2, 3])
    monkeypatch.setattr(torch.utils.data, "DataLoader", partial(DataLoader, device="cpu"))
    assert [batch.tolist() for batch in torch.utils.data.DataLoader([1, 2, 3], batch_size=2)] == [[1, 2], [3]]
    assert [batch.tolist() for batch in gpupipe.from_torch(theirs, device="cpu")] == [[1], [2], [3]]


def test_a_whole_checkpoint_is_no_state(arrays: Arrays) -> None:
    loader = null(arrays)
    with pytest.raises(StateError, match=r"keys \['model', 'data'\]; pass its 'data', which is one"):
        loader.load_state_dict({"model": {}, "data": loader.state_dict()})
    with pytest.raises(StateError, match=r"keys \[\]; load what state_dict\(\) returned"):
        loader.load_state_dict({})
