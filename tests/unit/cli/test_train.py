"""``thinwire train``: what it prints, refuses, and leaves behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from thinwire.cli.main import main
from thinwire.cli.start import INTERRUPTED
from thinwire_lab.data.files import VARIABLE
from thinwire_lab.train.engines.base import Tally


def train(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["train", *arguments])


def gpt(out: Path, *more: str) -> Result:
    return train("gpt", "--scale", "smoke", "--workers", "2", "--out", str(out), *more)


def test_a_run_prints_scores_and_bytes_and_writes_json(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    outcome = gpt(tmp_path / "run", "--recipe", "dgc(0.01)", "--json", str(path))
    assert outcome.exit_code == 0, outcome.output
    assert "The run has 20 steps (2 epochs)" in outcome.output
    assert "step 10, epoch 1: loss " in outcome.output
    assert "After 20 steps, on test data: loss " in outcome.output
    assert " of dense. " in outcome.output
    report = json.loads(path.read_text())
    assert report["finished"]
    assert report["settings"]["task"] == "gpt"
    assert report["test"]["metric"] == "perplexity"
    assert report["epoch"]["ratio"] > 10
    assert [event["kind"] for event in report["events"]] == ["epoch", "evaluation"] * 2 + ["test"]


def test_ctrl_c_saves_says_how_to_go_on_and_the_same_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gpt(tmp_path / "whole")
    add = Tally.add

    def interrupt(tally: Tally, *arguments: object) -> None:
        add(tally, *arguments)  # type: ignore[arg-type]
        if tally.steps == 13:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Tally, "add", interrupt)
    stopped = gpt(tmp_path / "run")
    assert stopped.exit_code == INTERRUPTED
    assert "Stopped. Everything is kept in" in stopped.output
    monkeypatch.undo()
    resumed = gpt(tmp_path / "run")
    assert resumed.exit_code == 0
    assert "The run goes on after step 13 of 20 steps" in resumed.output
    last = "After 20 steps, on test data"
    assert _line(resumed, last) == _line(expected, last)


def _line(outcome: Result, start: str) -> str:
    return next(line for line in outcome.output.splitlines() if line.startswith(start))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["gtp"],
            "Error: no task is named 'gtp'; did you mean gpt? Tasks: fashion, gpt, demo, ",
        ),
        (["gpt", "--scale", "paper"], "Error: gpt has no scale 'paper', expected one of smoke"),
        (
            ["bert"],
            "Error: no folder of data sets is given: put ptb.train.txt, ptb.valid.txt, "
            "ptb.test.txt from http",
        ),
        (["bert"], "into a folder DIR/ptb, and give --data DIR, or set $THINWIRE_DATA to DIR"),
        (
            ["bert", "--momentum", "0.5"],
            "Error: bert is not trained with SGD: there is no momentum",
        ),
        (["gpt", "--recipe", "dgc(2)"], "Error: topk: ratio is the fraction kept"),
        (
            ["gpt-lans", "--scale", "smoke", "--recipe", "dgc"],
            "Error: gpt-lans is not trained with SGD, so no recipe can keep its momentum, as dgc "
            "does: use another, such as clan(TopK(0.01)), or a task with SGD: fashion, gpt",
        ),
        (
            ["gpt", "--recipe", "dgc(momentum=0.5)"],
            "Error: gpt has momentum 0.9, but the recipe keeps 0.5: leave that out of the recipe, "
            "or give --momentum 0.5",
        ),
        (
            ["gpt", "--recipe", "dgc(nesterov=True)"],
            "Error: gpt has momentum without nesterov, but the recipe keeps it with nesterov",
        ),
        (["gpt", "--recipe", "dcg"], "Error: dcg is not known here; did you mean dgc?\n"),
        (["gpt", "--recipe", "clan(topk(0.1))"], "topk is not known here; did you mean TopK?\n"),
        (
            ["gpt", "--recipe", "xyz"],
            "Error: xyz is not known here, expected one of AdamMomentum, BFloat16, ",
        ),
        (
            ["gpt", "--recipe", "doublesqueeze(OneBit)"],
            "Error: OneBit needs parentheses, with its settings in them if any: OneBit()\n",
        ),
        (["gpt", "--recipe", "clan(onebit)"], "onebit is not known here; did you mean OneBit?\n"),
        (["gpt", "--recipe", "dgc(1 / 100)"], "Error: 1 / 100 is not a value for a recipe"),
        (["gpt", "--steps", "1", "--epochs", "1"], "Error: train: give steps or epochs, not both"),
    ],
)
def test_refusals_are_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    outcome = train(*arguments, "--out", str(tmp_path / "run"))
    assert outcome.exit_code == 1
    assert message.lower() in outcome.stderr.lower()
    assert outcome.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_missing_data_is_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    outcome = train("lstm-small", "--data", str(tmp_path), "--out", str(tmp_path / "run"))
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith("Error: put ptb.train.txt, ptb.valid.txt, ptb.test.txt from")
    assert outcome.stderr.endswith(f"into {tmp_path / 'ptb'}\n")


def test_another_run_in_the_folder_is_refused_before_anything_is_printed(tmp_path: Path) -> None:
    gpt(tmp_path / "run", "--steps", "2")
    outcome = gpt(tmp_path / "run", "--steps", "3")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "has another run in it, with steps 2, not 3" in outcome.stderr


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_list_has_every_task_with_its_size_and_needs(columns: str) -> None:
    outcome = CliRunner(env={"COLUMNS": columns}).invoke(main, ["train", "--list"])
    assert outcome.exit_code == 0
    rows = [line.split()[:5] for line in outcome.output.splitlines()]
    assert ["gpt", "small", "631,680", "8", "nothing"] in rows
    assert ["resnet110", "paper", "1,727,962", "164", "cifar-10-batches-bin"] in rows
    assert ["lstm-large", "paper", "51,034,000", "40", "ptb"] in rows


@pytest.mark.parametrize("advice", ["--momentum 0.5 --recipe dgc(momentum=0.5)", "--recipe dgc"])
def test_the_corrected_command_runs_in_the_same_folder(advice: str, tmp_path: Path) -> None:
    refused = gpt(tmp_path / "run", "--steps", "2", "--recipe", "dgc(momentum=0.5)")
    assert refused.exit_code == 1
    corrected = gpt(tmp_path / "run", "--steps", "2", *advice.split())
    assert corrected.exit_code == 0, corrected.output
