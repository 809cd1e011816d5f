"""Plans of reproductions, and what is made of their results."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.file_limit import file_limit
from thinwire.errors import ConfigError, NonFiniteError, ThinwireError
from thinwire_lab.reproduce.execute import Executor, find_reproduction
from thinwire_lab.reproduce.plan import Reproduction, Trial, trials
from thinwire_lab.reproduce.report import make_page, read_links
from thinwire_lab.reproduce.result import Store, TrialResult
from thinwire_lab.reproduce.sizes import measure, size_blocks
from thinwire_lab.reproduce.table import cells, header, judge, make_rows, mean_curve, times
from thinwire_lab.tasks.base import SCALES
from thinwire_lab.tasks.registry import find_task
from thinwire_lab.train.events import Epoch, Evaluation, Event, Outcome
from thinwire_lab.train.interrupts import Interrupts
from thinwire_lab.train.loop import Loop
from thinwire_lab.train.plan import Plan
from thinwire_lab.train.recipe import complete_recipe

NAMES = ("dgc", "doublesqueeze", "clan")
ALL = [
    *(find_reproduction(name, scale) for name in NAMES for scale in SCALES),
    *(find_reproduction("optimizers", scale) for scale in ("smoke", "small")),
]
SMOKE = find_reproduction("dgc", "smoke")


@pytest.mark.parametrize("plan", ALL, ids=lambda plan: f"{plan.name}-{plan.experiments[0].scale}")
def test_every_plan_names_tasks_and_recipes_that_exist(plan: Reproduction) -> None:
    for trial in trials(plan, seeds=1):
        training = find_task(trial.experiment.task, trial.experiment.scale).training
        assert complete_recipe(trial.variant.recipe, training, 100)


@pytest.mark.parametrize("plan", ALL, ids=lambda plan: f"{plan.name}-{plan.experiments[0].scale}")
def test_every_trial_has_a_folder_of_its_own_and_dense_comes_first(plan: Reproduction) -> None:
    planned = trials(plan, seeds=3)
    assert len({trial.folder for trial in planned}) == len(planned)
    assert all(experiment.variants[0].recipe == "dense" for experiment in plan.experiments)


@pytest.mark.parametrize("name", [*NAMES, "optimizers"])
def test_smoke_needs_no_data(name: str) -> None:
    tasks = {e.task for e in find_reproduction(name, "smoke").experiments}
    assert all(find_task(task, "smoke").feed.needs == "" for task in tasks)


def test_main_variants_have_all_seeds_and_the_first_seed_comes_first() -> None:
    planned = trials(SMOKE, seeds=3)
    assert [trial.seed for trial in planned] == [0] * 6 + [1] * 3 + [2] * 3


@pytest.mark.parametrize(
    ("only", "count"), [(["lstm"], 3), (["lstm/dgc"], 1), (["*/dgc"], 4), (["lstm", "cifar-8"], 5)]
)
def test_only_chooses_experiments_and_rows(only: list[str], count: int) -> None:
    assert len(trials(find_reproduction("dgc", "small"), seeds=1, only=only)) == count


def test_optimizers_get_the_recipe_that_users_get() -> None:
    plan = find_reproduction("optimizers", "small")
    assert len(plan.experiments) == 20
    chosen = {e.name.partition("-")[2]: e.variants[1].recipe for e in plan.experiments}
    assert chosen == {
        "sgd": "doublesqueeze()",
        "momentum": "momentum_sgd()",
        "adamw": "adam()",
        "lans": "clan()",
    }
    more = {"fashion-momentum": 1}  # DGC with its defaults
    for e in plan.experiments:
        assert len({v.recipe for v in e.variants}) == len(e.variants) == 3 + more.get(e.name, 0)
    assert len(trials(plan, seeds=3, only=["gpt-adamw"])) == 9
    with pytest.raises(ConfigError, match="scale must be one of smoke, small, got 'paper'"):
        find_reproduction("optimizers", "paper")


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="'lsmt' matches no run, expected one of cifar-4/dense, "):
        trials(find_reproduction("dgc", "small"), seeds=1, only=["lsmt"])


def result(*losses: float, pushed: float = 100.0, diverged: str = "") -> TrialResult:
    events: list[Event] = [
        Epoch(10 * n, n, loss, 0.1, pushed, pushed, 1.0, 1.0)
        for n, loss in enumerate(losses, start=1)
    ]
    if not diverged:
        events.append(Outcome(10 * len(losses), losses[-1], "accuracy", 10 * losses[-1]))
    settings = {"steps": 20, "training": "Training()"}
    return TrialResult(settings, "machine", 8000, diverged, tuple(events))


def found(dense: list[TrialResult], other: list[TrialResult]) -> dict[Trial, TrialResult]:
    experiment = SMOKE.experiments[0]
    return {
        Trial(experiment, variant, seed): one
        for variant, results in zip(experiment.variants, (dense, other), strict=False)
        for seed, one in enumerate(results)
    }


def test_rows_have_mean_and_spread_over_seeds_and_ratios() -> None:
    results = found([result(5.0, 2.0), result(5.0, 4.0)], [result(5.0, 3.0, pushed=10.0)])
    dense, other = make_rows(SMOKE.experiments[0], results)
    assert dense.loss is not None
    assert (dense.seeds, dense.loss.mean, round(dense.loss.deviation or 0, 4)) == (2, 3.0, 1.4142)
    assert (dense.push, other.push, other.both) == (80.0, 800.0, 800.0)
    shown = cells(SMOKE.experiments[0], [dense, other])
    assert shown[1][2:5] == ("30.00 %", "3.0000", "+0.0 %")
    assert {len(row) for row in shown} == {len(header(SMOKE.experiments[0], [dense, other]))}


def test_rows_are_compared_by_loss_and_by_perplexity_where_that_is_shown() -> None:
    experiment = SMOKE.experiments[0]
    scores = ((2.9487, 19.08), (3.4557, 31.68))
    outcomes = (Outcome(10, loss, "perplexity", value) for loss, value in scores)
    one, two = (
        replace(whole, events=(whole.events[0], outcome))
        for whole, outcome in zip((result(1.0), result(1.0)), outcomes, strict=True)
    )
    rows = make_rows(experiment, found([one], [two]))
    assert cells(experiment, rows)[1][2:6] == ("31.68", "+66.0 %", "3.4557", "+17.2 %")
    assert header(experiment, rows)[2:6] == (
        "perplexity",
        "above dense",
        "held-out loss",
        "above dense",
    )
    pictures = make_rows(experiment, found([result(2.0)], [result(3.0)]))
    assert cells(experiment, pictures)[1][2:5] == ("30.00 %", "3.0000", "+50.0 %")
    assert header(experiment, pictures)[2:5] == ("accuracy", "held-out loss", "above dense")


def test_ratios_are_those_after_warm_up() -> None:
    before, after = (Epoch(n, n, 1.0, 0.1, b, b, 1.0, 1.0) for n, b in ((10, 500.0), (20, 300.0)))
    late = replace(result(1.0), events=(before, after))
    assert late.pushed == 100.0


def test_a_whole_run_counts_every_step() -> None:
    whole = replace(result(1.0), events=(Epoch(20, 2, 1.0, 0.1, 300.0, 100.0, 40.0, 1.0),))
    assert (whole.run_nbytes, whole.run_ratio) == (8000.0, 40.0)
    experiment = SMOKE.experiments[0]
    rows = make_rows(experiment, found([whole], []))
    shown = dict(zip(header(experiment, rows), cells(experiment, rows)[0], strict=True))
    assert (shown["run, MB"], shown["whole run"]) == ("0.0", "40x")


def test_a_row_that_diverged_is_named() -> None:
    results = found([result(2.0), result(2.1)], [result(9.0, diverged="loss is nan")] * 2)
    rows = make_rows(SMOKE.experiments[0], results)
    assert cells(SMOKE.experiments[0], rows)[1][2:5] == ("diverged", "", "")
    assert judge(rows) == ("DGC 0.1 %: diverged.",)


def test_only_what_has_several_seeds_is_judged() -> None:
    near = make_rows(
        SMOKE.experiments[0], found([result(2.0), result(2.2)], [result(2.1), result(2.2)])
    )
    assert "within the spread of seeds (± 0.1414)" in judge(near)[0]
    far = make_rows(SMOKE.experiments[0], found([result(2.0), result(2.2)], [result(3.0)] * 2))
    assert "+0.9000 from dense, more than the spread" in judge(far)[0]
    better = make_rows(SMOKE.experiments[0], found([result(2.0), result(2.2)], [result(1.0)] * 2))
    assert "-1.1000 from dense, more than the spread" in judge(better)[0]
    single = make_rows(SMOKE.experiments[0], found([result(2.0)], [result(3.0)]))
    assert judge(single) == ("One seed cannot separate a difference from chance.",)


def test_curves_are_means_as_far_as_all_seeds_go() -> None:
    assert mean_curve([((1, 4.0), (2, 2.0)), ((1, 6.0),)]) == ((1, 5.0),)
    assert (times(333.4), times(1.94)) == ("333x", "1.9x")


def test_curves_of_seeds_that_were_looked_at_more_often_meet_where_both_were() -> None:
    assert mean_curve([((1, 4.0), (1.5, 2.0)), ((0.5, 9.0), (1, 6.0), (1.5, 4.0))]) == (
        (1, 5.0),
        (1.5, 3.0),
    )


def test_a_page_draws_every_evaluation_and_no_straight_line_of_two_epochs() -> None:
    parts = tuple(Evaluation(n, n / 4, 5 - n / 4, "accuracy", 10.0) for n in range(1, 7))
    experiment = SMOKE.experiments[0]
    trial = Trial(experiment, experiment.variants[0], 0)
    for losses, titles in (((3.0, 2.0), ["Held-out"]), ((4.0, 3.0, 2.0), ["Held-out", "Training"])):
        whole = result(*losses)
        looked_at = replace(whole, events=(*parts, *whole.events))
        html = make_page(SMOKE, {trial: looked_at}, planned=1, command="").html()
        drawn = re.findall(r"<figcaption>(\S+) loss by epoch, mean over seeds</figcaption>", html)
        lines = re.findall(r'class="line c0" d="([^"]*)"', html)
        assert drawn == titles
        assert lines[0].count("L") == 5


def test_a_page_says_what_is_missing_and_what_the_paper_has() -> None:
    plan = find_reproduction("dgc", "small")
    experiment = plan.experiments[0]
    results = {Trial(experiment, experiment.variants[0], 0): result(3.0, 2.0)}
    html = make_page(plan, results, planned=30, command="thinwire reproduce dgc").html()
    assert "1 of 30 runs" in html
    assert "93.75 %" in html
    assert "Penn Treebank, LSTM" not in html


def test_a_result_is_kept_whole_and_another_plans_is_refused(tmp_path: Path) -> None:
    store, trial = Store(tmp_path), trials(SMOKE, seeds=1)[1]
    assert store.load(trial) is None
    store.save(trial, result(3.0, 2.0))
    assert store.load(trial) == result(3.0, 2.0)
    other = replace(trial, variant=replace(trial.variant, recipe="dgc(0.5)"))
    with pytest.raises(ConfigError, match=r"of another plan, with recipe dgc\(0.001\)"):
        store.load(other)
    (tmp_path / "results" / f"{trial.folder}.json").write_text("{")
    with pytest.raises(ThinwireError, match="delete it to run it again"):
        store.load(trial)


def test_a_result_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    store, trial = Store(tmp_path), trials(SMOKE, seeds=1)[1]
    with file_limit(100), pytest.raises(ThinwireError, match="cannot be written: File too large"):
        store.save(trial, result(3.0, 2.0))
    assert not list((tmp_path / "results").iterdir())


class Silent:
    """A watcher that counts."""

    begun = 0

    def begin(self, trial: Trial, plan: Plan, *, number: int, start: int) -> None:
        self.begun += 1

    def show(self, event: Event) -> None: ...

    def end(self, trial: Trial, result: TrialResult) -> None: ...


def test_finished_trials_are_not_run_again(tmp_path: Path) -> None:
    chosen = trials(SMOKE, seeds=1, only=["*/dense", "*/dgc"])
    executor, watcher = Executor(Store(tmp_path), None), Silent()
    first = executor.run(chosen[:1], watcher, Interrupts())
    both = executor.run(chosen, watcher, Interrupts())
    assert watcher.begun == 2
    assert both[chosen[0]] == first[chosen[0]]
    assert both[chosen[1]].pushed < both[chosen[0]].pushed / 50
    assert not list((tmp_path / "runs").iterdir())


def test_a_result_says_when_it_was_made_and_how(tmp_path: Path) -> None:
    (trial,) = trials(SMOKE, seeds=1, only=["*/dense"])
    command, began = "thinwire reproduce dgc --scale smoke", datetime.now(timezone.utc)
    executor = Executor(Store(tmp_path), None, command=command)
    executor.run([trial], Silent(), Interrupts())
    path = tmp_path / "results" / f"{trial.folder}.json"
    values = json.loads(path.read_text())
    assert values["command"] == command
    date = datetime.fromisoformat(values["date"])
    assert date.utcoffset() == timedelta(0)
    assert timedelta(seconds=-1) <= date - began < timedelta(minutes=5)
    assert Store(tmp_path).load(trial) == executor.finished([trial])[trial]
    del values["command"], values["date"]  # as files were before
    path.write_text(json.dumps(values))
    older = Store(tmp_path).load(trial)
    assert older is not None
    assert (older.command, older.date) == ("", "")


def test_a_trial_that_diverges_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*_: object) -> bool:
        raise NonFiniteError("the loss of step 3 is nan")

    monkeypatch.setattr(Loop, "run", diverge)
    chosen = trials(SMOKE, seeds=1, only=["*/dgc"])
    results = Executor(Store(tmp_path), None).run(chosen, Silent(), Interrupts())
    assert results[chosen[0]].diverged == "the loss of step 3 is nan"
    assert results[chosen[0]].outcome is None


def test_missing_data_is_found_before_anything_runs(tmp_path: Path) -> None:
    chosen, watcher = trials(find_reproduction("dgc", "small"), seeds=1), Silent()
    with pytest.raises(ThinwireError, match=r"put data_batch_1.bin, .* into"):
        Executor(Store(tmp_path), tmp_path).run(chosen, watcher, Interrupts())
    assert watcher.begun == 0


def test_frames_of_the_papers_lstm_are_smaller_than_the_papers() -> None:
    (size,) = (one for one in find_reproduction("dgc", "small").sizes if one.network != "resnet50")
    found = measure(size)
    assert found.dense == 4 * 51_034_000
    assert found.ratio > size.paper
    assert "462x" in size_blocks((found,))[2].html()


def test_links_are_read_and_drawn(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    rows = [
        {"rate": rate, "label": "DDP fp32", "best_ms": ms}
        for rate, ms in (("100mbit", 900.0), ("1gbit", 90.0))
    ]
    machine = {"cpu": "a cpu", "date": "today"}
    values = {"machine": machine, "model": {"name": "resnet50"}, "numel": 9, "hosts": 2}
    path.write_text(json.dumps({**values, "rows": rows}))
    links = read_links(path)
    assert links.rates == ("100mbit", "1gbit")
    page = make_page(SMOKE, {}, planned=1, command="", links=links).html()
    assert "Time per iteration against bandwidth" in page
    path.write_text("{}")
    with pytest.raises(ThinwireError, match="not a file of thinwire bench links --json"):
        read_links(path)
