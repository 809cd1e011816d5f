"""Programs end when they are done: whatever background threads still wait for.

How they end is judged only as far as it is ours: gloo sometimes aborts (-6) while the interpreter
shuts down, with or without Thinwire.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PATIENCE_SECONDS = 100.0
ROOT = Path(__file__).parents[2]

SCRIPT = """
import os, signal, sys
import torch.distributed as dist
from tests.distributed.training import RECIPES, Trainer

store, rank, ending = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
# Nothing here waits that long: a rank that does is found by the test's own deadline.
trainer = Trainer(RECIPES["1 bit"], deadline_seconds=3600.0)
trainer.train(range(2))

def interrupt(gradient):
    raise KeyboardInterrupt

if ending == "done":
    print("trained", flush=True)
elif rank == 1:
    print("trained", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
else:
    # Interrupted with gradients on their way to a rank that takes and sends nothing.
    next(trainer.net.parameters()).register_hook(interrupt)
    try:
        trainer.step(2)
    except KeyboardInterrupt:
        print("trained", flush=True)
    if ending == "closed":
        trainer.compression.close()
        raise ValueError("the script failed")
"""


@contextmanager
def programs(folder: Path, ending: str) -> Iterator[list[subprocess.Popen[str]]]:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder / "store"), str(rank), ending],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        yield started
    finally:
        for program in started:
            program.kill()
            program.communicate(timeout=10)


def test_a_program_ends_after_training_that_was_not_closed(tmp_path: Path) -> None:
    with programs(tmp_path, "done") as both:
        for program in both:
            check_end(program, 0)


@pytest.mark.parametrize(("ending", "code"), [("interrupted", 0), ("closed", 1)])
def test_a_program_ends_while_gradients_are_on_their_way(
    ending: str, code: int, tmp_path: Path
) -> None:
    with programs(tmp_path, ending) as (program, _):
        check_end(program, code)


def check_end(program: subprocess.Popen[str], code: int) -> None:
    out, error = program.communicate(timeout=PATIENCE_SECONDS)
    assert out == "trained\n", error
    assert program.returncode in (code, -signal.SIGABRT), error
