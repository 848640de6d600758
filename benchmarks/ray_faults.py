"""What becomes of every sample when Ray Train loses and gets machines.

Two nodes of a Ray cluster on this machine, one worker on each, and a loader with a global batch. Each fault happens in
the middle of the first epoch:

- killed: a worker process dies of SIGKILL;
- removed: a node disappears, and training continues on the other one;
- added: training begins on one node, and a second one joins;
- preempted: Ray announces that a node will be taken away, the workers save at once, and it is.

Checkpoints are saved every third step; Ray knows of one when its controller has asked the workers, which takes up to a
second. Target: no sample lost, none delivered twice, and all batches of two epochs equal, bit for bit, to those of one
process that nothing disturbs. The seconds to the next batch count from the last batch
before the fault to the first one after it. Ray needs most of them to notice the fault and to start processes.
``loader_seconds_after`` is the part of the loader: making it, loading the state and delivering the first batch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _common

FAULTS = ("killed", "removed", "added", "preempted")
STEP = 8
"""Step of the fault, counted from 1."""
EVERY = 3
SECONDS_PER_STEP = 0.25
SECONDS_WHILE_ADDING = 4.0
"""A node needs some ten seconds to join."""


def train(config: dict[str, Any]) -> None:
    """The training function, in every worker."""
    import torch
    from continued import EPOCHS, Notes, loader_of

    from gpupipe import World
    from gpupipe.integrations.ray import preemption_notice, report, restore

    world, folder = World.here(), Path(config["notes"])
    notes = Notes(folder, world)
    began = time.perf_counter()
    loader = loader_of(Path(config["root"]), world)
    net = torch.nn.Linear(3, 2)
    model = torch.nn.parallel.DistributedDataParallel(net) if world.world_size > 1 else net
    parts: dict[str, Any] = {"loader": loader, "model": model}
    restore(**parts)
    notes.begin(loader)
    step, first = 0, True
    for _ in range(loader.state_dict()["epoch"], EPOCHS):
        for images, labels in loader:
            if first:
                (folder / f"seconds-{time.time_ns()}").write_text(str(time.perf_counter() - began))
                first = False
            model(images.mean((2, 3))).sum().backward()
            notes.batch(loader, images, labels)
            step += 1
            (folder / f"step-{world.rank}").write_text(str(step))
            dies = Path(config["notes"]) / "dies"
            if config["fault"] == "killed" and world.rank == 1 and step == STEP and not dies.exists():
                dies.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if preemption_notice() is not None or step % EVERY == 0:
                report({"step": step}, **parts)
            waits = config["fault"] == "added" and world.world_size == 1
            time.sleep(SECONDS_WHILE_ADDING if waits else SECONDS_PER_STEP)
    loader.close()


def _disturb(fault: str, cluster: Any, node: Any, notes: Path, node_args: dict[str, Any]) -> None:
    """Let the fault happen once a worker has reached the step."""
    while not ((found := notes / "step-0").exists() and int(found.read_text() or 0) >= STEP):
        time.sleep(0.05)
    if fault == "removed":
        cluster.remove_node(node, allow_graceful=False)
    elif fault == "added":
        cluster.add_node(**node_args)
    elif fault == "preempted":
        from ray._raylet import GcsClient
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        seconds = 4
        client = GcsClient(address=cluster.address)
        client.drain_node(node.node_id, reason, "preempted", int((time.time() + seconds) * 1000))
        time.sleep(seconds + 1)
        cluster.remove_node(node, allow_graceful=False)


def run(fault: str) -> dict[str, Any]:
    """Train once, with a fault, in this process. Returns what became of every sample."""
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path])
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S="20", OMP_NUM_THREADS="1")
    # Nodes that disappear without a word are believed dead after ten seconds by default.
    os.environ.update(RAY_health_check_period_ms="500", RAY_health_check_failure_threshold="4")
    import ray
    from continued import judge, photos
    from ray.cluster_utils import Cluster
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    node_args: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
    head = {"num_cpus": 1 if fault == "added" else 0, "object_store_memory": 80 << 20, "include_dashboard": False}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        notes, root = Path(folder, "notes"), photos(Path(folder, "photos"))
        notes.mkdir()
        with contextlib.ExitStack() as stack:
            cluster = Cluster(initialize_head=True, head_node_args=head)
            stack.callback(cluster.shutdown)
            if fault != "added":
                cluster.add_node(**node_args)
            node = None if fault == "added" else cluster.add_node(**node_args)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            stack.callback(ray.shutdown)
            trainer = TorchTrainer(
                train,
                train_loop_config={"notes": str(notes), "root": str(root), "fault": fault},
                scaling_config=ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=2.0),
                run_config=RunConfig(
                    storage_path=str(Path(folder, "storage")),
                    failure_config=FailureConfig(max_failures=2, max_preemption_failures=2),
                ),
            )
            # Nodes are started in the main thread, because that sets signal handlers.
            with ThreadPoolExecutor(1) as pool:
                fitted = pool.submit(trainer.fit)
                _disturb(fault, cluster, node, notes, node_args)
                fitted.result()
        found = judge(notes, root)
        last = sorted(notes.glob("seconds-*"))[-found["ranks"][-1] :]
        found["loader_seconds_after"] = [round(float(file.read_text()), 2) for file in last]
    return found


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--fault", choices=FAULTS, action="append", help="only this one; prints it and saves nothing")
    args = p.parse_args()
    if args.fault and len(args.fault) == 1:
        print(json.dumps(run(args.fault[0])))
        return
    import subprocess

    import ray

    results = {}
    for fault in args.fault or FAULTS:
        done = subprocess.run([sys.executable, __file__, "--fault", fault], capture_output=True, text=True, timeout=400)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        results[fault] = json.loads(done.stdout.splitlines()[-1])
        print(fault, results[fault], flush=True)
    print(_common.save("ray_faults", {"ray": ray.__version__, "faults": results, "machine": _common.machine()}))


if __name__ == "__main__":
    main()
