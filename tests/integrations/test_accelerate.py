"""A training loop with a real Accelerator on two processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from accelerate import Accelerator

import thinwire as tw
from tests.distributed.launch import run
from tests.integrations.ranks import (
    LEARNING_RATE,
    RECIPE,
    Report,
    check_resumed,
    check_whole,
    data,
    like_torchrun,
    loss_of,
    network,
    report,
)
from thinwire.integrations.accelerate import compress


def train(folder: str, *, resume: bool) -> Report:
    like_torchrun()
    accelerator = Accelerator(cpu=True)
    net = network()
    optimizer = tw.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    model, wrapped, loader = accelerator.prepare(net, optimizer, data())
    compression = compress(accelerator, model, RECIPE, optimizer=wrapped)
    if resume:
        accelerator.load_state(folder)
    batches = []
    for epoch in range(1 if resume else 0, 2):
        for batch in loader:
            batches.append(batch)
            accelerator.backward(loss_of(model, batch))
            wrapped.step()
            wrapped.zero_grad()
        if epoch == 0:
            accelerator.save_state(folder)
    return report(net, compression, batches)


def test_two_processes_train_as_the_virtual_cluster_and_resume_exactly(tmp_path: Path) -> None:
    whole = run(partial(train, str(tmp_path), resume=False), ranks=2)
    check_whole(whole, network(), loss_of)
    assert {path.name for path in tmp_path.glob("thinwire*")} == {
        "thinwire_rank_0.pt",
        "thinwire_rank_1.pt",
    }
    resumed = run(partial(train, str(tmp_path), resume=True), ranks=2, keep=False)
    check_resumed(resumed, whole)


def test_one_process_is_refused_with_advice() -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(tw.ConfigError, match="accelerate launch --num_processes"):
        compress(accelerator, accelerator.prepare(network()), RECIPE)
