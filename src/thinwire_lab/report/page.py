"""``Page`` and ``Chart``: paragraphs, tables and line charts as one string of HTML. Pure.

It needs no other file: a chart is SVG within the page, which has the colours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Protocol


class Block(Protocol):
    def html(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Heading:
    text: str

    def html(self) -> str:
        return f"<h2>{escape(self.text)}</h2>"


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str
    note: bool = False

    def html(self) -> str:
        kind = ' class="note"' if self.note else ""
        return f"<p{kind}>{escape(self.text)}</p>"


@dataclass(frozen=True, slots=True)
class Table:
    """The first column is words, the others are figures."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def html(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.header)
        body = "".join(f"<tr>{_cells(row)}</tr>" for row in self.rows)
        return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cells(row: tuple[str, ...]) -> str:
    return "".join(f"<td>{escape(cell)}</td>" for cell in row)


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    blocks: tuple[Block, ...]

    def html(self) -> str:
        style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
        body = "\n".join(block.html() for block in self.blocks)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>\n{style}</style></head>\n"
            f"<body><h1>{escape(self.title)}</h1>\n{body}\n</body></html>\n"
        )


_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``low`` to ``high``; with ``log`` distances are those of logarithms."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value is: 0 at the low end, 1 at the high one."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(low: float, high: float, count: int = 5) -> Axis:
    """About ``count`` ticks; the axis ends where the data do."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in _STEPS if times * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(number * step for number in range(first, last + 1)))


def log_axis(low: float, high: float) -> Axis:
    """Ticks at 1, 2, 5, 10, 20 ..., from the last one below the data to the first one above."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    round_numbers = [times * 10.0**power for power in powers for times in (1, 2, 5)]
    first = max(number for number in round_numbers if number <= low * 1.001)
    last = min(number for number in round_numbers if number >= high * 0.999 and number > first)
    ticks = tuple(number for number in round_numbers if first <= number <= last)
    return Axis(min(first, low), max(last, high), ticks, log=True)


COLOURS = 8
"""As many as the page has; further lines repeat them, dashed."""

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 42


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """``x_names``: words for the places 0, 1, 2 ... instead of numbers. Lines without points are
    left out."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_y: bool = False
    log_x: bool = False
    x_names: tuple[str, ...] = ()

    def html(self) -> str:
        drawn = [line for line in self.lines if line.points]
        if not drawn:
            return ""
        legend = "".join(
            f'<span class="key k{_style(number)}">{escape(line.label)}</span>'
            for number, line in enumerate(drawn)
        )
        return (
            f"<figure><figcaption>{escape(self.title)}</figcaption>{self._svg(drawn)}"
            f'<div class="legend">{legend}</div></figure>'
        )

    def _svg(self, drawn: list[Line]) -> str:
        xs = [x for line in drawn for x, _ in line.points]
        ys = [y for line in drawn for _, y in line.points]
        # Words are wide, so they need room at both ends.
        around = 0.5 if self.x_names else 0.0
        x_axis = (log_axis if self.log_x else linear_axis)(min(xs) - around, max(xs) + around)
        y_axis = log_axis(min(ys), max(ys)) if self.log_y else linear_axis(min(ys), max(ys))
        parts = (
            *(self._y_tick(y_axis, tick) for tick in y_axis.ticks),
            *self._x_ticks(x_axis),
            *(_path(line, number, x_axis, y_axis) for number, line in enumerate(drawn)),
            *self._labels(),
        )
        return (
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            f'aria-label="{escape(self.title)}">{"".join(parts)}</svg>'
        )

    def _y_tick(self, axis: Axis, tick: float) -> str:
        y = _y(axis, tick)
        return (
            f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text class="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{tick:g}</text>'
        )

    def _x_ticks(self, axis: Axis) -> list[str]:
        named: list[tuple[float, str]] = [*enumerate(self.x_names)]
        named = named or [(tick, f"{tick:g}") for tick in axis.ticks]
        bottom = _HEIGHT - _BOTTOM + 17
        return [
            f'<text class="mid" x="{_x(axis, place):.1f}" y="{bottom}">{escape(name)}</text>'
            for place, name in named
        ]

    def _labels(self) -> tuple[str, str]:
        middle = (_TOP + _HEIGHT - _BOTTOM) / 2
        return (
            f'<text class="mid" x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 6}">'
            f"{escape(self.x_label)}</text>",
            f'<text class="mid" transform="translate(13 {middle:.0f}) rotate(-90)">'
            f"{escape(self.y_label)}</text>",
        )


def _style(number: int) -> str:
    dashed = " dashed" if number >= COLOURS else ""
    return f"{number % COLOURS}{dashed}"


def _path(line: Line, number: int, x_axis: Axis, y_axis: Axis) -> str:
    places = [f"{_x(x_axis, x):.1f} {_y(y_axis, y):.1f}" for x, y in line.points]
    style = f"c{_style(number)}"
    if len(places) == 1:
        x, y = places[0].split()
        return f'<circle class="{style}" cx="{x}" cy="{y}" r="4"/>'
    return f'<path class="line {style}" d="M{"L".join(places)}"/>'


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.place(value) * (_HEIGHT - _TOP - _BOTTOM)
