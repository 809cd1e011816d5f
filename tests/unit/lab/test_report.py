"""Pictures and pages: the right places, nothing from outside, nothing unescaped."""

from __future__ import annotations

import pytest

from thinwire_lab.report.page import (
    COLOURS,
    Chart,
    Heading,
    Line,
    Page,
    Paragraph,
    Table,
    linear_axis,
    log_axis,
)


def test_linear_ticks_are_round_and_within_the_data() -> None:
    axis = linear_axis(0.13, 0.97)
    assert axis.ticks == pytest.approx((0.2, 0.4, 0.6, 0.8))
    assert (axis.place(0.13), axis.place(0.97)) == (0.0, 1.0)


def test_a_single_value_has_an_axis_too() -> None:
    assert linear_axis(3.0, 3.0).place(3.0) == 0.5
    assert 0.0 <= log_axis(3.0, 3.0).place(3.0) <= 1.0


@pytest.mark.parametrize(("low", "high"), [(157, 1038), (0.2, 40), (5, 5), (1, 1000)])
def test_log_ticks_go_around_the_data(low: float, high: float) -> None:
    axis = log_axis(low, high)
    assert axis.low <= low <= high <= axis.high
    assert len(axis.ticks) >= 2
    middle = (axis.low * axis.high) ** 0.5
    assert axis.place(middle) == pytest.approx(0.5)


def test_a_chart_draws_every_line_that_has_points() -> None:
    lines = (Line("a<b", ((0, 1), (1, 2))), Line("empty", ()), Line("one", ((0.5, 1.5),)))
    html = Chart("title", "x", "y", lines).html()
    assert html.count('class="line') == 1
    assert html.count("<circle") == 1
    assert "a&lt;b" in html
    assert "empty" not in html
    assert Chart("title", "x", "y", ()).html() == ""


def test_distances_along_the_bottom_are_those_of_logarithms_if_asked_for() -> None:
    line = Line("a", ((1, 5), (10, 6), (100, 7)))
    places = [
        places_of(Chart("title", "x", "y", (line,), log_x=log).html()) for log in (False, True)
    ]
    assert places[0][1] - places[0][0] < places[0][2] - places[0][1]
    assert places[1][1] - places[1][0] == pytest.approx(places[1][2] - places[1][1], abs=0.2)


def places_of(html: str) -> list[float]:
    path = html.partition('class="line')[2].partition('d="M')[2].partition('"')[0]
    return [float(place.split()[0]) for place in path.split("L")]


def test_more_lines_than_colours_are_dashed() -> None:
    lines = tuple(Line(str(n), ((0, n), (1, n))) for n in range(COLOURS + 1))
    assert Chart("title", "x", "y", lines).html().count("line c0") == 2
    assert "line c0 dashed" in Chart("title", "x", "y", lines).html()


def test_a_page_holds_all_it_needs() -> None:
    blocks = (Heading("h"), Paragraph("a & b"), Table(("", "n"), (("row", "1"),)))
    html = Page("<title>", blocks).html()
    assert "a &amp; b" in html
    assert "&lt;title&gt;" in html
    assert "<style>" in html
    assert all(word not in html for word in ("http", "<script", "src="))
