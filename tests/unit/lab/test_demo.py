"""The demo in small: a tiny network, a few steps, the same laws as at full size."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

import thinwire as tw
from thinwire.cli.demo import demo
from thinwire.lab import demo as lab
from thinwire.lab.gpt import GPTSettings, build, next_token_loss
from thinwire.lab.text import VOCABULARY, Corpus, draw, read_corpus
from thinwire.worker.virtual import VirtualExchange

SETTINGS = lab.Settings(
    steps=5, rows=2, held_out_rows=4, gpt=GPTSettings(context=16, layers=1, heads=2, width=64)
)
DENSE, *COMPRESSED = lab.plans()


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return read_corpus(max_nbytes=100_000)


def train(plan: lab.Plan, corpus: Corpus, settings: lab.Settings = SETTINGS) -> lab.Training:
    training = lab.Training(plan, settings, corpus)
    for _ in range(settings.steps):
        training.step()
    return training


def weights(net: torch.nn.Module) -> dict[str, Tensor]:
    return dict(net.named_parameters())


@pytest.mark.parametrize("plan", COMPRESSED, ids=lambda plan: plan.name)
def test_compressed_sends_less_than_a_tenth_each_way(plan: lab.Plan, corpus: Corpus) -> None:
    dense, result = train(DENSE, corpus).result(), train(plan, corpus).result()
    assert result.pushed_nbytes < dense.pushed_nbytes / 10
    assert result.pulled_nbytes < dense.pulled_nbytes / 10


def test_dense_bytes_are_the_parameters_and_little_else(corpus: Corpus) -> None:
    training = train(DENSE, corpus)
    numel = sum(x.numel() for x in training.net.parameters())
    assert 4 * numel < training.result().pushed_nbytes < 4.04 * numel
    assert 4 * numel < training.result().pulled_nbytes < 4.04 * numel


@pytest.mark.parametrize("plan", lab.plans(), ids=lambda plan: plan.name)
def test_training_learns_and_is_repeatable(plan: lab.Plan, corpus: Corpus) -> None:
    settings = replace(SETTINGS, steps=25)
    first, second = train(plan, corpus, settings), train(plan, corpus, settings)
    losses = first.result().losses
    assert torch.tensor(losses).isfinite().all()
    assert losses[-1] < losses[0]
    assert second.result().losses == losses
    assert second.result().held_out_loss == first.result().held_out_loss


def test_all_plans_start_from_the_same_weights_and_batch(corpus: Corpus) -> None:
    settings = replace(SETTINGS, steps=1)
    assert len({train(plan, corpus, settings).steps[0].loss for plan in lab.plans()}) == 1


def test_another_seed_is_another_run(corpus: Corpus) -> None:
    other = replace(SETTINGS, seed=1)
    assert train(DENSE, corpus, other).result().losses != train(DENSE, corpus).result().losses


def test_dense_is_plain_sgd_bit_for_bit(corpus: Corpus) -> None:
    net, generator = build(SETTINGS.gpt, seed=SETTINGS.seed), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(net.parameters(), DENSE.learning_rate, momentum=DENSE.momentum)
    for step in range(SETTINGS.steps):
        gradients = []
        for _ in range(SETTINGS.workers):
            tokens = draw(corpus.training, SETTINGS.rows, SETTINGS.gpt.context, generator)
            loss = next_token_loss(net, tokens)
            gradients.append(torch.autograd.grad(loss, list(net.parameters())))
        for parameter, first, second in zip(net.parameters(), *gradients, strict=True):
            parameter.grad = (first + second) / 2
        optimizer.param_groups[0]["lr"] = DENSE.learning_rate * (step + 1) / SETTINGS.warmup_steps
        optimizer.step()
    trained = weights(train(DENSE, corpus).net)
    assert all(torch.equal(trained[name], x) for name, x in weights(net).items())


def test_what_an_exchange_holds_back_is_in_its_residuals() -> None:
    generator = torch.Generator().manual_seed(0)
    key = tw.Key("w", (10, 10))
    exchange = VirtualExchange(tw.doublesqueeze(tw.TopK(0.1)), [key], workers=2, seed=0)
    wanted, applied = torch.zeros(100), torch.zeros(100)
    for step in range(20):
        gradients = [torch.randn(10, 10, generator=generator) for _ in range(2)]
        wanted += (gradients[0] + gradients[1]).view(-1) / 2
        applied += exchange.average([{"w": x} for x in gradients], step=step).mean["w"].view(-1)
    first, second = (side.compressor.state_dict()["w"]["residual"] for side in exchange.workers)
    held = exchange.server.compressor.state_dict()["w"]["residual"] + (first + second) / 2
    assert not torch.allclose(applied, wanted, atol=0.1)
    assert torch.allclose(applied + held, wanted, atol=1e-5)


def test_diverged_training_is_an_error(corpus: Corpus) -> None:
    plan = replace(DENSE, learning_rate=1e30)
    with pytest.raises(tw.NonFiniteError, match="dense: the loss of step"):
        train(plan, corpus)


@pytest.mark.parametrize("field", ["steps", "workers", "rows", "held_out_rows", "warmup_steps"])
def test_settings_refuse_zero(field: str) -> None:
    with pytest.raises(tw.ConfigError, match=field):
        lab.Settings(**{field: 0})  # type: ignore[arg-type]  # mypy cannot see that it is no gpt


def test_global_generator_is_left_alone(corpus: Corpus) -> None:
    before = torch.get_rng_state()
    train(COMPRESSED[0], corpus)
    assert torch.equal(torch.get_rng_state(), before)


def test_gpt_sees_no_later_token() -> None:
    net = build(SETTINGS.gpt, seed=0)
    tokens = torch.arange(10).view(1, 10)
    changed = tokens.clone()
    changed[0, 6:] += 1
    assert torch.equal(net(tokens)[0, :6], net(changed)[0, :6])
    assert not torch.equal(net(tokens)[0, 6:], net(changed)[0, 6:])


def test_gpt_refuses_heads_that_do_not_divide_its_width() -> None:
    with pytest.raises(tw.ConfigError, match="multiple of heads"):
        GPTSettings(width=10, heads=4)


def test_corpus_is_bounded_and_the_same_every_time(corpus: Corpus) -> None:
    again = read_corpus(max_nbytes=100_000)
    assert torch.equal(again.training, corpus.training)
    assert torch.equal(again.held_out, corpus.held_out)
    assert corpus.training.numel() == 90_000
    assert corpus.held_out.numel() == 10_000
    assert corpus.training.max() < VOCABULARY


def test_corpus_takes_ascii_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, text in (("b.py", "second"), ("a.py", "first"), ("c.py", "ü"), ("d.txt", "no")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    corpus = read_corpus(tmp_path, held_out=0.0)
    assert bytes(corpus.training.tolist()) == b"firstsecond"


def test_missing_sources_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(tw.ThinwireError, match="no Python source files in"):
        read_corpus(tmp_path)


def test_too_short_a_text_is_refused() -> None:
    with pytest.raises(tw.ConfigError, match="expected more than 16"):
        draw(torch.zeros(16, dtype=torch.int64), 1, 16, torch.Generator())


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "Settings", lambda **given: replace(SETTINGS, **given))


@pytest.mark.usefixtures("small_demo")
def test_command_prints_every_recipe_and_writes_json(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    outcome = CliRunner().invoke(demo, ["--steps", "3", "--seed", "5", "--json", str(path)])
    assert outcome.exit_code == 0, outcome.output
    assert all(plan.name in outcome.output for plan in lab.plans())
    report = json.loads(path.read_text())
    assert report["finished"]
    assert report["settings"]["seed"] == 5
    assert [len(result["losses"]) for result in report["results"]] == [3, 3, 3]


@pytest.mark.usefixtures("small_demo")
def test_interrupted_command_prints_what_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real_step = lab.Training.step
    allowed = islice(iter(int, 1), 7)

    def step(training: lab.Training) -> lab.Step:
        if next(allowed, None) is None:
            raise KeyboardInterrupt
        return real_step(training)

    monkeypatch.setattr(lab.Training, "step", step)
    path = tmp_path / "demo.json"
    outcome = CliRunner().invoke(demo, ["--steps", "5", "--json", str(path)])
    assert outcome.exit_code == 130
    assert "Stopped by Ctrl-C, of 5 steps. After 3 steps:" in outcome.output
    assert not json.loads(path.read_text())["finished"]


def test_command_refuses_a_file_it_cannot_write_before_it_trains(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(demo, ["--json", str(tmp_path / "missing" / "demo.json")])
    assert outcome.exit_code == 2
    assert "No such file" in outcome.output
