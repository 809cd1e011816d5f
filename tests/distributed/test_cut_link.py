"""A host that is cut off without a word: every rank gets an error before the deadline is over."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.distributed.hosts import Host, hosts
from tests.slow import first

DEADLINE_SECONDS = 6.0
PATIENCE_SECONDS = 100.0

Mode = tuple[str, int, dict[str, Any]]
"""A recipe, the number of ranks, and options."""

MODES: list[Mode] = [
    ("dense", 2, {}),
    ("1 bit", 3, {}),
    ("dense", 2, {"exchange": "allgather"}),
    ("dense", 2, {"module": True}),
]


def start(node: Host, rank: int, address: str, mode: Mode) -> subprocess.Popen[str]:
    recipe, ranks, options = mode
    given = json.dumps({**options, "deadline_seconds": DEADLINE_SECONDS})
    module = "tests.distributed.cut_link"
    return node.start([sys.executable, "-m", module, str(rank), str(ranks), address, recipe, given])


def wait_until_warm(run: subprocess.Popen[str]) -> None:
    assert run.stdout is not None
    seen = []
    for line in run.stdout:
        if line.strip() == "warm":
            return
        seen.append(line)
    raise AssertionError("".join(seen))


@pytest.mark.parametrize("mode", first(MODES), ids=str)
def test_a_cut_link_is_noticed_within_the_deadline(mode: Mode) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with hosts(mode[1]) as nodes:
        runs = [start(node, rank, nodes[0].address, mode) for rank, node in enumerate(nodes)]
        for run in runs:
            wait_until_warm(run)
        nodes[-1].cut()
        for run in runs:
            out, _ = run.communicate(timeout=until - time.monotonic())
            assert run.returncode == 0, out
            found = json.loads(out.splitlines()[-1])
            assert " is gone, or did not " in found["text"]
            assert found["seconds"] < DEADLINE_SECONDS + 1.0
