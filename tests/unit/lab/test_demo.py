"""What the demo makes of its runs. That they are real processes is tested in distributed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thinwire as tw
from thinwire.recipe_text import read_recipe
from thinwire_lab import demo as lab
from thinwire_lab.cli.show.demo import print_results
from thinwire_lab.demo import calculated, compared, make_page, measured, verdicts
from thinwire_lab.train.events import Outcome, Progress

DENSE, ADAM, ONE_BIT = lab.ways()


def result(way: lab.Way = DENSE, *, nbytes: float = 1e6, loss: float = 2.0) -> lab.Result:
    seconds = (0.1, 0.2, 1.2)
    seen = [Progress(n + 1, 3.0 - n, 0.1, nbytes, nbytes, 1.0, t) for n, t in enumerate(seconds)]
    return lab.make_result(way, seen, Outcome(3, loss, "perplexity", 7.0))


def test_a_result_has_the_median_step_and_all_losses() -> None:
    found = result()
    assert found.step_seconds == pytest.approx(0.1)
    assert found.losses == (3.0, 2.0, 1.0)
    assert found.final_loss == pytest.approx(2.0)


def test_a_step_on_a_link_is_its_time_and_all_bytes_through_the_server() -> None:
    found = result(nbytes=1e6)
    bits = 8 * 2 * 2e6
    assert found.seconds_on(1e8) == pytest.approx(0.1 + bits / 1e8)
    assert calculated(found) == ("dense", "420 ms", "132 ms", "103 ms")


def test_rows_and_verdicts_compare_with_dense() -> None:
    dense, small = result(), result(ONE_BIT, nbytes=1e4, loss=2.5)
    assert measured(dense, dense)[5] == "1"
    assert measured(small, dense)[5] == "1/100"
    assert verdicts([dense, small]) == (
        "gradient in 1 bit: 100 times fewer bytes, held-out loss 25.0 % worse than dense after 3 "
        "steps (2.500 against 2.000 nats per character).",
    )


@pytest.mark.parametrize(
    ("loss", "dense", "words"),
    [
        (1.814, 1.740, "4.3 % worse than dense"),  # +0.074 was once called close
        (2.0220, 2.0, "1.1 % worse than dense"),
        (2.0211, 2.0, "1.1 % worse than dense"),
        (2.0209, 2.0, "equal to dense within 1 %"),
        (2.02, 2.0, "equal to dense within 1 %"),
        (2.0, 2.0, "equal to dense within 1 %"),
        (1.98, 2.0, "equal to dense within 1 %"),
        (1.9791, 2.0, "equal to dense within 1 %"),
        (1.9789, 2.0, "1.1 % better than dense"),
        (1.0, 2.0, "50.0 % better than dense"),
    ],
)
def test_a_loss_is_better_equal_or_worse_by_its_share_of_dense(
    loss: float, dense: float, words: str
) -> None:
    assert compared(loss, dense) == words


def test_terminal_and_report_use_the_same_words(capsys: pytest.CaptureFixture[str]) -> None:
    results = [result(), result(ADAM, nbytes=3e4, loss=2.074), result(ONE_BIT, loss=1.9)]
    print_results(results, interrupted=False)
    terminal = " ".join(capsys.readouterr().out.split())
    html = make_page(results, "intro", "machine").html()
    for sentence in verdicts(results):
        assert sentence in terminal
        assert sentence in html


def test_the_report_needs_nothing_else() -> None:
    html = make_page([result(), result(ONE_BIT, nbytes=3e4)], "<intro>", "machine").html()
    assert html.count("<svg") == 2
    assert "&lt;intro&gt;" in html
    assert "http" not in html
    assert "<script" not in html


def test_all_ways_have_the_same_batches_and_first_weights(tmp_path: Path) -> None:
    plans = [lab.plan_of(way, tmp_path, steps=5, seed=3) for way in lab.ways()]
    assert {(plan.settings.seed, plan.steps, plan.task.feed) for plan in plans} == {
        (3, 5, plans[0].task.feed)
    }
    _, optimizer = plans[1].build()
    assert isinstance(optimizer, torch.optim.AdamW)
    assert read_recipe(plans[1].recipe_text) == tw.recipe_for(optimizer)
