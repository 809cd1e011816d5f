"""Real steps go the way that docs/architecture.md describes."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from tests.distributed.launch import run
from tests.docs.calls import Calls, watched, watched_threads
from tests.docs.walks import DDP, PACKAGE, PUSH, RESTART, names_in, walk

RECIPE = tw.doublesqueeze(tw.OneBit())


def functions(title: str) -> Calls:
    """Those that a walk names, without classes: dataclasses have no code in their file."""
    return {
        (file, name.rpartition(".")[2])
        for file, name in walk(title).steps
        if names_in(PACKAGE / file)[name] is ast.FunctionDef
    }


def train(net: nn.Module, steps: int) -> None:
    for _ in range(steps):
        net(torch.randn(4, 200)).sum().backward()


def ddp_step() -> Calls:
    """What one step calls, after the first ones have prepared everything."""
    background: Calls = set()
    calls: Calls = set()
    with watched_threads(background):
        model = DistributedDataParallel(nn.Linear(200, 300))
        compression = tw.compress_ddp(model, RECIPE)
    with compression:
        train(model, 2)
        background.clear()
        with watched(calls):
            train(model, 1)
    return calls | background


def test_a_gradient_goes_through_ddp_as_described() -> None:
    called = run(ddp_step, ranks=2)[0]
    setup = {("hooks/ddp.py", "_register")}  # which gives DDP the hook, before the step
    assert functions(DDP) - setup - called == set()
    files = {file for file, _ in called}
    assert files - walk(DDP).files - set(walk(DDP).asked) == set()
    assert set(walk(DDP).asked) - files == set()


class Cluster:
    """A server in a thread and one client, with a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = "tcp://127.0.0.1:0"
        self.start()

    def start(self) -> None:
        self.server = tw.Server(
            self.address, RECIPE, workers=1, log_dir=self.folder, snapshot_nbytes=1
        )
        self.address = self.server.address
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def restart(self) -> None:
        self.server.stop()
        self.thread.join(timeout=60)
        self.start()


def test_a_push_goes_through_a_server_and_a_restart_as_described(tmp_path: Path) -> None:
    background: Calls = set()
    calls: Calls = set()
    net = nn.Linear(200, 300)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with watched_threads(background), watched(calls):
        cluster = Cluster(tmp_path)
        with tw.Client([cluster.address], RECIPE, rank=0, workers=1) as client:
            client.attach(net, optimizer)
            train_with(client, net, steps=80)  # until there is a snapshot
            pushed = calls | background
            cluster.restart()
            train_with(client, net, steps=2)
        cluster.thread.join(timeout=60)
    assert functions(PUSH) - pushed == set()
    assert functions(RESTART) - calls - background == set()


def train_with(client: tw.Client, net: nn.Module, *, steps: int) -> None:
    for _ in range(steps):
        train(net, 1)
        client.step()
        net.zero_grad()
