"""The benchmark of training runs, resumes, and says what it measured. No test judges a time."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st

from thinwire.cli.main import main
from thinwire.errors import ConfigError, ThinwireError
from thinwire.recipe_text import read_recipe
from thinwire_lab.bench.links.cases import DDP, NONE
from thinwire_lab.bench.training.report import COLUMNS, LinkTable, make_page, make_tables
from thinwire_lab.bench.training.result import Point, ResultStore, TrainingResult
from thinwire_lab.bench.training.run import stops
from thinwire_lab.bench.training.settings import (
    FREE,
    WAYS,
    Link,
    TrainingBench,
    TrainingRun,
    numel_of,
    task_of,
)
from thinwire_lab.cli.show.bench_training import TrainingProgress

SLOW = Link("100mbit", "10ms")
POWERSGD, LOCAL = WAYS["powersgd4"], WAYS["average-8"]
needs_rights = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and tc"
)


def test_every_recipe_can_be_read() -> None:
    for way in WAYS.values():
        assert bool(way.recipe) == bool(way.exchange)
        if way.recipe:
            read_recipe(way.recipe)


def test_the_network_has_ten_million_parameters_and_the_rate_falls_to_the_end() -> None:
    assert numel_of("small") == 10_744_704
    for steps in (10, 3200):
        training = task_of("small", steps).training
        rates = [training.rate(step, 1, ()) for step in range(steps)]
        assert max(rates) == pytest.approx(training.learning_rate, rel=0.1)
        assert rates[-1] < 0.05 * training.learning_rate


@given(st.sampled_from(list(WAYS.values())), st.integers(1, 5000))
def test_hosts_pause_where_no_exchange_is_under_way(way: Any, steps: int) -> None:
    pauses = stops(way, steps)
    assert pauses[-1] == steps
    assert pauses == sorted(set(pauses))
    if way.rounds is None:
        assert pauses[0] == min(3, steps), "the first steps, which are not like the others"
    else:
        assert all((stop - way.rounds.delay) % way.period == 0 for stop in pauses[:-1])


def test_no_communication_is_measured_on_one_link_alone() -> None:
    runs = TrainingBench(steps=7, links=("1gbit", "unlimited", "100mbit-10ms")).runs()
    assert [run.link for run in runs if run.way == NONE] == [FREE]
    assert len(runs) == 3 * (len(WAYS) - 1) + 1
    assert {run.steps for run in runs} == {7}
    assert runs[0].link == Link("1gbit")
    assert runs[-1].link == SLOW


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--links", "fast"),
        ("--links", "1gbit-soon"),
        ("--steps", "0"),
        ("--longest", "0"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(
    option: str, value: str, tmp_path: Path
) -> None:
    check_refused(invoke(tmp_path, option, value))


def test_nothing_to_run_is_refused(tmp_path: Path) -> None:
    check_refused(invoke(tmp_path, "--only", "none", "--links", "1gbit"))


def check_refused(result: Result) -> None:
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1, result.stderr


def make_result(*losses: float, step_seconds: float = 1.0, steps: int = 100) -> TrainingResult:
    """Scores at equal distances; without any, a run that was only timed."""
    apart = steps // max(1, len(losses))
    points = (
        Point(apart * n, apart * n * step_seconds, loss) for n, loss in enumerate(losses, start=1)
    )
    return TrainingResult(
        tuple(points), steps, step_seconds, 5e3, 6e3, False, 0.0, "cpu", "x", "now"
    )


def some_results() -> dict[TrainingRun, TrainingResult]:
    def run(link: Link, way: Any, steps: int = 100) -> TrainingRun:
        return TrainingRun(link, way, "smoke", steps)

    return {
        run(FREE, NONE): make_result(step_seconds=0.6),
        run(SLOW, DDP): make_result(step_seconds=60.0),
        run(FREE, DDP): make_result(4.0, 3.0, 2.5, 2.0, step_seconds=1.2),
        run(SLOW, POWERSGD): make_result(4.0, 3.0, 2.5, 2.1, step_seconds=3.0),
        run(SLOW, LOCAL): make_result(4.0, 3.0, 2.5, 2.2, step_seconds=0.6),
        run(SLOW, LOCAL, 200): make_result(4.0, 3.0, 2.02, 1.9, step_seconds=0.6, steps=200),
    }


def rows_of(table: LinkTable) -> dict[str, dict[str, str]]:
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in table.cells()}


def test_times_to_a_loss_are_read_from_curves() -> None:
    free, slow = make_tables(some_results())
    assert (free.link, slow.link) == (FREE, SLOW)
    for rows in (rows_of(free), rows_of(slow)):
        assert rows["no communication"]["minutes to DDP's loss"] == "1"
        assert rows["no communication"]["times none"] == "1.00"
    assert rows_of(free)["DDP fp32"]["minutes to DDP's loss"] == "2"
    rows = rows_of(slow)
    assert rows["DDP fp32"]["minutes to DDP's loss"] == "100"
    assert rows["DDP fp32"][""] == "steps x curve"
    assert rows["DDP fp32"]["times none"] == "100.00"
    assert rows["PowerSGD rank 4"]["to 1 % above"] == "not reached"
    assert rows["PowerSGD rank 4"]["above DDP"] == "+5.0%"


def test_a_way_may_have_more_steps_and_is_compared_by_time() -> None:
    rows = rows_of(make_tables(some_results())[1])
    label = "averaging in 1 bit, every 8"
    assert rows[label]["faster than PowerSGD"] == "", "it does not get there itself"
    longer = rows[f"{label}, 200 steps"]
    assert longer["to 1 % above"] == "1.5", "150 steps"
    assert longer["faster than PowerSGD"] == f"> {300 / 90:.2f}"
    assert longer[""] == ""


def test_a_loss_between_two_scores_is_reached_between_them() -> None:
    (table,) = make_tables(
        {TrainingRun(FREE, DDP, "smoke", 4): make_result(4.0, 3.0, 2.5, 2.0, steps=4)}
    )
    (course,) = table.courses
    assert course.seconds_to(5.0) == 1.0
    assert course.seconds_to(2.75) == 2.5
    assert course.seconds_to(1.9) is None


def test_the_page_has_all_rows_and_a_line_for_each_drawn_way() -> None:
    html = make_page(some_results(), command="thinwire bench").html()
    for table in make_tables(some_results()):
        assert f"<h2>{table.title}</h2>" in html
        assert all(row[0] in html for row in table.cells())
    assert html.count("<svg") == 2
    slow = html.rpartition("<svg")[2]
    assert "3.5</text>" not in slow, "the part where all fall alike is left out"
    assert slow.count('class="line') == 4
    assert "every 8, 200 steps</span>" in slow, "of two runs of a way the better one is drawn"


def test_results_are_kept_and_those_of_another_version_refused(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    run = TrainingRun(SLOW, LOCAL, "smoke", 100)
    assert not store.has(run)
    store.save(run, make_result(2.0))
    assert store.has(run)
    assert store.finished("smoke") == {run: make_result(2.0)}
    assert store.finished("small") == {}
    (file,) = (tmp_path / "results").iterdir()
    values = json.loads(file.read_text())
    values["run"]["recipe"] = "dense"
    file.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="of another version, with recipe dense"):
        store.has(run)
    file.write_text("{")
    with pytest.raises(ThinwireError, match="cannot be read"):
        store.has(run)


TINY = ("--links", "100mbit-10ms", "--steps", "30")


@needs_rights
def test_command_trains_reports_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = invoke(tmp_path, *TINY, "--only", "ddp", "--only", "average-8", interrupt=monkeypatch)
    assert stopped.exit_code == 130, stopped.output
    assert "100mbit, 10ms round trip" in stopped.stdout
    assert [file.stem for file in results_in(tmp_path)] == ["smoke-100mbit-10ms-ddp-30"]
    result = invoke(tmp_path, *TINY, "--only", "ddp", "--only", "average-8")
    assert result.exit_code == 0, result.output
    assert "1 of 1: averaging in 1 bit, every 8 over 100mbit-10ms" in result.stderr
    html = (tmp_path / "report.html").read_text()
    assert "DDP fp32" in html
    assert "every 8" in html
    local, ddp = (json.loads(file.read_text())["result"] for file in results_in(tmp_path))
    assert ddp["points"][-1]["step"] == local["points"][-1]["step"] == 30
    assert ddp["points"][-1]["loss"] < 4.0, "without training it is 4.85"
    assert ddp["step_seconds"] > 0.01, "a round trip at least"
    assert local["sent_nbytes"] < ddp["sent_nbytes"] / 20


@needs_rights
def test_a_way_that_takes_too_long_is_only_timed(tmp_path: Path) -> None:
    result = invoke(tmp_path, *TINY, "--only", "ddp", "--longest", "0.001")
    assert result.exit_code == 0, result.output
    assert "timed only" in result.stderr
    (file,) = results_in(tmp_path)
    values = json.loads(file.read_text())["result"]
    assert (values["points"], values["steps"]) == ([], 9)


def invoke(out: Path, *options: str, interrupt: pytest.MonkeyPatch | None = None) -> Result:
    command = ["bench", "training", "--scale", "smoke", *options, "--out", str(out)]
    if interrupt is None:
        return CliRunner().invoke(main, command)
    with interrupt.context() as patch:
        patch.setattr(TrainingProgress, "begin", interrupted_at_the_second)
        return CliRunner().invoke(main, command)


def interrupted_at_the_second(
    self: TrainingProgress, run: TrainingRun, *, number: int, count: int
) -> None:
    if number == 2:
        raise KeyboardInterrupt


def results_in(out: Path) -> list[Path]:
    return sorted((out / "results").iterdir())


def test_without_dense_training_there_is_no_loss_to_reach() -> None:
    results = {run: result for run, result in some_results().items() if run.way != DDP}
    rows = rows_of(make_tables(results)[1])
    assert rows["PowerSGD rank 4"]["final loss"] == "2.1000"
    assert rows["PowerSGD rank 4"]["to 1 % above"] == ""
    assert rows["no communication"]["final loss"] == ""


def test_runs_on_a_busy_machine_say_so() -> None:
    results = some_results()
    for run, others in zip(results, (0.5, 0.3, 0.05), strict=False):
        results[run] = replace(results[run], others=others)
    free, slow = make_tables(results)
    assert rows_of(free)["no communication"][""] == "steps x curve, busy 50%"
    assert rows_of(slow)["DDP fp32"][""] == "steps x curve, busy 30%"
    assert rows_of(free)["DDP fp32"][""] == ""


def test_a_diverged_run_is_shown_as_one() -> None:
    results = some_results()
    run = next(iter(r for r in results if r.way == POWERSGD))
    results[run] = replace(results[run], diverged=True)
    assert rows_of(make_tables(results)[1])["PowerSGD rank 4"]["final loss"] == "diverged"
