"""``Policy``: which codec a tensor gets at a step. Only senders ask; receivers read the frame.

A policy is a frozen dataclass with one method, ``choose``, a pure function: asked twice, it
answers the same. A codec is accepted wherever a policy is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol, TypeAlias, runtime_checkable

from thinwire.checks import check_choice, check_whole
from thinwire.codec.base import Codec, check_codec
from thinwire.codec.dense import Float32
from thinwire.codec.sign import OneBit
from thinwire.errors import ConfigError
from thinwire.gradient.pieces import Key


@runtime_checkable
class Policy(Protocol):
    def choose(self, key: Key, *, step: int, workers: int) -> Codec:
        """The codec for this tensor at this step, sent to or from ``workers`` workers."""


Chooser: TypeAlias = "Codec | Policy"
"""What users may give: a policy, or a codec that is always chosen."""


@dataclass(frozen=True, slots=True)
class Always:
    codec: Codec

    def __post_init__(self) -> None:
        check_codec(self.codec, owner="recipe")

    def choose(self, key: Key, *, step: int, workers: int) -> Codec:
        return self.codec


def as_policy(chooser: Chooser) -> Policy:
    if isinstance(chooser, Policy):
        if isinstance(chooser, type):
            raise ConfigError(f"recipe: expected a codec or a policy, got {chooser!r}")
        return chooser
    return Always(chooser)


@dataclass(frozen=True, slots=True)
class SmallAs:
    codec: Codec
    below: int
    otherwise: Policy

    def __post_init__(self) -> None:
        check_codec(self.codec, owner="small_as")
        check_whole(self.below, least=0, owner="small_as", field="below")

    def choose(self, key: Key, *, step: int, workers: int) -> Codec:
        if key.numel < self.below:
            return self.codec
        return self.otherwise.choose(key, step=step, workers=workers)


def small_as(codec: Codec, *, below: int, otherwise: Chooser) -> SmallAs:
    """Use ``codec`` for tensors of fewer than ``below`` elements, where compression costs more
    than it saves."""
    return SmallAs(codec, below, as_policy(otherwise))


@dataclass(frozen=True, slots=True)
class VectorsAs:
    codec: Codec
    otherwise: Policy

    def __post_init__(self) -> None:
        check_codec(self.codec, owner="vectors_as")

    def choose(self, key: Key, *, step: int, workers: int) -> Codec:
        if len(key.shape) <= 1:
            return self.codec
        return self.otherwise.choose(key, step=step, workers=workers)


def vectors_as(codec: Codec, *, otherwise: Chooser) -> VectorsAs:
    """Use ``codec`` for tensors of at most one dimension: biases and normalisation weights."""
    return VectorsAs(codec, as_policy(otherwise))


BLOCK = 1024
"""Elements that share a scale, unless their tensor is an embedding."""

SMALL, LONG_ROW = 1 << 15, 256


def row_block(key: Key, *, short: int = BLOCK, few: int = BLOCK) -> int:
    """Elements of a tensor that are about alike: ``BLOCK``, or in an embedding those of a row.

    Rows of frequent words have gradients in every step and rows of rare ones hardly any, so that no
    scale fits both. Where rows are ``short`` the elements of a block are of many rows, too, so that
    fewer may share a scale. ``few`` share one in small tensors of long rows, where scales are a
    larger part of a frame.
    """
    width = _width(key)
    if is_embedding(key):
        return max(64, -(-width // 64) * 64)
    if width < LONG_ROW:
        return short
    return few if key.numel < SMALL else BLOCK


def is_embedding(key: Key) -> bool:
    """Whether this has the shape of one: at least 32 times as many rows as columns."""
    return len(key.shape) > 1 and key.shape[0] >= 32 * _width(key)


def _width(key: Key) -> int:
    return key.numel // max(1, key.shape[0]) if key.shape else 1


@dataclass(frozen=True, slots=True)
class ByRow:
    codec: OneBit
    rows: OneBit | None = None
    short: int = BLOCK

    def choose(self, key: Key, *, step: int, workers: int) -> Codec:
        codec = self.rows if self.rows is not None and is_embedding(key) else self.codec
        few = self.codec.block or BLOCK
        return replace(codec, block=row_block(key, short=self.short, few=few))


def by_row(codec: OneBit, *, rows: OneBit | None = None, short: int = BLOCK) -> ByRow:
    """``codec`` with a scale for every 1,024 elements, and in embeddings for every row.

    Embeddings are sent as ``rows``, if that is given. Tensors whose rows have fewer than 256
    elements have a scale for every ``short`` of them; small ones of longer rows, for every block of
    the codec, if it has one.
    """
    return ByRow(codec, rows, short)


@dataclass(frozen=True, slots=True)
class ByName:
    patterns: tuple[tuple[str, Policy], ...]
    otherwise: Policy

    def choose(self, key: Key, *, step: int, workers: int) -> Codec:
        matching = (policy for glob, policy in self.patterns if fnmatchcase(key.name, glob))
        return next(matching, self.otherwise).choose(key, step=step, workers=workers)


def by_name(patterns: Mapping[str, Chooser], *, otherwise: Chooser) -> ByName:
    """Choose by shell pattern on the parameter's name; the first that matches decides."""
    chosen = tuple((glob, as_policy(chooser)) for glob, chooser in patterns.items())
    return ByName(chosen, as_policy(otherwise))


@dataclass(frozen=True, slots=True)
class UnlessDenseIsCheaper:
    policy: Policy
    exchange: str = "two-way"

    def __post_init__(self) -> None:
        check_choice(
            self.exchange,
            ("two-way", "allgather"),
            owner="unless_dense_is_cheaper",
            field="exchange",
        )

    def choose(self, key: Key, *, step: int, workers: int) -> Codec:
        codec = self.policy.choose(key, step=step, workers=workers)
        copies = 2 if self.exchange == "two-way" else workers
        return Float32() if copies * codec.max_nbytes(key.numel) >= 8 * key.numel else codec


def unless_dense_is_cheaper(chooser: Chooser, *, exchange: str = "two-way") -> UnlessDenseIsCheaper:
    """Send float32 wherever the chosen codec would not send fewer bytes.

    Dense averaging moves about 8 bytes per element and worker. A "two-way" exchange moves a payload
    there and one back; "allgather" brings every worker the payloads of all.
    """
    return UnlessDenseIsCheaper(as_policy(chooser), exchange)
