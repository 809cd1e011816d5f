"""A training run: what a resumed one must equal, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.file_limit import file_limit
from tests.unit.lab.real_data import needs
from tests.unit.lab.runs import gpt, lstm, run, state, without_seconds
from thinwire.codec.sign import OneBit
from thinwire.errors import ConfigError, NonFiniteError, ThinwireError
from thinwire.recipe import Recipe, adam, doublesqueeze, momentum_sgd
from thinwire.recipe_text import read_recipe
from thinwire_lab.reproduce.execute import find_reproduction
from thinwire_lab.reproduce.plan import trials
from thinwire_lab.tasks.ours import OPTIMIZERS
from thinwire_lab.tasks.registry import find_task
from thinwire_lab.train.checkpoint import CheckpointStore
from thinwire_lab.train.events import Epoch, Evaluation, Event, Outcome, read_event
from thinwire_lab.train.log import NAME, RunLog
from thinwire_lab.train.plan import prepare
from thinwire_lab.train.recipe import complete_recipe
from thinwire_lab.train.run import Run
from thinwire_lab.train.settings import RunSettings

RECIPES = ("dense", "dgc(0.05)", "doublesqueeze(OneBit())", "clan(Dither(4))")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_run_is_the_same_bit_for_bit(recipe: str, tmp_path: Path) -> None:
    whole, parts = (gpt(tmp_path / name, recipe=recipe) for name in ("whole", "parts"))
    expected = run(whole)
    assert not run(parts, stop_at=3).finished
    assert not run(parts, stop_at=13).finished
    found = run(parts)
    assert expected.finished
    assert found.finished
    assert without_seconds(found) == without_seconds(expected)
    assert state(parts) == state(whole)


@pytest.mark.parametrize("recipe", ["dense", "dgc(0.05)"])
def test_the_state_of_an_lstm_and_its_learning_rate_are_resumed_too(
    recipe: str, tmp_path: Path
) -> None:
    whole, parts = (lstm(tmp_path / name, recipe=recipe) for name in ("whole", "parts"))
    expected = run(whole)
    run(parts, stop_at=14)
    assert without_seconds(run(parts)) == without_seconds(expected)
    assert state(parts) == state(whole)


@pytest.mark.parametrize("changes", [{}, {"delay": 2, "fragments": 2}], ids=str)
def test_a_run_with_local_steps_is_resumed_within_a_round(
    changes: dict[str, int], tmp_path: Path
) -> None:
    recipe = "diloco(lr=0.8, momentum=0.5)"
    whole, parts = (
        gpt(tmp_path / name, recipe=recipe, local_steps=4, **changes) for name in ("whole", "parts")
    )
    expected = run(whole)
    run(parts, stop_at=3)
    run(parts, stop_at=14)
    assert without_seconds(run(parts)) == without_seconds(expected)


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    first, same, other = (
        run(gpt(tmp_path / name, seed=seed)) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert without_seconds(first) == without_seconds(same)
    assert without_seconds(first) != without_seconds(other)


def test_it_learns_and_compression_shows_in_the_bytes(tmp_path: Path) -> None:
    ratios = {}
    for recipe in ("dense", "dgc(0.01)"):
        events = run(gpt(tmp_path / recipe, recipe=recipe, steps=80)).events
        epochs = [event for event in events if isinstance(event, Epoch)]
        assert epochs[-1].loss < epochs[0].loss - 0.3
        ratios[recipe] = epochs[-1].ratio
    assert 0.95 < ratios["dense"] < 1
    assert ratios["dgc(0.01)"] > 20


def test_the_log_has_settings_first_then_epochs_and_evaluations(tmp_path: Path) -> None:
    result = run(gpt(tmp_path))
    first, *lines = (tmp_path / NAME).read_text().splitlines()
    assert json.loads(first)["recipe"] == (
        "dgc(0.05, momentum=0.9, mask=True, clip_norm=None, warmup_steps=0)"
    )
    assert [read_event(line) for line in lines] == list(result.events)
    kinds = [type(event) for event in result.events]
    assert kinds == [Epoch, Evaluation] * 3 + [Outcome]
    assert [event.step for event in result.events] == [10, 10, 20, 20, 24, 24, 24]


def test_what_comes_after_the_checkpoint_is_written_again(tmp_path: Path) -> None:
    plan = gpt(tmp_path)
    expected = run(plan).events
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "00000024" / "rank-0.pt").unlink()
    with (tmp_path / NAME).open("a") as log:
        log.write('{"kind": "epoch", "step": 4')  # the disk was full
    again = run(plan)
    assert [event.step for event in again.events] == [event.step for event in expected]
    assert again.events[-1] == expected[-1]


def test_a_finished_run_is_only_reported(tmp_path: Path) -> None:
    first = run(gpt(tmp_path))

    def never(event: Event) -> None:
        raise AssertionError(event)

    assert run(gpt(tmp_path), show=never) == first


def test_two_checkpoints_are_kept(tmp_path: Path) -> None:
    run(gpt(tmp_path, save_steps=4))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "00000020",
        "00000024",
    ]


def test_a_checkpoint_counts_when_all_ranks_have_it(tmp_path: Path) -> None:
    first, second = (CheckpointStore(tmp_path, rank=rank, ranks=2) for rank in range(2))
    for keeper in (first, second):
        keeper.save(5, {"x": torch.ones(2)})
    first.save(7, {"x": torch.zeros(2)})
    assert (first.newest(), second.newest()) == (5, 5)
    second.save(7, {"x": torch.zeros(2)})
    assert (first.newest(), second.newest()) == (7, 7)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run(gpt(tmp_path), stop_at=5)
    path = tmp_path / "checkpoints" / "00000005" / "rank-0.pt"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ThinwireError, match=r"rank-0\.pt cannot be read: .*; delete .*00000005"):
        run(gpt(tmp_path))


def test_a_full_disk_is_a_sentence_and_costs_nothing_that_was_saved(tmp_path: Path) -> None:
    expected = run(gpt(tmp_path / "whole"))
    plan = gpt(tmp_path / "full")
    run(plan, stop_at=7)
    before = state(plan)
    for nbytes in (1_000, 20_000):
        sentence = r"rank-0\.pt cannot be written: File too large;"
        with file_limit(nbytes), pytest.raises(ThinwireError, match=sentence):
            run(plan)
        assert state(plan) == before
    assert without_seconds(run(plan)) == without_seconds(expected)


def test_a_log_that_cannot_be_written_is_a_sentence_too(tmp_path: Path) -> None:
    expected = run(gpt(tmp_path / "whole"))
    plan, sentence = gpt(tmp_path / "full"), r"log\.jsonl cannot be written: File too large;"
    with file_limit(100), pytest.raises(ThinwireError, match=sentence):
        run(plan)
    run(plan, stop_at=7)
    used = (plan.out / NAME).stat().st_size
    with file_limit(used + 10), pytest.raises(ThinwireError, match=sentence):
        run(plan)
    assert without_seconds(run(plan)) == without_seconds(expected)


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    run(gpt(tmp_path), stop_at=2)
    with pytest.raises(ConfigError, match="has another run in it, with seed 0, not 1: give a new"):
        Run(gpt(tmp_path, seed=1))
    with pytest.raises(ConfigError, match="has another run in it, with steps 24, not 30"):
        Run(gpt(tmp_path, steps=30))


def test_a_folder_is_for_one_process_at_a_time(tmp_path: Path) -> None:
    log = RunLog(tmp_path, {}, step=0)
    with pytest.raises(ConfigError, match="another run is at work in"):
        RunLog(tmp_path, {}, step=0)
    log.close()
    RunLog(tmp_path, {}, step=0).close()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ThinwireError, match=r"log\.jsonl cannot be written: Not a directory"):
        Run(gpt(tmp_path / "file" / "run"))


def test_a_diverged_run_is_a_sentence_and_its_log_is_kept(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="training diverged, try a lower --learning-rate"):
        run(gpt(tmp_path, recipe="dense", learning_rate=1e30))
    assert (tmp_path / NAME).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "mpi"}, "backend must be one of virtual, ddp, server, got 'mpi'"),
        ({"workers": 0}, "workers must be a whole number from 1"),
        ({"epochs": 2.0}, "give steps or epochs, not both"),
        ({"recipe": "dgc(0.1"}, "examples: dense"),
        ({"recipe": "dgc(7)"}, "ratio is the fraction kept"),
        ({"recipe": "zip"}, "zip is not known here"),
        ({"delay": 2}, "give --local-steps"),
        (
            {"local_steps": 4, "fragments": 2, "backend": "server", "recipe": "local_average()"},
            "leave fragments out",
        ),
    ],
)
def test_impossible_settings_are_refused(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        gpt(tmp_path, **changes)


def test_dgc_gets_what_it_leaves_open_from_the_task() -> None:
    training = find_task("lstm-small", "paper").training
    spelled = {
        "dgc": "dgc(momentum=0.0, mask=True, clip_norm=0.25, warmup_steps=100)",
        "dgc(0.01)": "dgc(0.01, momentum=0.0, mask=True, clip_norm=0.25, warmup_steps=100)",
        "dgc(0.01, warmup_steps=0, momentum=0.5)": "dgc(0.01, warmup_steps=0, momentum=0.5, "
        "mask=True, clip_norm=0.25)",
        "clan(Dither(4))": "clan(Dither(4))",
    }
    assert {text: complete_recipe(text, training, 100) for text in spelled} == spelled


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("momentum_sgd(OneBit())", momentum_sgd(OneBit(), clip_norm=0.25)),
        ("doublesqueeze", doublesqueeze(clip_norm=0.25)),
        ("adam", adam(clip_norm=0.25)),
        ("adam(clip_norm=1.0)", adam(clip_norm=1.0)),
    ],
)
def test_workers_clip_where_something_is_delayed(typed: str, expected: Recipe) -> None:
    training = find_task("penn-momentum", "smoke").training
    assert read_recipe(complete_recipe(typed, training, 100)) == expected


@pytest.mark.parametrize(("recipe", "limit"), [("dense", 0.25), ("dgc(0.05)", None)])
def test_gradients_are_clipped_once(recipe: str, limit: float | None, tmp_path: Path) -> None:
    """By the optimizer, or by the workers themselves where the recipe says so."""
    net, optimizer = lstm(tmp_path, recipe=recipe).build()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    norm = torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]).norm()
    assert (float(norm) < 0.2501) == (limit is not None)


SMOKE = {
    "fashion": "fashion-mnist",
    **dict.fromkeys(("resnet20", "resnet32", "resnet56", "resnet110"), "cifar-10-batches-bin"),
    **dict.fromkeys(("resnet18", "alexnet"), "cifar-10-batches-bin"),
    **dict.fromkeys(("lstm-small", "lstm-medium", "lstm-large", "bert"), "ptb"),
}
BATTERY = {
    "fashion": "fashion-mnist",
    "cifar": "cifar-10-batches-bin",
    "penn": "ptb",
    "masked": "ptb",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(folder)) for name, folder in SMOKE.items()]
)
def test_every_task_runs_on_its_real_data(name: str, tmp_path: Path) -> None:
    recipe = "clan(TopK(0.01))" if name == "bert" else "dgc"
    settings = RunSettings(name, str(tmp_path), "smoke", recipe, workers=2, steps=2)
    assert run(prepare(settings)).finished


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "network", [pytest.param(name, marks=needs(folder)) for name, folder in BATTERY.items()]
)
def test_every_network_takes_the_recipe_of_every_optimizer(
    network: str, optimizer: str, tmp_path: Path
) -> None:
    plan = trials(
        find_reproduction("optimizers", "small"), seeds=1, only=[f"{network}-{optimizer}"]
    )
    for trial in plan:
        settings = RunSettings(
            trial.experiment.task,
            str(tmp_path / trial.folder),
            "smoke",
            trial.variant.recipe,
            workers=2,
            steps=2,
        )
        assert run(prepare(settings)).finished
