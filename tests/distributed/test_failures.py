"""What a rank does to the others when it dies, stalls, leaves or talks nonsense: they all say so.

Every other rank raises within the deadline an error that names the rank, the gradients and the
step; what fails in a background thread is raised by backward as itself; nothing hangs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import thinwire as tw
import thinwire.exchange.link as link_module
from tests.distributed.fresh import Fresh, fresh
from tests.distributed.training import RECIPES, Trainer, backward, loss_of
from tests.slow import first
from thinwire.codec.base import Payload
from thinwire.wire.messages import Message, encode_into

PATIENCE_SECONDS = 100.0
"""After this a test says that something hangs: far more than anything here takes."""

LONG_SECONDS = 600.0
"""A deadline that no test waits for: what ends before was noticed, not timed out."""

SHORT_SECONDS = 8.0
"""A deadline that has to pass, because a rank that stalls looks like one that computes."""

COMPUTING_SECONDS = 2.0
"""More than a step takes before it waits, on a busy machine."""

FAULTY_STEP = 2


@dataclass(frozen=True, slots=True)
class Cluster:
    """Ranks, how they exchange, and the one that fails."""

    ranks: int
    victim: int
    exchange: str = "sharded"
    hierarchy: str = "flat"
    module: bool = False
    """Without DDP."""

    @property
    def caller(self) -> str:
        return "compress_module" if self.module else "compress_ddp"

    @property
    def options(self) -> dict[str, Any]:
        if self.module:
            return {"exchange": self.exchange, "module": True}
        return {"exchange": self.exchange, "hierarchy": self.hierarchy}

    @property
    def env(self) -> dict[str, str]:
        return {"LOCAL_WORLD_SIZE": "2"} if self.hierarchy == "host" else {}

    def survivors(self, processes: Sequence[Fresh]) -> list[Fresh]:
        return [one for one in processes if one.rank != self.victim]

    def __str__(self) -> str:
        kind = f"{self.exchange} {'module' if self.module else self.hierarchy}"
        return f"{self.ranks} {kind}, rank {self.victim} fails"


PAIR = Cluster(2, victim=1)
CLUSTERS = [
    PAIR,
    Cluster(3, victim=0),
    Cluster(4, victim=2),
    Cluster(3, victim=1, exchange="allgather"),
    Cluster(4, victim=1, hierarchy="host"),
    Cluster(4, victim=2, hierarchy="host"),
    Cluster(3, victim=1, module=True),
    Cluster(2, victim=0, exchange="allgather", module=True),
]


@dataclass(frozen=True, slots=True)
class Seen:
    """An error as the training script saw it."""

    kind: str
    text: str
    seconds: float = field(default=0.0, compare=False)
    """From the beginning of the step."""

    @classmethod
    def of(cls, error: BaseException, seconds: float = 0.0) -> Seen:
        return cls(type(error).__name__, str(error), seconds)


Fault = Callable[[Trainer, int], None]

_kept: list[Trainer] = []
"""Trainers of this process that outlive their task, as they do in a script that catches."""


def trainer_for(
    cluster: Cluster, deadline_seconds: float, recipe: tw.Recipe = RECIPES["1 bit"]
) -> Trainer:
    trainer = Trainer(recipe, deadline_seconds=deadline_seconds, **cluster.options)
    _kept.append(trainer)
    return trainer


def errors_of(trainer: Trainer) -> list[Seen]:
    """What the faulty step raises, and then the one after it."""
    seen = []
    for step in (FAULTY_STEP, FAULTY_STEP + 1):
        start = time.monotonic()
        try:
            trainer.step(step)
        except Exception as error:
            seen.append(Seen.of(error, time.monotonic() - start))
    return seen


def strike_between_steps(trainer: Trainer, number: int) -> None:
    os.kill(os.getpid(), number)


def strike_within_a_step(trainer: Trainer, number: int) -> None:
    """When the last gradient is made: others are sent by then, or on their way."""

    def strike(gradient: Tensor) -> None:
        os.kill(os.getpid(), number)

    on_last_gradient(trainer, strike)
    trainer.step(FAULTY_STEP)


def on_last_gradient(trainer: Trainer, act: Callable[[Tensor], None]) -> None:
    first = next(trainer.net.parameters())
    first.register_hook(act)  # type: ignore[no-untyped-call]


def leave_early(trainer: Trainer, number: int) -> None:
    """Train no more, without a word, but keep the process."""


def train_with(fault: Fault, number: int, cluster: Cluster, deadline_seconds: float) -> list[Seen]:
    trainer = trainer_for(cluster, deadline_seconds)
    trainer.train(range(FAULTY_STEP))  # DDP itself talks to all ranks before its second step
    if dist.get_rank() == cluster.victim:
        fault(trainer, number)
        return []
    return errors_of(trainer)


def check_named(cluster: Cluster, fault: Fault, number: int, deadline_seconds: float) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with fresh(
        train_with, fault, number, cluster, deadline_seconds, ranks=cluster.ranks, env=cluster.env
    ) as processes:
        for survivor in cluster.survivors(processes):
            first, again = survivor.result(until)
            assert first.kind == "WorkerLost"
            assert f"rank {cluster.victim} " in first.text
            assert f"step {FAULTY_STEP}" in first.text
            assert ".weight" in first.text
            assert first.seconds < deadline_seconds + COMPUTING_SECONDS
            assert again == first  # also afterwards: an error, and the one that says why


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_a_rank_that_dies_within_a_step_is_named_by_all_others(cluster: Cluster) -> None:
    check_named(cluster, strike_within_a_step, signal.SIGKILL, LONG_SECONDS)


@pytest.mark.parametrize("cluster", first(CLUSTERS), ids=str)
def test_a_rank_that_dies_between_steps_is_named_by_all_others(cluster: Cluster) -> None:
    check_named(cluster, strike_between_steps, signal.SIGKILL, LONG_SECONDS)


@pytest.mark.parametrize("cluster", first([*CLUSTERS[3:], *CLUSTERS[:3]]), ids=str)
def test_a_rank_that_stalls_is_named_by_all_others_after_the_deadline(cluster: Cluster) -> None:
    check_named(cluster, strike_within_a_step, signal.SIGSTOP, SHORT_SECONDS)


@pytest.mark.parametrize("cluster", [PAIR, CLUSTERS[3]], ids=str)
def test_a_rank_that_leaves_early_is_named_by_all_others_after_the_deadline(
    cluster: Cluster,
) -> None:
    check_named(cluster, leave_early, 0, SHORT_SECONDS)


@dataclass(frozen=True)
class Moody:
    """A codec of another package that works until told otherwise. Payload: little-endian floats."""

    name: ClassVar[str] = "moody"
    wire_id: ClassVar[int] = 0x8777
    sparse: ClassVar[bool] = False
    fails_to: ClassVar[str] = "nothing"

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        self.check("encode")
        return bytearray(x.numpy().tobytes())

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        Moody.check("decode")
        out.copy_(torch.frombuffer(bytearray(payload), dtype=torch.float32))

    def max_nbytes(self, numel: int) -> int:
        return 4 * numel

    @classmethod
    def check(cls, what: str) -> None:
        if cls.fails_to == what:
            raise ArithmeticError(f"no mood to {what}")


def install_moody(folder: Path) -> None:
    """Make what pip would: a package's entry point, found by all who look into ``folder``."""
    info = folder / "moody-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moody\nVersion: 1.0\n")
    point = f"moody = {Moody.__module__}:{Moody.__qualname__}"
    (info / "entry_points.txt").write_text(f"[thinwire.codecs]\n{point}\n")


