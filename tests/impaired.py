"""``ImpairedConnection``: injects faults into any connection, for tests, reproducibly.

The seed and the number of a frame decide its fault. It adds no delays of its own.
"""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from dataclasses import dataclass, fields
from typing import Final

from tests.inproc import joined
from thinwire.clock import Deadline
from thinwire.errors import ConfigError, TransportClosed
from thinwire.transport.base import Connection
from thinwire.wire.stream import Buffers


class Fault(enum.Enum):
    """What happens to one frame."""

    PASS = "pass"
    DROP = "drop"
    DUPLICATE = "duplicate"
    HOLD = "hold"  # arrives after the next frame that passes: delayed, and out of order
    TRUNCATE = "truncate"  # loses its end, at a place that the seed chooses
    FLIP = "flip"  # one bit, likewise
    RESET = "reset"  # the connection ends, and the frame is lost


@dataclass(frozen=True, slots=True)
class Faults:
    """One direction: first the ``script``, frame by frame, then each fault by its probability."""

    script: tuple[Fault, ...] = ()
    drop: float = 0.0
    duplicate: float = 0.0
    hold: float = 0.0
    truncate: float = 0.0
    flip: float = 0.0
    reset: float = 0.0

    def __post_init__(self) -> None:
        chances = [getattr(self, field.name) for field in fields(self) if field.name != "script"]
        if min(chances) < 0.0 or sum(chances) > 1.0:
            raise ConfigError(f"faults: probabilities {chances}, expected a sum in [0, 1]")

    def choose(self, number: int, chance: float) -> Fault:
        """The fault of frame ``number``, counted from 0; ``chance`` is in [0, 1)."""
        if number < len(self.script):
            return self.script[number]
        for fault in list(Fault)[1:]:
            chance -= getattr(self, fault.value)
            if chance < 0.0:
                return fault
        return Fault.PASS


NO_FAULTS: Final = Faults()


class ImpairedConnection:
    """``inner`` with faults. A frame that is held back when the connection closes is lost."""

    def __init__(
        self,
        inner: Connection,
        *,
        seed: int,
        sending: Faults = NO_FAULTS,
        receiving: Faults = NO_FAULTS,
    ) -> None:
        self._inner = inner
        self._sending = _Lane(sending, f"{seed} send")
        self._receiving = _Lane(receiving, f"{seed} receive")
        self._arrived: deque[bytes] = deque()

    @property
    def address(self) -> str:
        return self._inner.address

    def send(self, frame: Buffers, *, deadline_seconds: float) -> None:
        deadline = Deadline(deadline_seconds)
        for data in self._through(self._sending, joined(frame)):
            self._inner.send(data, deadline_seconds=deadline.left_seconds())

    def receive(self, *, deadline_seconds: float, what: str = "a frame") -> memoryview:
        deadline = Deadline(deadline_seconds)
        while not self._arrived:
            left = deadline.left_seconds()
            frame = self._inner.receive(deadline_seconds=left, what=what)
            self._arrived.extend(self._through(self._receiving, bytes(frame)))
        return memoryview(self._arrived.popleft())

    def close(self) -> None:
        self._inner.close()

    def _through(self, lane: _Lane, frame: bytes) -> list[bytes]:
        frames = lane.through(frame)
        if frames is None:
            self._inner.close()
            raise TransportClosed(f"the connection to {self.address} was reset")
        return frames


class _Lane:
    """One direction: the number of the next frame, and frames held back."""

    def __init__(self, faults: Faults, name: str) -> None:
        self._faults = faults
        self._name = name
        self._number = 0
        self._held: list[bytes] = []

    def through(self, frame: bytes) -> list[bytes] | None:
        """What arrives instead of ``frame``; None for a reset."""
        fault = self._faults.choose(self._number, self._draw("fault", 1 << 53) / (1 << 53))
        frames = self._apply(fault, frame)
        self._number += 1
        if frames and self._held:
            frames, self._held = frames + self._held, []
        if fault is Fault.HOLD:
            self._held.append(frame)
        return frames

    def _apply(self, fault: Fault, frame: bytes) -> list[bytes] | None:
        if fault in (Fault.DROP, Fault.HOLD):
            return []
        if fault is Fault.RESET:
            return None
        if fault is Fault.TRUNCATE:
            return [frame[: self._draw("place", max(1, len(frame)))]]
        if fault is Fault.FLIP and frame:
            return [_flip(frame, self._draw("place", 8 * len(frame)))]
        return [frame, frame] if fault is Fault.DUPLICATE else [frame]

    def _draw(self, what: str, below: int) -> int:
        text = f"{self._name} {self._number} {what}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") % below


def _flip(frame: bytes, bit: int) -> bytes:
    damaged = bytearray(frame)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
