"""Checks of settings, made when they are built: each raises ConfigError with one sentence."""

from __future__ import annotations

import math

from thinwire.errors import ConfigError


def check_choice(value: object, choices: tuple[str, ...], *, owner: str, field: str) -> None:
    if value not in choices:
        raise ConfigError(f"{owner}: {field} must be one of {', '.join(choices)}, got {value!r}")


def check_ratio(ratio: float, *, owner: str) -> None:
    if not 0.0 < ratio <= 1.0:
        raise ConfigError(f"{owner}: ratio is the fraction kept, in (0, 1], got {ratio}")


def check_fraction(value: float, *, owner: str, field: str) -> None:
    if not 0.0 < value <= 1.0:
        raise ConfigError(f"{owner}: {field} must be above 0 and at most 1, got {value}")


def check_positive(value: float, *, owner: str, field: str) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{owner}: {field} must be positive and finite, got {value}")


def check_at_least(value: float, least: float, *, owner: str, field: str) -> None:
    if not (value >= least and math.isfinite(value)):
        raise ConfigError(f"{owner}: {field} must be finite and at least {least}, got {value}")


def check_between(value: float, low: float, high: float, *, owner: str, field: str) -> None:
    if not low < value < high:
        raise ConfigError(f"{owner}: {field} must be between {low} and {high}, got {value}")


def check_momentum(momentum: float, *, owner: str, field: str = "momentum") -> None:
    if not 0.0 <= momentum < 1.0:
        raise ConfigError(f"{owner}: {field} must be in [0, 1), got {momentum}")


def check_whole(value: int, *, least: int, owner: str, field: str) -> None:
    if not isinstance(value, int) or value < least:
        raise ConfigError(f"{owner}: {field} must be a whole number from {least}, got {value!r}")
