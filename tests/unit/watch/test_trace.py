"""A trace is a file that viewers of Chrome traces can read, whatever happens meanwhile."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw


def read(file: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    return events


def test_spans_nest_and_threads_have_names(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with tw.trace(file, name="rank 3", process=3) as tracing:
        with tracing.span("outer", 7), tracing.span("inner"):
            pass
        work = threading.Thread(target=_do_nothing_within, args=(tracing,), name="own")
        work.start()
        work.join(timeout=10)
    bars = {event["name"]: event for event in read(file) if event["ph"] == "X"}
    assert set(bars) == {"outer", "inner", "beside"}
    assert bars["outer"]["args"] == {"about": "7"}
    assert bars["outer"]["ts"] <= bars["inner"]["ts"]
    assert _end(bars["inner"]) <= _end(bars["outer"])
    names = {
        (event["name"], event["tid"]): event["args"]["name"]
        for event in read(file)
        if event["ph"] == "M"
    }
    assert names["process_name", 0] == "rank 3"
    assert names["thread_name", bars["beside"]["tid"]] == "own"
    assert {event["pid"] for event in read(file)} == {3}


def _do_nothing_within(tracing: tw.Trace) -> None:
    with tracing.span("beside"):
        pass


def _end(bar: dict[str, Any]) -> float:
    return float(bar["ts"] + bar["dur"])


def test_a_failed_step_is_traced_too(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with pytest.raises(RuntimeError), tw.trace(file) as tracing, tracing.span("backward"):
        raise RuntimeError("out of memory")
    assert [event["name"] for event in read(file) if event["ph"] == "X"] == ["backward"]


def test_traces_of_processes_merge(tmp_path: Path) -> None:
    files = [tmp_path / f"{rank}.json" for rank in range(2)]
    for rank, file in enumerate(files):
        with tw.trace(file, process=rank) as tracing, tracing.span("step"):
            pass
    merged: Any = tw.merge_traces(files)
    assert [event["pid"] for event in merged["traceEvents"] if event["ph"] == "X"] == [0, 1]
