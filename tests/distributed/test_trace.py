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
from tests.distributed.training import RECIPES, Trainer, wide_network

STEPS = 3
STAGES = ("encode", "serve", "decode")
Bar = dict[str, Any]


def traced(folder: str, options: dict[str, Any]) -> int:
    trainer = Trainer(RECIPES["1 bit"], net=wide_network(), **options)
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
    assert run(traced, str(tmp_path), {"exchange": exchange}, ranks=2) == [4 + STEPS] * 2
    for rank in range(2):
        check_threads(checked_events(tmp_path / f"{rank}.json"))


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
def test_without_ddp_backward_encodes_and_waits_for_the_rest(tmp_path: Path, exchange: str) -> None:
    options = {"exchange": exchange, "module": True}
    assert run(traced, str(tmp_path), options, ranks=2) == [4 + STEPS] * 2
    for rank in range(2):
        found = by_thread(checked_events(tmp_path / f"{rank}.json"))
        assert {what for who, what in found if who == "MainThread"} >= {
            "encode",
            "wait for the exchange",
        }
        assert {what for who, what in found if who == "thinwire"} >= {"decode", "wait for rank"}


def checked_events(file: Path) -> list[Bar]:
    """Of a trace whose bars are where they belong."""
    events: list[Bar] = json.loads(file.read_text())["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    check_times(bars)
    check_units(bars)
    return events


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


def by_thread(events: list[Bar]) -> set[tuple[str, str]]:
    """Who did what."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return {(names[e["tid"]], e["name"]) for e in events if e["ph"] == "X"}


def check_threads(events: list[Bar]) -> None:
    found = by_thread(events)
    assert {(f"thinwire {stage}", stage) for stage in STAGES} <= found
    assert ("MainThread", "wait for the exchange") in found
    assert any(what == "wait for rank" for _, what in found)


def end(bar: Bar) -> float:
    return float(bar["ts"] + bar["dur"])
