"""examples/ray in a real Ray on this machine: two workers, compared with one process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

import thinwire as tw

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 280.0
STEPS = 20

pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[train]'")


def expected_digest(example: ModuleType) -> str:
    net = example.network()
    cluster = tw.VirtualCluster(net, example.optimizer_for(net), example.RECIPE, workers=2)
    for step in range(STEPS):
        cluster.step(partial(example.loss_of, net, step))
    digest: str = example.digest(net)
    return digest


def run_example(home: Path) -> str:
    """What the example prints. A process of its own: Ray starts others, and ends them with it."""
    own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "", "GLOO_SOCKET_IFNAME": "lo"}
    # Ray leaves files in both places.
    own |= {"HOME": str(home), "RAY_TMPDIR": str(home)}
    done = subprocess.run(
        [sys.executable, "examples/ray/train.py", "--steps", str(STEPS), "--storage", str(home)],
        cwd=ROOT,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_workers_of_ray_compute_what_one_process_does() -> None:
    from examples.ray import train

    # Not tmp_path: Ray makes sockets there, whose paths may not be longer than 107 bytes.
    with tempfile.TemporaryDirectory(prefix="tw", dir="/tmp") as home:
        out = run_example(Path(home))
    assert f"weights {expected_digest(train)}" in out
