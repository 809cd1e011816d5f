"""A run that has ended stays so, and is told as it was, however often its server is started."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import thinwire as tw
from tests.inproc import InprocConnection, InprocListener
from tests.log_cases import snapshots
from tests.server.command import THINWIRE, running
from tests.server.processes import PATIENCE_SECONDS, free_address, wait_until
from tests.server.servers import plain_sgd
from thinwire.model import describe, digest_of
from thinwire.server.journal import Journal
from thinwire.server.log.log import Log
from thinwire.server.service import Service
from thinwire.server.settings import Rules
from thinwire.wire.frame import pack
from thinwire.wire.messages import Join, Leave, Message, Reason, encode

RECIPE = tw.dense()
ASYNCHRONOUS = {"quorum": 1, "staleness": 100}
EVERY_STEP, NEVER = 1, 1 << 40


@contextmanager
def served(address: str, folder: Path, **options: Any) -> Iterator[tw.Server]:
    """A server in a thread. It is stopped without a word, if it does not end by itself."""
    server = tw.Server(address, RECIPE, log_dir=folder, **options)
    thread = threading.Thread(target=server.run, kwargs={"tick_seconds": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE_SECONDS)


def started_again(address: str, folder: Path, output: Path, *options: str) -> tuple[int, str]:
    """The exit code and the last line of ``thinwire serve``, which must end by itself."""
    common = ("--listen", address, "--recipe", "dense", "--log-dir", str(folder))
    with running(THINWIRE, "serve", *common, *options, output=output) as server:
        code = server.wait(PATIENCE_SECONDS)
    return code, output.read_text().splitlines()[-1]


def attached(address: str, *, rank: int = 0, workers: int = 1) -> tuple[nn.Module, tw.Client]:
    net = nn.Linear(4, 2)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    client = tw.Client([address], RECIPE, rank=rank, workers=workers, deadline_seconds=60.0)
    client.attach(net, plain_sgd(net))
    return net, client


def step(net: nn.Module, client: tw.Client, count: int) -> None:
    for _ in range(count):
        net.zero_grad()
        sum(p.sum() for p in net.parameters()).backward()  # type: ignore[union-attr]
        client.step()


def abandon(client: tw.Client) -> None:
    """Go, to come back, and never do."""
    with pytest.raises(InterruptedError), client:
        raise InterruptedError


@pytest.mark.timeout(120)
@pytest.mark.parametrize("snapshot_nbytes", [EVERY_STEP, NEVER])
def test_a_server_started_again_on_a_finished_log_ends_at_once(
    snapshot_nbytes: int, tmp_path: Path
) -> None:
    address, folder = free_address(), tmp_path / "log"
    with served(address, folder, workers=1, snapshot_nbytes=snapshot_nbytes) as server:
        net, client = attached(address)
        step(net, client, 3)
        client.close()
        wait_until(lambda: server.stats().done, "the end")
    assert bool(snapshots(folder)) == (snapshot_nbytes == EVERY_STEP)
    for life in range(2):
        code, said = started_again(address, folder, tmp_path / f"{life}.txt", "--workers", "1")
        assert code == 0
        assert said.startswith("All workers are done at version 3:")


@pytest.mark.timeout(120)
def test_a_server_started_again_on_a_run_that_lost_all_workers_ends_as_before(
    tmp_path: Path,
) -> None:
    address, folder = free_address(), tmp_path / "log"
    options = {"on_loss": "continue", "loss_seconds": 0.2, "snapshot_nbytes": EVERY_STEP}
    with served(address, folder, workers=1, **options) as server:
        net, client = attached(address)
        step(net, client, 3)
        abandon(client)
        wait_until(lambda: server.stats().done, "the loss")
    code, said = started_again(address, folder, tmp_path / "0.txt", "--workers", "1")
    assert code == 1
    assert said.startswith("Lost workers: 0. The run ended at version 3:")


@pytest.mark.timeout(120)
def test_who_was_lost_before_a_snapshot_is_still_lost_after_a_restart(tmp_path: Path) -> None:
    address, folder = free_address(), tmp_path / "log"
    options = {"on_loss": "continue", "loss_seconds": 0.2, "snapshot_nbytes": EVERY_STEP}
    with ExitStack() as stack:
        with served(address, folder, workers=2, **ASYNCHRONOUS, **options) as server:
            net, client = attached(address, workers=2)
            step(net, client, 1)
            other, lost = attached(address, rank=1, workers=2)
            step(other, lost, 1)
            abandon(lost)
            wait_until(lambda: server.stats().lost == (1,), "the loss")
            step(net, client, 3)
        assert snapshots(folder)
        stack.callback(client.close)
        closing = threading.Thread(target=client.close)
        closing.start()
        rules = ("--workers", "2", "--quorum", "1", "--staleness", "100")
        code, said = started_again(address, folder, tmp_path / "0.txt", *rules)
        closing.join(PATIENCE_SECONDS)
    assert code == 0
    assert re.match(r"Lost workers: 1\. The run ended at version \d+:", said)


def say(service: Service, connection: InprocConnection, *messages: Message) -> None:
    for message in messages:
        joined = isinstance(message, Leave)
        run, epoch = (service.journal.run, service.journal.epoch) if joined else (0, 0)
        frame = encode(message, run=run, epoch=epoch, worker=0, step=0)
        connection.send(pack(frame), deadline_seconds=10.0)


def test_a_worker_that_comes_when_all_have_just_left_does_not_begin_the_run_again(
    tmp_path: Path,
) -> None:
    """The server ends in the same turn, and would end with a worker that it has let in."""
    listener = InprocListener()
    description = describe([tw.Key("a", (3,))], RECIPE, server=0, servers=1)
    joining = (description, Join(1, 1, digest_of(description, 1), 0))
    log, recovery = Log.open(tmp_path, new_run=7)
    with log:
        rules = Rules.synchronous(1)
        service = Service(listener, RECIPE, rules, journal=Journal(log), recovery=recovery)
        first = listener.connect()
        say(service, first, *joining)
        service.serve(stop=lambda: bool(service.members.workers), tick_seconds=0.01)
        say(service, first, Leave(Reason.DONE, ""))
        say(service, listener.connect(), *joining)
        service.serve(tick_seconds=0.01)
    log, recovery = Log.open(tmp_path, new_run=7)
    with log:
        again = Service(listener, RECIPE, rules, journal=Journal(log), recovery=recovery)
        assert again.training.is_over
