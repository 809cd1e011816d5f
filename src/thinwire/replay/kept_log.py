"""``KeptLog``: what a server's log keeps that replay needs. Reads only.

Needs no lock, so that of a running server may be read: a group that is half-written is simply not
there. What updates do to weights is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from thinwire.errors import ConfigError, LogError, ProtocolError
from thinwire.server.log.history import History
from thinwire.server.log.records import FIRST_KIND
from thinwire.server.log.recovery import check_chain, undamaged
from thinwire.server.log.scan import Damage, Scan, scan
from thinwire.server.log.segment import find_segments
from thinwire.server.log.snapshot import find_snapshots, read_snapshot
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Describe, Message, Push, Update, decode


class Rate(NamedTuple):
    """The learning rate of a push, 0 if it gave none. The newest push is the greatest."""

    step: int
    worker: int
    learning_rate: float


@dataclass(slots=True)
class Pushed:
    """Versions and learning rates, as the records of a log show them.

    ``newest`` is the last version of each piece, ``numels`` its elements. Each version has two
    learning rates, both of the newest push of their kind: ``rates`` of those that were computed on
    the version before it, and ``counted`` of those that went into it. If workers skip versions
    there may be none of the first kind.
    """

    newest: dict[int, int] = field(default_factory=dict)
    numels: dict[int, int] = field(default_factory=dict)
    rates: dict[int, Rate] = field(default_factory=dict)
    counted: dict[int, Rate] = field(default_factory=dict)
    _open: dict[int, Rate] = field(default_factory=dict)

    def add_push(self, worker: int, step: int, push: Push) -> None:
        rate, next_version = Rate(step, worker, push.learning_rate), push.version + 1
        self.rates[next_version] = max(rate, self.rates.get(next_version, rate))
        for entry in push.entries:
            self._open[entry.piece] = max(rate, self._open.get(entry.piece, rate))

    def add_update(self, update: Update) -> None:
        for entry in update.entries:
            self.newest[entry.piece] = max(update.version, self.newest.get(entry.piece, 0))
            self.numels[entry.piece] = entry.encoded.numel
            rate = self._open.pop(entry.piece, None)
            if rate is not None:
                self.counted[update.version] = max(rate, self.counted.get(update.version, rate))


@dataclass(frozen=True, slots=True)
class KeptLog:
    """One server's log: its run, what was trained, and its updates."""

    folder: Path
    run: int
    description: Describe
    history: History
    pushed: Pushed


def read_log(folder: Path) -> KeptLog:
    """Read and check all segments. Raises LogError, with the place, where one is not whole."""
    while True:
        paths = find_segments(folder)
        if not paths:
            raise LogError(f"log: {folder} has no segments: is it the folder of a server's log?")
        try:
            return _read(folder, paths)
        except LogError:
            # A running server may delete the oldest segments meanwhile.
            if paths.keys() <= find_segments(folder).keys():
                raise


def _read(folder: Path, paths: dict[int, Path]) -> KeptLog:
    pushed, described = Pushed(), list[Describe]()
    scans = {number: _read_segment(path, pushed, described) for number, path in paths.items()}
    segments = undamaged(scans, 0)
    check_chain(segments)
    description = next(chain(described, _described_in_snapshots(folder)), None)
    if description is None:
        raise LogError(
            f"log: {folder} does not say what was trained: no worker has joined this server, or "
            "the records of that are deleted and no snapshot has it"
        )
    return KeptLog(folder, segments[-1].run, description, History(folder, segments), pushed)


def _read_segment(path: Path, pushed: Pushed, described: list[Describe]) -> Scan | Damage:
    frames: list[tuple[int, Frame]] = []
    result = scan(path, lambda offset, frame: frames.append((offset, frame)))
    if isinstance(result, Scan):
        for offset, frame in frames:
            if offset < result.end and frame.kind < FIRST_KIND:
                _take(_message(path, offset, frame), frame, pushed, described)
    return result


def _message(path: Path, offset: int, frame: Frame) -> Message:
    try:
        return decode(frame)
    except ProtocolError as error:
        raise LogError(f"log: {path}, byte {offset}: {error}") from error


def _take(message: Message, frame: Frame, pushed: Pushed, described: list[Describe]) -> None:
    if isinstance(message, Describe):
        described.append(message)
    elif isinstance(message, Push):
        pushed.add_push(frame.worker, frame.step, message)
    elif isinstance(message, Update):
        pushed.add_update(message)


def _described_in_snapshots(folder: Path) -> Iterator[Describe]:
    """Where the record itself is deleted, the description is among what a snapshot has pending."""
    for record, path in reversed(find_snapshots(folder).items()):
        with suppress(LogError):  # the other one may be whole, and a server deletes old ones
            for frame in read_snapshot(path, record=record).pending:
                message = _message(path, 0, frame)
                if isinstance(message, Describe):
                    yield message


def check_one_run(logs: Sequence[KeptLog]) -> None:
    """Raise ConfigError unless these are the logs of all servers of one run."""
    if not logs:
        raise ConfigError("replay: the log folders of all servers are needed, none is given")
    first = logs[0]
    for other in logs[1:]:
        if _plain(other.description) != _plain(first.description):
            raise ConfigError(
                f"replay: {other.folder} is of another model, recipe or number of servers than "
                f"{first.folder}: give the folders of one run"
            )
        if _lead(other) != _lead(first):
            raise ConfigError(
                f"replay: {other.folder} is of run {_lead(other)}, but {first.folder} of "
                f"{_lead(first)}: give the folders of one run"
            )
    _check_all_there(logs)


def _lead(log: KeptLog) -> int:
    """The run of server 0, by which servers of one training know each other."""
    return log.description.lead or log.run


def _plain(description: Describe) -> Describe:
    """What is the same for all servers."""
    return replace(description, server=0, lead=0)


def _check_all_there(logs: Sequence[KeptLog]) -> None:
    folders: dict[int, Path] = {}
    servers = logs[0].description.servers
    for log in logs:
        number = log.description.server
        if number in folders:
            raise ConfigError(
                f"replay: {folders[number]} and {log.folder} are both of server {number}: give "
                "each once"
            )
        folders[number] = log.folder
    missing = [str(number) for number in range(servers) if number not in folders]
    if missing:
        raise ConfigError(
            f"replay: the run had {servers} servers, and the log of server {', '.join(missing)} is "
            "missing: give the folders of all"
        )