def train_moody(fails_to: str, cluster: Cluster, folder: str) -> list[Seen]:
    sys.path.append(folder)
    trainer = trainer_for(cluster, LONG_SECONDS, tw.doublesqueeze(Moody()))
    trainer.train(range(FAULTY_STEP))
    if dist.get_rank() == cluster.victim:
        Moody.fails_to = fails_to
    return errors_of(trainer)


@pytest.mark.parametrize("cluster", [PAIR, CLUSTERS[3], CLUSTERS[5], CLUSTERS[7]], ids=str)
@pytest.mark.parametrize("fails_to", ["encode", "decode"])
def test_an_error_in_a_background_thread_is_raised_by_backward_as_itself(
    fails_to: str, cluster: Cluster, tmp_path: Path
) -> None:
    install_moody(tmp_path)
    until = time.monotonic() + PATIENCE_SECONDS
    with fresh(
        train_moody, fails_to, cluster, str(tmp_path), ranks=cluster.ranks, env=cluster.env
    ) as processes:
        here = Seen("ArithmeticError", f"no mood to {fails_to}")
        assert processes[cluster.victim].result(until) == [here, here]
        for survivor in cluster.survivors(processes):
            first, again = survivor.result(until)
            told = f"rank {cluster.victim} stopped at step {FAULTY_STEP}: {here.kind}: {here.text}"
            assert first == again == Seen("WorkerLost", told)


