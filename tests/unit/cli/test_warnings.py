"""Warnings of a worker reach the user who started the run, not only a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slow import slow
from tests.unit.cli.command import Command


@pytest.mark.parametrize("workers", [2, slow(3)])
def test_every_worker_that_leaves_something_out_says_so(workers: int, tmp_path: Path) -> None:
    """With such a rate the second gradient is not finite, and a server must not get it."""
    arguments = ["train", "gpt", "--scale", "smoke", "--backend", "server", "--steps", "3"]
    arguments += ["--workers", str(workers), "--recipe", "dgc", "--learning-rate", "1e30"]
    with Command(*arguments, "--out", str(tmp_path)) as command:
        code, output, errors = command.end()
    left_out = "step 1: an inf or a nan is left out"
    assert code == 1
    assert "training diverged" in errors
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    warned = [(line["worker"], line["text"]) for line in log if line["kind"] == "warning"]
    assert sorted(warned) == [(worker, left_out) for worker in range(workers)]
    for worker in range(workers):
        assert f"worker {worker} warns: {left_out}" in output
