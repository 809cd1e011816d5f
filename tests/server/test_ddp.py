"""DDP over parameter servers: what the sharded exchange computes, bit for bit."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.distributed as dist

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.training import RECIPES, Trainer, weights
from tests.server.processes import wait_until
from tests.server.servers import RunningServer
from tests.transports import pair
from thinwire.server.settings import Rules

STEPS = 6


def train(name: str, servers: list[str], steps: int = STEPS) -> tuple[list[bytes], int, int]:
    options: dict[str, Any] = {"exchange": "servers", "servers": servers} if servers else {}
    trainer = Trainer(RECIPES[name], **options)
    trainer.train(range(steps))
    assert trainer.compression is not None
    stats = trainer.compression.stats()
    trainer.compression.close()
    return weights(trainer.net), stats.pushed_nbytes, stats.sent_nbytes


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_servers_average_as_the_sharded_exchange_does(name: str, ranks: int) -> None:
    """With as many servers as ranks, which then own what the ranks would."""
    rules = Rules.synchronous(ranks)
    with ExitStack() as stack:
        servers = [stack.enter_context(RunningServer(RECIPES[name], rules)) for _ in range(ranks)]
        served = run(train, name, [one.address for one in servers], ranks=ranks)
        assert all(one.error is None and one.service.done for one in servers)
    sharded = run(train, name, [], ranks=ranks)
    assert [found for found, _, _ in served] == [found for found, _, _ in sharded]
    assert [pushed for _, pushed, _ in served] == [pushed for _, pushed, _ in sharded]
    assert all(sent > pushed for _, pushed, sent in served)


def train_half(servers: list[str], saved: list[Any]) -> tuple[list[bytes], Any]:
    """Half of the training, and what is needed for the other half."""
    trainer = Trainer(RECIPES["1 bit"], exchange="servers", servers=servers)
    assert trainer.compression is not None
    if saved:
        net, compression = saved[dist.get_rank()]
        trainer.net.load_state_dict(net)
        trainer.compression.load_state_dict(compression)
    begin = STEPS // 2 if saved else 0
    trainer.train(range(begin, begin + STEPS // 2))
    return weights(trainer.net), (trainer.net.state_dict(), trainer.compression.state_dict())


def test_new_processes_go_on_from_a_checkpoint_of_the_servers_version() -> None:
    with RunningServer(RECIPES["1 bit"], Rules.synchronous(2)) as server:
        first = run(train_half, [server.address], [], ranks=2, keep=False)
        wait_until(lambda: not server.service.members.workers, "both are away")
        second = run(train_half, [server.address], [s for _, s in first], ranks=2, keep=False)
        wait_until(lambda: not server.service.members.workers, "both are away")
        texts = run(refused, [server.address], ranks=2, keep=False)
    undisturbed = run(train, "1 bit", [], ranks=2)
    assert [found for found, _ in second] == [found for found, _, _ in undisturbed]
    assert all("servers are at version 6, this training is at 0" in text for text in texts)


def refused(servers: list[str]) -> str:
    try:
        Trainer(RECIPES["1 bit"], exchange="servers", servers=servers).step(0)
    except tw.ThinwireError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_asynchronous_servers_are_refused() -> None:
    with RunningServer(RECIPES["1 bit"], Rules(2, 1, 4)) as server:
        texts = run(refused, [server.address], ranks=2, keep=False)
    assert all("is not synchronous (quorum 1 of 2, staleness 4)" in text for text in texts)


def refused_alone(options: dict[str, Any]) -> str:
    try:
        Trainer(RECIPES["1 bit"], **options)
    except tw.ConfigError as error:
        return str(error)
    return ""


def test_what_cannot_be_is_refused() -> None:
    [text] = run(refused_alone, {"exchange": "servers"}, ranks=1)
    assert "go together" in text
    _, worker = pair()
    [text] = run(refused_alone, {"keys": worker}, ranks=1)
    assert "keys protect what goes to servers" in text
    with_scaler: dict[str, Any] = {
        "exchange": "servers",
        "servers": ["tcp://127.0.0.1:5555"],
        "scaler": torch.amp.GradScaler("cpu"),
    }
    [text] = run(refused_alone, with_scaler, ranks=1)
    assert "GradScaler" in text
