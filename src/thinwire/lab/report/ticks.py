"""Round numbers for an axis. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    """About ``count`` ticks; the ends are the data's, so that none of the room is empty."""
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
