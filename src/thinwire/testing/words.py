"""How a broken law is told, and the one law that codecs and feedback share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from thinwire.errors import ThinwireError


def require(holds: bool, otherwise: str) -> None:
    """Raise AssertionError. Not an assert statement: those vanish under ``python -O``."""
    if not holds:
        raise AssertionError(otherwise)


@contextmanager
def told_about(subject: str) -> Iterator[None]:
    """Name ``subject`` in what goes wrong."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{subject}: {error}") from error
    except ThinwireError as error:
        raise AssertionError(f"{subject}: {type(error).__name__}: {error}") from error


def require_frozen_value(settings: object) -> None:
    """Settings can be compared, hashed and shared, because nobody can change them."""
    cls = type(settings)
    if not dataclasses.is_dataclass(cls):
        raise AssertionError("it is not a dataclass")
    fields = dataclasses.fields(cls)
    require(all(_is_fixed(settings, field.name) for field in fields), "its fields can be changed")
    again = cls(**{field.name: getattr(settings, field.name) for field in fields})
    require(again == settings, "the same settings make another value")
    require(hash(again) == hash(settings), "an equal value has another hash")


def _is_fixed(settings: object, name: str) -> bool:
    try:
        setattr(settings, name, getattr(settings, name))
    except dataclasses.FrozenInstanceError:
        return True
    return False
