"""``thinwire reproduce``: what it prints and leaves behind, and that it goes on where it was."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from thinwire.cli.main import main
from thinwire.cli.start import INTERRUPTED
from thinwire_lab.train.engines.base import Tally


def reproduce(out: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["reproduce", *arguments, "--out", str(out)])


@pytest.mark.parametrize(
    ("paper", "tables"), [("dgc", 1), ("doublesqueeze", 1), ("clan", 1), ("optimizers", 4)]
)
def test_smoke_runs_everything_and_writes_a_report(tmp_path: Path, paper: str, tables: int) -> None:
    outcome = reproduce(tmp_path, paper, "--scale", "smoke")
    assert outcome.exit_code == 0, outcome.output
    assert "One seed cannot separate a difference from chance." in outcome.output
    assert re.search(r"perplexity +dense +loss +dense +fp(16|32) +ways +run", outcome.output)
    assert "…" not in outcome.output
    html = (tmp_path / "report.html").read_text()
    assert html.count("<svg") == tables
    assert "http" not in html
    again = reproduce(tmp_path, paper, "--scale", "smoke")
    assert again.exit_code == 0
    assert "run 1 of" not in again.output


def test_ctrl_c_keeps_what_there_is_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, count = Tally.add, iter(range(100))

    def interrupt(tally: Tally, *arguments: object) -> None:
        add(tally, *arguments)  # type: ignore[arg-type]
        if next(count) == 30:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Tally, "add", interrupt)
    stopped = reproduce(tmp_path, "clan", "--scale", "smoke")
    assert stopped.exit_code == INTERRUPTED
    assert "Stopped: 1 of 7 runs are finished." in stopped.output
    assert "the same command goes on" in stopped.output
    assert "1 of 7 runs" in (tmp_path / "report.html").read_text()
    monkeypatch.undo()
    resumed = reproduce(tmp_path, "clan", "--scale", "smoke")
    assert resumed.exit_code == 0
    assert "run 2 of 7: bert/topk, seed 0, 20 steps, goes on after step 11" in resumed.output


def test_only_and_list(tmp_path: Path) -> None:
    outcome = reproduce(tmp_path, "dgc", "--scale", "smoke", "--only", "*/dense")
    assert "run 1 of 1: cifar-4/dense" in outcome.output
    listed = reproduce(tmp_path, "dgc", "--scale", "smoke", "--list")
    assert "cifar-4/dense  seed 0  finished  gpt  dense" in listed.output
    assert "cifar-4/dgc  seed 0  to do  gpt  dgc(0.001)" in listed.output
    assert "cifar-4: task gpt, scale smoke, 4 workers. A tiny GPT on" in listed.output
    wrong = reproduce(tmp_path, "dgc", "--only", "nothing")
    assert wrong.exit_code == 1
    assert "Error: --only 'nothing' matches no run" in wrong.stderr
