"""The laws of codecs can be broken: one codec for each way, and check_codec finds it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from thinwire.codec.base import Codec, Payload
from thinwire.errors import CorruptPayloadError
from thinwire.testing import check_codec


class Methods:
    """What the smallest lawful codec does."""

    name: ClassVar[str] = "good"
    wire_id: ClassVar[int] = 0x8001
    sparse: ClassVar[bool] = False

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return bytearray(x.numpy().tobytes())

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        if len(payload) != 4 * out.numel():
            raise CorruptPayloadError("good: wrong size")
        out.copy_(torch.from_numpy(np.frombuffer(bytes(payload), np.float32).copy()))

    def max_nbytes(self, numel: int) -> int:
        return 4 * numel


@dataclass(frozen=True)
class Good(Methods):
    """The smallest lawful codec.

    Payload: numel float32.
    """


def test_a_lawful_codec_passes() -> None:
    check_codec(Good())


class ChangesItsInput(Good):
    """Payload: the input, of which it then clears an element."""

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        payload = Methods().encode(x, seed=seed)
        x[:1] = 5.0
        return payload


class ReadsTorchsChance(Good):
    """Payload: noise."""

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return Methods().encode(torch.rand_like(x), seed=seed)


class ReadsPythonsChance(Good):
    """Payload: noise."""

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return Methods().encode(x * random.random(), seed=seed)  # noqa: S311 - the crime


class SeedsTheGlobalGenerator(Good):
    """Payload: as Good, and the model's dropout will never be the same."""

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        torch.manual_seed(seed)
        return Methods().encode(x, seed=seed)


class UnderstatesItsSize(Good):
    """Payload: more than it says."""

    def max_nbytes(self, numel: int) -> int:
        return 4 * numel - 1


class WritesHalf(Good):
    """Payload: all, but only half is written back."""

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        whole = out.clone()
        Methods.decode(payload, whole)
        out[: len(out) // 2] = whole[: len(out) // 2]


class WantsBytes(Good):
    """Payload: read differently from a view."""

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        Methods.decode(payload, out)
        if isinstance(payload, memoryview):
            out.mul_(2)


class ChangesThePayload(Good):
    """Payload: spoilt by reading."""

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        Methods.decode(payload, out)
        if isinstance(payload, bytearray) and payload:
            payload[0] ^= 1


class AcceptsLess(Good):
    """Payload: padded with zeros where it is too short."""

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        Methods.decode(bytes(payload).ljust(4 * out.numel(), b"\0"), out)


class AcceptsMore(Good):
    """Payload: cut where it is too long."""

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        Methods.decode(bytes(payload)[: 4 * out.numel()], out)


class RaisesWhateverHappens(Good):
    """Payload: wrong sizes give numpy's error."""

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        out.copy_(torch.from_numpy(np.frombuffer(bytes(payload), np.float32).copy()))


class HidesInfinity(Good):
    """Payload: with zeros in place of what is not finite."""

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return Methods().encode(x.nan_to_num(0.0, 0.0, 0.0), seed=seed)


class AddsWithoutItsWeight(Good):
    """Payload: added as it is."""

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        decoded = torch.empty_like(out)
        Methods.decode(payload, decoded)
        out.add_(decoded)


class AddsBeforeItLooks(Good):
    """Payload: refused too late."""

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        decoded = torch.empty_like(out)
        Methods.decode(payload[: 4 * out.numel()], decoded)
        out.add_(decoded * weight)
        Methods.decode(payload, decoded)


class SumsUpOntoWhatIsThere(Good):
    """Payload: added to what was in memory before."""

    @staticmethod
    def sum(payloads: Sequence[Payload], out: Tensor, *, weight: float) -> None:
        for payload in payloads:
            decoded = torch.empty_like(out)
            Methods.decode(payload, decoded)
            out.add_(decoded * weight)


class SumsUpBeforeItLooks(Good):
    """Payload: refused too late."""

    @staticmethod
    def sum(payloads: Sequence[Payload], out: Tensor, *, weight: float) -> None:
        out.zero_()
        SumsUpOntoWhatIsThere.sum(payloads, out, weight=weight)


class WritesSomethingElse(Good):
    """Payload: as Good, unless it is written."""

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        out[: 4 * x.numel()] = bytes(4 * x.numel())
        return 4 * x.numel()


class WritesBeyondItsRoom(Good):
    """Payload: as Good; what is beside it is spoilt."""

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        out[: 4 * x.numel()] = x.numpy().tobytes()
        owner = out.obj
        if isinstance(owner, bytearray) and owner:
            owner[-1] = 0
        return 4 * x.numel()


class WritesIntoTooLittle(Good):
    """Payload: as Good, cut to the room that there is."""

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        payload = x.numpy().tobytes()[: len(out)]
        out[: len(payload)] = payload
        return len(payload)


@dataclass(unsafe_hash=True)
class CanBeChanged(Methods):
    """Payload: as Good."""

    level: int = 0


@dataclass(frozen=True, repr=False)
class ForgetsItsSettings(Methods):
    """Payload: as Good."""

    level: int = 3

    def __repr__(self) -> str:
        return "ForgetsItsSettings()"


@dataclass(frozen=True, repr=False)
class CannotBeSpelled(Methods):
    """Payload: as Good."""

    def __repr__(self) -> str:
        return "<CannotBeSpelled>"


class TakesAnIdOfOurs(Good):
    """Payload: as Good."""

    wire_id = 5


class TakesANameOfOurs(Good):
    """Payload: as Good."""

    name = "topk"


class SaysNothing(Good):
    """No layout."""


BROKEN: list[tuple[Codec, str]] = [
    (ChangesItsInput(), "encode changed its input"),
    (ReadsTorchsChance(), "one seed gave different bytes"),
    (ReadsPythonsChance(), "a global random generator was used"),
    (SeedsTheGlobalGenerator(), "a global random generator was used"),
    (UnderstatesItsSize(), "max_nbytes is"),
    (WritesHalf(), "unwritten"),
    (WantsBytes(), "is read differently from bytes"),
    (ChangesThePayload(), "decode changed the payload"),
    (AcceptsLess(), "decode accepted 0 of 4 bytes"),
    (AcceptsMore(), "bytes too many"),
    (RaisesWhateverHappens(), "expected CorruptPayloadError"),
    (HidesInfinity(), "encoded as finite numbers"),
    (WritesSomethingElse(), "encode_into is not encode"),
    (WritesBeyondItsRoom(), "encode_into wrote outside of what it was given"),
    (WritesIntoTooLittle(), "encode_into took less room than max_nbytes"),
    (AddsWithoutItsWeight(), "add is not decode, multiply"),
    (AddsBeforeItLooks(), "add refused a payload but changed"),
    (SumsUpOntoWhatIsThere(), "sum is not zero plus"),
    (SumsUpBeforeItLooks(), "sum refused a payload but changed"),
    (CanBeChanged(), "its fields can be changed"),
    (ForgetsItsSettings(level=4), "is not the codec"),
    (CannotBeSpelled(), "repr"),
    (TakesAnIdOfOurs(), "wire_id is 0x0005, expected 0x8000 to 0xffff"),
    (TakesANameOfOurs(), "its name 'topk' is taken"),
    (SaysNothing(), "does not say what a Payload is made of"),
]


@pytest.mark.parametrize(("codec", "sentence"), BROKEN, ids=lambda value: type(value).__name__)
def test_a_broken_codec_is_found(codec: Codec, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence) as caught:
        check_codec(codec)
    assert type(codec).__name__ in str(caught.value)  # it says which codec
