"""``Session``: the state machine of one worker and one server. It does no I/O.

A session begins with the handshake Describe, Join, Welcome and ends with a Leave from each side.
Messages cross on the wire, so a side that has sent Leave still receives what the other sent before
it got that; a side that has received Leave sends only Leave. A frame that breaks a rule makes the
session FAILED: only Leave may follow, and its owner starts a new session. The owner drops what
still comes for a CLOSED session.

The rules are two tables per role and three orders:

* An update is later than the version the worker joined with: an earlier one would be applied twice.
  Versions count per piece and pieces close in any order, so updates have no order of their own.
* Nor does a welcome or a catch-up go back behind that version: the server would have lost its log.
* A worker's pushes go forward, in steps and in versions.

Which pushes count, and once only, is not decided here: see server/aggregate.py.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias

from thinwire import errors
from thinwire.wire.frame import SERVER, Frame
from thinwire.wire.limits import DEFAULT_LIMITS, Limits
from thinwire.wire.messages import (
    CatchUp,
    CaughtUp,
    Counted,
    Describe,
    Join,
    Late,
    Leave,
    Message,
    Push,
    Refusal,
    Report,
    Update,
    Welcome,
    decode,
    encode,
)


class Role(enum.Enum):
    """Which side of the session this is."""

    WORKER = "worker"
    SERVER = "server"


class State(enum.Enum):
    """The state of a session, as one side knows it."""

    NEW = "new"
    DESCRIBED = "described"  # Describe is sent, Join is next
    JOINING = "joining"  # Join is sent, not answered
    READY = "ready"
    LEAVING = "leaving"  # this side sent Leave, the peer not yet
    LEFT = "left"  # the peer sent Leave, this side not yet
    FAILED = "failed"  # the peer broke a rule
    CLOSED = "closed"


Table: TypeAlias = Mapping[State, Mapping[type[Message], State]]

_CLOSING: Table = {
    State.LEFT: {Leave: State.CLOSED},
    State.FAILED: {Leave: State.CLOSED},
}

SENDS: Mapping[Role, Table] = {
    Role.WORKER: {
        State.NEW: {Describe: State.DESCRIBED, Join: State.JOINING},
        State.DESCRIBED: {Join: State.JOINING},
        State.READY: {
            Push: State.READY,
            CatchUp: State.READY,
            Report: State.READY,
            Leave: State.LEAVING,
        },
        **_CLOSING,
    },
    Role.SERVER: {
        State.JOINING: {Welcome: State.READY, Refusal: State.CLOSED},
        State.READY: {
            Update: State.READY,
            CaughtUp: State.READY,
            Counted: State.READY,
            Refusal: State.READY,
            Late: State.READY,
            Leave: State.LEAVING,
        },
        **_CLOSING,
    },
}

RECEIVES: Mapping[Role, Table] = {
    Role.WORKER: {
        # Leave is what a server sends whose session the Join made FAILED.
        State.JOINING: {Welcome: State.READY, Refusal: State.CLOSED, Leave: State.CLOSED},
        State.READY: {
            Update: State.READY,
            CaughtUp: State.READY,
            Counted: State.READY,
            Refusal: State.READY,
            Late: State.READY,
            Leave: State.LEFT,
        },
        State.LEAVING: {
            Update: State.LEAVING,
            CaughtUp: State.LEAVING,
            Counted: State.LEAVING,
            Refusal: State.LEAVING,
            Late: State.LEAVING,
            Leave: State.CLOSED,
        },
    },
    Role.SERVER: {
        State.NEW: {Describe: State.DESCRIBED, Join: State.JOINING},
        State.DESCRIBED: {Join: State.JOINING},
        State.READY: {
            Push: State.READY,
            CatchUp: State.READY,
            Report: State.READY,
            Leave: State.LEFT,
        },
        State.LEAVING: {
            Push: State.LEAVING,
            CatchUp: State.LEAVING,
            Report: State.LEAVING,
            Leave: State.CLOSED,
        },
    },
}


class Session:
    """One side's view of one session. Make one with ``of_worker`` or ``of_server``.

    ``run`` names the training, ``epoch`` counts the server's starts in it; both are at least 1, and
    0 while a worker does not know them. ``worker`` is its number, SERVER while that is unknown.
    """

    def __init__(self, role: Role, *, run: int, epoch: int, worker: int, limits: Limits) -> None:
        self.role = role
        self.run = run
        self.epoch = epoch
        self.worker = worker
        self.state = State.NEW
        self._limits = limits
        self._joined_version = 0
        self._last_push = (0, 0)

    @classmethod
    def of_worker(cls, worker: int, *, run: int = 0, limits: Limits = DEFAULT_LIMITS) -> Session:
        """A worker's side. It joins ``run`` and no other, or with 0 the one that the server has."""
        if not 0 <= worker < SERVER:
            raise errors.ConfigError(f"session: worker {worker}, expected 0..{SERVER - 1}")
        return cls(Role.WORKER, run=run, epoch=0, worker=worker, limits=limits)

    @classmethod
    def of_server(cls, run: int, epoch: int, *, limits: Limits = DEFAULT_LIMITS) -> Session:
        """The server's side, before it knows which worker will join."""
        if run < 1 or epoch < 1:
            raise errors.ConfigError(f"session: run {run}, epoch {epoch}, expected at least 1 each")
        return cls(Role.SERVER, run=run, epoch=epoch, worker=SERVER, limits=limits)

    def encode(self, message: Message, *, step: int = 0) -> Frame:
        """The frame of ``message`` from this side. A server may send one frame in many sessions."""
        sender = self.worker if self.role is Role.WORKER else SERVER
        return encode(
            message,
            run=self.run,
            epoch=self.epoch,
            worker=sender,
            step=step,
            limits=self._limits,
        )

    def send(self, message: Message, *, step: int = 0) -> None:
        """Note that ``message`` is sent now, or raise LocalProtocolError and change nothing."""
        self._move(SENDS[self.role], message, step)

    def receive(self, frame: Frame) -> Message:
        """The message in ``frame``; RemoteProtocolError if it is not allowed now, and FAILED."""
        try:
            self._check_sender(frame)
            message = decode(frame, limits=self._limits)
            self._move(RECEIVES[self.role], message, frame.step)
        except errors.ProtocolError as error:
            self.fail()
            raise errors.RemoteProtocolError(str(error)) from error
        self._bind(frame, message)
        return message

    def fail(self) -> None:
        """The peer broke a rule: only Leave may be sent now."""
        has_left = self.state in (State.LEAVING, State.CLOSED)
        self.state = State.CLOSED if has_left else State.FAILED

    def _check_sender(self, frame: Frame) -> None:
        """Refuse frames to another run, to the server before its restart, or of another peer."""
        if self.role is Role.SERVER and self.state in (State.NEW, State.DESCRIBED):
            right = frame.run in (0, self.run) and frame.epoch == 0 and frame.worker != SERVER
            right = right and (self.state is State.NEW or frame.worker == self.worker)
        elif self.role is Role.WORKER and self.epoch == 0:
            right = self.run in (0, frame.run) and 0 not in (frame.run, frame.epoch)
            right = right and frame.worker == SERVER
        else:
            peer = self.worker if self.role is Role.SERVER else SERVER
            right = (frame.run, frame.epoch, frame.worker) == (self.run, self.epoch, peer)
        if not right:
            raise errors.RemoteProtocolError(
                f"session: frame of run {frame.run}, epoch {frame.epoch}, worker {frame.worker}; "
                f"this {self.role.value}'s session is {self.state.value}, of run {self.run}, "
                f"epoch {self.epoch}, worker {self.worker}"
            )

    def _bind(self, frame: Frame, message: Message) -> None:
        if isinstance(message, Describe | Join):
            self.worker = frame.worker
        elif isinstance(message, Welcome):
            self.run, self.epoch = frame.run, frame.epoch

    def _move(self, table: Table, message: Message, step: int) -> None:
        allowed = table.get(self.state, {})
        if type(message) not in allowed:
            names = ", ".join(cls.__name__ for cls in allowed) or "nothing"
            raise errors.LocalProtocolError(
                f"session: {type(message).__name__} while the {self.role.value} is "
                f"{self.state.value}, expected {names}"
            )
        self._check_order(message, step)
        self.state = allowed[type(message)]

    def _check_order(self, message: Message, step: int) -> None:
        """Check the three orders, and remember what the next message is compared with."""
        if isinstance(message, Join):
            self._joined_version = message.version
        elif isinstance(message, Welcome | CatchUp | CaughtUp):
            name = type(message).__name__.lower()
            _check_at_least(f"{name}: version", message.version, self._joined_version)
        elif isinstance(message, Update):
            _check_at_least("update: version", message.version, self._joined_version + 1)
        elif isinstance(message, Push):
            last_step, last_version = self._last_push
            _check_at_least("push: step", step, last_step)
            _check_at_least("push: version", message.version, last_version)
            self._last_push = (step, message.version)


def _check_at_least(where: str, value: int, least: int) -> None:
    if value < least:
        raise errors.LocalProtocolError(f"{where} {value}, expected at least {least}")
