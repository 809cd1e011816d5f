"""A timeline shows every stage of every unit, in order, and the waits within them."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.training import RECIPES, Trainer

STEPS = 3
STAGES = ("encode", "serve", "decode")
Bar = dict[str, Any]


def traced(folder: str, exchange: str) -> int:
    trainer = Trainer(RECIPES["1 bit"], exchange=exchange)
    assert trainer.compression is not None
    trainer.train(range(2))
    rank = dist.get_rank()
    file = Path(folder) / f"{rank}.json"
    with tw.trace(file, trainer.compression, process=rank) as tracing:
        for step in range(STEPS):
            with tracing.span("step", step):
                trainer.step(step)
    nbytes = file.stat().st_size
    trainer.train(range(2))
    assert file.stat().st_size == nbytes
    return trainer.compression.steps


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
def test_stages_of_a_unit_are_there_in_order(tmp_path: Path, exchange: str) -> None:
    assert run(traced, str(tmp_path), exchange, ranks=2) == [4 + STEPS] * 2
    for rank in range(2):
        events = json.loads((tmp_path / f"{rank}.json").read_text())["traceEvents"]
        bars = [event for event in events if event["ph"] == "X"]
        check_times(bars)
        check_units(bars)
        check_threads(events)


def check_times(bars: list[Bar]) -> None:
    """Every bar lies within the step that it belongs to."""
    steps = sorted((b for b in bars if b["name"] == "step"), key=lambda b: float(b["ts"]))
    assert [bar["args"]["about"] for bar in steps] == ["0", "1", "2"]
    for bar in bars:
        assert bar["dur"] >= 0
        assert any(s["ts"] <= bar["ts"] and end(bar) <= end(s) for s in steps), bar


def check_units(bars: list[Bar]) -> None:
    units: dict[str, dict[str, Bar]] = defaultdict(dict)
    for bar in bars:
        if bar["name"] in STAGES:
            assert bar["name"] not in units[bar["args"]["about"]]
            units[bar["args"]["about"]][bar["name"]] = bar
    assert len(units) > STEPS, "a step has more than one unit"
    assert {about.partition(":")[0] for about in units} == {"step 2", "step 3", "step 4"}
    for stages in units.values():
        assert set(stages) == set(STAGES)
        for first, second in itertools.pairwise(STAGES):
            assert end(stages[first]) <= stages[second]["ts"]


def check_threads(events: list[Bar]) -> None:
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = {(names[e["tid"]], e["name"]) for e in events if e["ph"] == "X"}
    assert {(f"thinwire {stage}", stage) for stage in STAGES} <= found
    assert ("MainThread", "wait for the exchange") in found
    assert any(what == "wait for rank" for _, what in found)


def end(bar: Bar) -> float:
    return float(bar["ts"] + bar["dur"])