def write_badly(damage: str) -> None:
    """From now on this process writes frames that no Thinwire would."""

    def write(
        out: memoryview, message: Message, *, run: int, epoch: int, worker: int, step: int
    ) -> int:
        later = step + (damage == "a step too far")
        nbytes = encode_into(out, message, run=run, epoch=epoch, worker=worker, step=later)
        if damage == "a flipped bit":
            out[nbytes - 1] ^= 0x10
        elif damage == "random bytes":
            out[:nbytes] = torch.randint(256, (nbytes,), dtype=torch.uint8).numpy().data
        return 20 if damage == "half a header" else nbytes

    pytest.MonkeyPatch().setattr(link_module, "encode_into", write)


def train_badly(damage: str, cluster: Cluster) -> list[Seen]:
    trainer = trainer_for(cluster, LONG_SECONDS)
    trainer.train(range(FAULTY_STEP))
    if dist.get_rank() == cluster.victim:
        write_badly(damage)
    return errors_of(trainer)


@pytest.mark.parametrize(
    "damage", ["a flipped bit", "random bytes", "half a header", "a step too far"]
)
def test_a_peer_that_talks_nonsense_is_named(damage: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with fresh(train_badly, damage, PAIR, ranks=2) as processes:
        first, again = processes[0].result(until)
        assert first.kind == "RemoteProtocolError"
        assert "rank 1 " in first.text
        assert again == first
        told, _ = processes[1].result(until)
        assert told.kind == "WorkerLost"
        assert "rank 0 stopped at step 2: RemoteProtocolError" in told.text


def disagree(cluster: Cluster) -> Seen | None:
    recipe = RECIPES["top-k" if dist.get_rank() == cluster.victim else "1 bit"]
    try:
        trainer_for(cluster, LONG_SECONDS, recipe)
    except tw.ConfigError as error:
        return Seen.of(error)
    return None


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_a_rank_with_another_recipe_is_refused_by_name(cluster: Cluster) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with fresh(disagree, cluster, ranks=cluster.ranks, env=cluster.env) as processes:
        seen = [one.result(until) for one in processes]
    assert all(one is not None and one.kind == "ConfigError" for one in seen)
    for rank, one in enumerate(seen):
        if rank != cluster.victim:
            assert f"rank {cluster.victim} calls {cluster.caller} with another" in one.text


def call_nothing(cluster: Cluster) -> Seen | None:
    if dist.get_rank() == cluster.victim:
        Trainer(None)  # DDP itself waits for all ranks
        return None
    try:
        trainer_for(cluster, SHORT_SECONDS)
    except tw.WorkerLost as error:
        return Seen.of(error)
    return None


@pytest.mark.parametrize("cluster", [CLUSTERS[1], CLUSTERS[4]], ids=str)
def test_a_rank_that_does_not_call_compress_ddp_is_named(cluster: Cluster) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with fresh(call_nothing, cluster, ranks=cluster.ranks, env=cluster.env) as processes:
        for survivor in cluster.survivors(processes):
            seen = survivor.result(until)
            assert seen is not None
            assert f"rank {cluster.victim} is gone, or did not call compress_ddp" in seen.text


def close_and_train_on() -> list[Seen]:
    trainer = trainer_for(PAIR, SHORT_SECONDS)
    trainer.train(range(FAULTY_STEP))
    if dist.get_rank() == 1:
        assert trainer.compression is not None
        trainer.compression.close()
        trainer.compression.close()
    return errors_of(trainer)


def test_after_close_backward_says_so_and_the_others_name_the_rank() -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with fresh(close_and_train_on, ranks=2) as processes:
        other, _ = processes[0].result(until)
        closed, _ = processes[1].result(until)
    assert closed.kind == "ConfigError"
    assert "closed" in closed.text
    assert other.kind == "WorkerLost"
    assert "rank 1 " in other.text


def close_while_waiting() -> float:
    """How long closing takes while a background thread waits for a rank that sends nothing."""
    trainer = trainer_for(PAIR, LONG_SECONDS)
    trainer.train(range(FAULTY_STEP))
    if dist.get_rank() == 1:
        return 0.0

    def stop(gradient: Tensor) -> None:
        raise KeyboardInterrupt

    on_last_gradient(trainer, stop)
    with pytest.raises(KeyboardInterrupt):
        backward(loss_of(trainer.model, FAULTY_STEP, 0))
    assert trainer.compression is not None
    start = time.monotonic()
    trainer.compression.close()
    return time.monotonic() - start


def test_close_does_not_wait_for_other_ranks() -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with fresh(close_while_waiting, ranks=2) as processes:
        assert processes[0].result(until) < LONG_SECONDS / 10
