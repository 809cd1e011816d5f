"""``check_codec``: the laws of codecs, each a function that raises AssertionError if broken."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Generator, Tensor

from thinwire.codec.base import PRIVATE_WIRE_IDS, Adding, Codec, Payload, Summing, Writing
from thinwire.codec.registry import codecs
from thinwire.errors import CorruptPayloadError, NonFiniteError
from thinwire.testing.tensors import KINDS, SIZES, make, naming, require, require_frozen_value


def check_codec(codec: Codec) -> None:
    """Raise AssertionError, and say why, if ``codec`` breaks a law on any awkward tensor."""
    for rule in RULES:
        with naming(f"{codec!r}"):
            rule(codec)
    for numel in SIZES:
        for kind in KINDS:
            x = make(kind, numel, seed=numel)
            with naming(f"{codec!r}, {numel} {kind} elements"):
                for law in LAWS:
                    law(codec, x)


def settings_are_a_frozen_value(codec: Codec) -> None:
    require_frozen_value(codec)
    cls = type(codec)
    try:
        again = eval(repr(codec), {cls.__name__: cls})
    except Exception as error:
        raise AssertionError(f"its repr cannot be evaluated: {error}") from error
    require(again == codec, "what its repr says is not the codec")


def names_are_its_own(codec: Codec) -> None:
    cls = type(codec)
    others = [other for other in codecs().values() if other is not cls]
    require(cls.name not in {other.name for other in others}, f"its name {cls.name!r} is taken")
    built_in = cls.__module__.split(".")[0] == "thinwire"
    free = range(1, PRIVATE_WIRE_IDS.start) if built_in else PRIVATE_WIRE_IDS
    require(
        cls.wire_id in free,
        f"wire_id is {cls.wire_id:#06x}, expected {free[0]:#06x} to {free[-1]:#06x}",
    )
    taken = {other.wire_id for other in others}
    require(cls.wire_id not in taken, f"its wire_id {cls.wire_id:#06x} is taken")


def payload_is_documented(codec: Codec) -> None:
    documented = "Payload" in (type(codec).__doc__ or "")
    require(documented, "the docstring of its class does not say what a Payload is made of")


RULES = (settings_are_a_frozen_value, names_are_its_own, payload_is_documented)
"""What ``check_codec`` asks of a codec without a tensor."""


def input_is_untouched(codec: Codec, x: Tensor) -> None:
    before = x.clone()
    codec.encode(x, seed=0)
    require(_same_bits(x, before), "encode changed its input")


def same_seed_gives_same_bytes(codec: Codec, x: Tensor) -> None:
    with _global_generators_kept():
        _seed_global_generators(1)
        first = codec.encode(x, seed=7)
        _seed_global_generators(2)
        again = codec.encode(x, seed=7)
    require(first == again, "encoding twice with one seed gave different bytes")


def global_generators_are_untouched(codec: Codec, x: Tensor) -> None:
    with _global_generators_kept():
        _seed_global_generators(1)
        before = _next_of_global_generators()
        _seed_global_generators(1)
        _decoded(codec, codec.encode(x, seed=7), x)
        drawn = _next_of_global_generators() != before
    require(not drawn, "a global random generator was used: other code would see other numbers")


def payload_fits_its_bound(codec: Codec, x: Tensor) -> None:
    nbytes, bound = len(codec.encode(x, seed=0)), codec.max_nbytes(x.numel())
    require(nbytes <= bound, f"a payload of {nbytes} bytes, but max_nbytes is {bound}")


def every_element_is_written(codec: Codec, x: Tensor) -> None:
    out = _decoded(codec, codec.encode(x, seed=0), x)
    require(bool(out.isfinite().all()), "decode left an element unwritten, or not finite")


def any_buffer_is_read_alike(codec: Codec, x: Tensor) -> None:
    payload = bytes(codec.encode(x, seed=0))
    expected = _decoded(codec, payload, x)
    unaligned = memoryview(b"?" + payload + b"?")[1:-1]
    for same in (
        bytearray(payload),
        memoryview(payload),
        memoryview(bytearray(payload)),
        unaligned,
    ):
        out = _decoded(codec, same, x)
        require(_same_bits(out, expected), f"{type(same).__name__} is read differently from bytes")
        require(bytes(same) == payload, "decode changed the payload")


def truncation_is_refused(codec: Codec, x: Tensor) -> None:
    payload = bytes(codec.encode(x, seed=0))
    for nbytes in _some_below(len(payload)):
        accepted = _is_accepted(codec, payload[:nbytes], x)
        require(not accepted, f"decode accepted {nbytes} of {len(payload)} bytes")


def extension_is_refused(codec: Codec, x: Tensor) -> None:
    payload = bytes(codec.encode(x, seed=0))
    for more in (b"\0", b"\xff", bytes(8)):
        accepted = _is_accepted(codec, payload + more, x)
        require(not accepted, f"decode accepted {len(more)} bytes too many")


def garbage_is_refused_or_a_tensor(codec: Codec, x: Tensor) -> None:
    chance = torch.Generator().manual_seed(x.numel())
    payload = bytes(codec.encode(x, seed=0))
    for _ in range(4):
        _is_accepted(codec, _random_bytes(len(payload), chance), x)
        _is_accepted(codec, _random_bytes(int(torch.randint(64, (), generator=chance)), chance), x)
        if payload:
            place = int(torch.randint(len(payload), (), generator=chance))
            _is_accepted(
                codec, payload[:place] + _random_bytes(1, chance) + payload[place + 1 :], x
            )


def nothing_finite_stands_for_an_inf(codec: Codec, x: Tensor) -> None:
    for poison in (float("inf"), float("-inf"), float("nan")):
        poisoned = torch.full_like(x, poison)
        try:
            out = _decoded(codec, codec.encode(poisoned, seed=0), x)
        except NonFiniteError:
            continue
        require(not out.isfinite().any(), f"a tensor of {poison} was encoded as finite numbers")


def writing_is_encoding(codec: Codec, x: Tensor) -> None:
    if not isinstance(codec, Writing):
        return
    expected, most = codec.encode(x, seed=7), codec.max_nbytes(x.numel())
    for margin in (0, 1, 7):  # any alignment
        memory = bytearray(b"?" * (most + 2 * margin))
        nbytes = codec.encode_into(x, memoryview(memory)[margin : margin + most], seed=7)
        require(memory[margin : margin + nbytes] == expected, "encode_into is not encode")
        beside = memory[:margin] + memory[margin + most :]
        require(set(beside) <= {ord("?")}, "encode_into wrote outside of what it was given")
    try:
        codec.encode_into(x, memoryview(bytearray(most))[: most - 1], seed=7)
    except ValueError:
        return
    require(most == 0, "encode_into took less room than max_nbytes")


def adding_is_decoding_and_adding(codec: Codec, x: Tensor) -> None:
    if not isinstance(codec, Adding):
        return
    payload, weight = codec.encode(x, seed=0), 1 / 3
    start = torch.randn(x.numel(), generator=torch.Generator().manual_seed(5))
    out = start.clone()
    codec.add(payload, out, weight=weight)
    expected = start + _decoded(codec, payload, x) * weight
    require(_same_bits(out, expected), "add is not decode, multiply by the weight, add")
    try:
        codec.add(payload + b"\0", out, weight=weight)
    except CorruptPayloadError:
        require(_same_bits(out, expected), "add refused a payload but changed the tensor")
        return
    raise AssertionError("add accepted a byte too many")


def summing_is_adding_to_zero(codec: Codec, x: Tensor) -> None:
    if not isinstance(codec, Summing):
        return
    payloads, weight = [codec.encode(y, seed=0) for y in (x, -x / 2, x.flip(0))], 1 / 3
    unaligned = memoryview(b"?" + payloads[1])[1:]
    expected = torch.zeros_like(x)
    for payload in payloads:
        expected += _decoded(codec, payload, x) * weight
    out = torch.full_like(x, float("nan"))
    codec.sum([payloads[0], unaligned, payloads[2]], out, weight=weight)
    require(_same_bits(out, expected), "sum is not zero plus every payload times the weight")
    try:
        codec.sum([payloads[0], payloads[1] + b"\0"], out, weight=weight)
    except CorruptPayloadError:
        require(_same_bits(out, expected), "sum refused a payload but changed the tensor")
        return
    raise AssertionError("sum accepted a byte too many")


LAWS = (
    input_is_untouched,
    same_seed_gives_same_bytes,
    global_generators_are_untouched,
    payload_fits_its_bound,
    every_element_is_written,
    any_buffer_is_read_alike,
    truncation_is_refused,
    extension_is_refused,
    garbage_is_refused_or_a_tensor,
    nothing_finite_stands_for_an_inf,
    writing_is_encoding,
    adding_is_decoding_and_adding,
    summing_is_adding_to_zero,
)
"""What ``check_codec`` asks of a codec for every tensor."""


def _decoded(codec: Codec, payload: Payload, like: Tensor) -> Tensor:
    out = torch.full_like(like, float("nan"))  # so that an element which is not written is seen
    type(codec).decode(payload, out)  # by its class: decoding needs no settings
    return out


def _is_accepted(codec: Codec, payload: bytes, like: Tensor) -> bool:
    """Whether decode takes these bytes. It may only refuse them by CorruptPayloadError."""
    try:
        out = _decoded(codec, payload, like)
    except CorruptPayloadError:
        return False
    except Exception as error:
        raise AssertionError(
            f"decode raised {type(error).__name__} ({error}), expected CorruptPayloadError"
        ) from error
    finite = bool(out.isfinite().all()) or _carries_infinity(codec)
    require(finite, "decode accepted bytes that it does not turn into finite numbers")
    return True


def _carries_infinity(codec: Codec) -> bool:
    try:
        codec.encode(torch.full((64,), float("inf")), seed=0)
    except NonFiniteError:
        return False
    return True


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def _some_below(count: int) -> list[int]:
    """All numbers below ``count`` if they are few, else the first, the last and some between."""
    if count <= 96:
        return list(range(count))
    return [*range(32), *range(32, count - 32, max(1, count // 16)), *range(count - 32, count)]


def _random_bytes(nbytes: int, chance: Generator) -> bytes:
    return torch.randint(256, (nbytes,), generator=chance, dtype=torch.uint8).numpy().tobytes()


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    python, legacy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(python)
    np.random.set_state(legacy)


def _seed_global_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _next_of_global_generators() -> tuple[int, int, int]:
    return random.getrandbits(30), int(np.random.randint(1 << 30)), int(torch.randint(1 << 30, ()))
