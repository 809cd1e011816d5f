"""What the demo makes of its runs. That they are real processes is tested in distributed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from thinwire.lab import demo as lab
from thinwire.lab.demo_report import calculated, make_page, measured, verdicts
from thinwire.lab.train.events import Outcome, Progress

DENSE, ONE_BIT, DGC = lab.ways()


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
    dense, small = result(), result(DGC, nbytes=1e4, loss=2.5)
    assert measured(dense, dense)[6] == "1"
    assert measured(small, dense)[6] == "1/100"
    assert verdicts([dense, small]) == (
        "dgc 1 %: 100 times fewer bytes, behind dense after 3 steps (held-out loss +0.500).",
    )
    near = replace(small, held_out_loss=2.01)
    assert "close to dense" in verdicts([dense, near])[0]


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
    assert plans[2].recipe_text.startswith("dgc(0.01, momentum=0.9, clip_norm=None, warmup_steps=0")
