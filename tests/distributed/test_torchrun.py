"""examples/torchrun under torchrun: killed and restarted, and on hosts of their own.

The reference is ``VirtualCluster``: the same training in one process, without any network.
"""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from examples.torchrun import train
from torch import Tensor

import thinwire as tw
from tests.distributed.hosts import Host, hosts
from tests.slow import first, slow

ROOT = Path(__file__).parents[2]
SCRIPT = "examples/torchrun/train.py"
PATIENCE_SECONDS = 220.0
WIDTH = 64
RANKS = 4

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def expected_weights(steps: int) -> dict[str, Tensor]:
    net = train.network(WIDTH)
    optimizer = train.optimizer_for(net)
    cluster = tw.VirtualCluster(net, optimizer, train.RECIPES["chosen"], workers=RANKS)
    for step in range(steps):
        cluster.step(partial(train.loss_of, net, step))
    return net.state_dict()


def check_weights(folder: Path, steps: int) -> None:
    state = torch.load(folder / f"step-{steps:06}" / "model.pt", weights_only=True)
    for name, expected in expected_weights(steps).items():
        assert torch.equal(state["model"][name], expected), name


def options(folder: Path, *, steps: int, save_every: int) -> list[str]:
    given = {"steps": steps, "save-every": save_every, "checkpoints": folder, "width": WIDTH}
    return [text for name, value in given.items() for text in (f"--{name}", str(value))]


@contextmanager
def one_host(script: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "2"]
    # See examples/torchrun/README.md: without it torchrun cannot restart a gloo group.
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    torchrun = subprocess.Popen(
        [*command, *script],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield torchrun
    finally:
        torchrun.terminate()  # it ends its workers
        torchrun.communicate(timeout=60)


def wait_until(holds: Callable[[], bool], torchrun: subprocess.Popen[str], until: float) -> None:
    while not holds():
        assert torchrun.poll() is None, torchrun.communicate()[0]
        assert time.monotonic() < until, "not in time"
        time.sleep(0.01)  # to look again, not to wait for long enough


def worker_of(torchrun: subprocess.Popen[str], rank: int) -> int:
    """The process that torchrun started as ``rank``."""
    task = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children")
    for pid in task.read_text().split():
        if f"RANK={rank}" in Path(f"/proc/{pid}/environ").read_text().split("\0"):
            return int(pid)
    raise AssertionError(f"torchrun has no rank {rank}")


@pytest.mark.parametrize("victim", first([0, 2]))
def test_a_killed_worker_is_restarted_and_the_weights_are_those_of_an_undisturbed_run(
    victim: int, tmp_path: Path
) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    script = [SCRIPT, *options(tmp_path, steps=150, save_every=25)]
    with one_host(script) as torchrun:
        wait_until((tmp_path / "step-000050").exists, torchrun, until)
        os.kill(worker_of(torchrun, victim), signal.SIGKILL)
        out, _ = torchrun.communicate(timeout=until - time.monotonic())
    assert torchrun.returncode == 0, out
    assert "restart 1" in out
    check_weights(tmp_path, 150)


def start_node(node: Host, leader: Host, folder: Path) -> subprocess.Popen[str]:
    command = [*TORCHRUN, "--nnodes", str(RANKS), "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-id", "test"]
    command += ["--rdzv-endpoint", f"{leader.address}:29400"]
    # All share this machine's name, so hosts must be told which address is theirs.
    command += ["--local-addr", node.address, "--rdzv-conf", f"is_host={node == leader}"]
    return node.start([*command, SCRIPT, *options(folder, steps=40, save_every=20)])


def test_four_hosts_compute_what_one_process_does(tmp_path: Path) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with hosts(RANKS) as nodes:
        runs = [start_node(node, nodes[0], tmp_path) for node in nodes]
        for run in runs:
            out, _ = run.communicate(timeout=until - time.monotonic())
            assert run.returncode == 0, out
    check_weights(tmp_path, 40)


@pytest.mark.parametrize(("recipe", "steps"), [slow("dense", 5), slow("onebit", 40), ("dgc", 40)])
def test_S4_the_bytes_that_stats_count_are_those_on_the_wire(recipe: str, steps: int) -> None:
    """``sent_nbytes`` and ``received_nbytes`` against the kernel's counters of the only interface.

    The kernel also counts what is not ours: headers of TCP, IP and Ethernet (66 bytes on packets of
    up to 9000), acknowledgements of what the peer sent, and gloo's own few words before each frame.
    So its count is larger, but by less than a twentieth, because frames are large here: 2 million
    parameters. It is read after the steps in which DDP itself has to talk. On a busy machine the
    kernel sends some packets twice, and says how many.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    with hosts(2) as nodes:
        address, module = nodes[0].address, "tests.distributed.count_bytes"
        runs = [
            node.start([sys.executable, "-m", module, str(rank), "2", address, recipe, str(steps)])
            for rank, node in enumerate(nodes)
        ]
        counts = []
        for run in runs:
            out, _ = run.communicate(timeout=until - time.monotonic())
            assert run.returncode == 0, out
            counts.append(json.loads(out.splitlines()[-1]))
    for own, peer in (counts, counts[::-1]):
        assert own["sent"] < own["left"] < 1.05 * own["sent"] + own["again"]
        assert own["received"] < own["came"] < 1.05 * own["received"] + peer["again"]
