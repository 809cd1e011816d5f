"""``codecs``: the registry of all codecs, by name and by wire id, plug-ins included.

Codecs are found through the entry points of the group ``thinwire.codecs``; Thinwire's own are
declared there too, so a plug-in is nothing special. They are imported at the first call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType

import torch
from torch import Tensor

from thinwire.codec.base import Adding, Checking, Codec, Payload, Summing
from thinwire.errors import ConfigError, UnknownCodecError

GROUP = "thinwire.codecs"


@cache
def codecs() -> Mapping[str, type[Codec]]:
    """All codec classes by name."""
    by_name: dict[str, type[Codec]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        codec_class = point.load()
        if codec_class.name != point.name:
            raise ConfigError(
                f"codec {codec_class.__qualname__} calls itself {codec_class.name!r} "
                f"but its entry point says {point.name!r}"
            )
        if point.name in by_name:
            raise ConfigError(
                f"two codecs are named {point.name!r}: {by_name[point.name]}, {codec_class}"
            )
        by_name[point.name] = codec_class
    return MappingProxyType(by_name)


def make_codec(name: str, **settings: object) -> Codec:
    """Build a codec by name: ``make_codec("topk", ratio=0.001)``."""
    codec_class = codecs().get(name)
    if codec_class is None:
        raise UnknownCodecError.for_name(name, codecs())
    try:
        return codec_class(**settings)
    except TypeError as error:
        raise ConfigError(f"codec {name!r}: {error}") from error


@cache
def _by_wire_id() -> Mapping[int, type[Codec]]:
    by_wire_id: dict[int, type[Codec]] = {}
    for codec_class in codecs().values():
        other = by_wire_id.setdefault(codec_class.wire_id, codec_class)
        if other is not codec_class:
            raise ConfigError(
                f"codecs {other.name!r} and {codec_class.name!r} both use "
                f"wire id {codec_class.wire_id}"
            )
    return MappingProxyType(by_wire_id)


def codec_class(wire_id: int) -> type[Codec]:
    """The class that reads payloads with this wire id."""
    cls = _by_wire_id().get(wire_id)
    if cls is None:
        raise UnknownCodecError(f"no codec has wire id {wire_id}; is its package installed?")
    return cls


def decode(wire_id: int, payload: Payload, out: Tensor) -> None:
    """Write what the payload stands for into ``out``."""
    codec_class(wire_id).decode(payload, out)


def add(wire_id: int, payload: Payload, out: Tensor, *, weight: float) -> None:
    """Do ``out += weight * decoded``; ``out`` stays as it is if the payload is refused."""
    adding = _adding(wire_id)
    if adding is not None:
        adding.add(payload, out, weight=weight)
        return
    decoded = torch.empty_like(out)
    decode(wire_id, payload, decoded)
    out.add_(decoded.mul_(weight))


def sum_up(wire_id: int, payloads: Sequence[Payload], out: Tensor, *, weight: float) -> None:
    """Do ``out = weight * (sum of decoded)``, in their order, in one pass where a codec can.

    Only float32 payloads may be views of ``out``.
    """
    summing = _summing(wire_id)
    if summing is not None:
        summing.sum(payloads, out, weight=weight)
        return
    out.zero_()
    for payload in payloads:
        add(wire_id, payload, out, weight=weight)


def check(wire_id: int, payload: Payload, numel: int) -> None:
    """Raise what ``decode`` would, but decode only where a codec has no way to check."""
    checking = _checking(wire_id)
    if checking is not None:
        checking.check(payload, numel)
    else:
        decode(wire_id, payload, torch.empty(numel))


# To ask a class whether it fits a protocol takes longer than to check a small payload.
@cache
def _adding(wire_id: int) -> Adding | None:
    cls = codec_class(wire_id)
    return cls if isinstance(cls, Adding) else None


@cache
def _summing(wire_id: int) -> Summing | None:
    cls = codec_class(wire_id)
    return cls if isinstance(cls, Summing) else None


@cache
def _checking(wire_id: int) -> Checking | None:
    cls = codec_class(wire_id)
    return cls if isinstance(cls, Checking) else None
