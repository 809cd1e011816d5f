"""A listener, or a worker, in a process that can be measured and frozen.

A listener prints its address, and then a line for each peer that is gone. It does what frames say:
``ping...`` is sent back, and admits if a number follows; ``listen`` admits, and gets updates
without end; ``nap`` makes the server busy for a while; ``hush`` does nothing. Anything else is no
frame: its sender is dropped, as a service does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tests.transports import ANY_PORT, DEADLINE_SECONDS
from thinwire.errors import TransportTimeout
from thinwire.transport.base import Connection, Listener, PeerId, Received
from thinwire.transport.peer_limits import TransportLimits
from thinwire.transport.tcp import connect, listen

if TYPE_CHECKING:  # in typing only from Python 3.11 on
    from typing_extensions import Self

NAP_SECONDS = 3.0
_UPDATE = bytes(1 << 16)


class Process:
    """A program of this module, from outside. Use as a context: it is killed at the end."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.processes", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.first_line = self._process.stdout.readline().strip()
        self.first_nbytes = self._status("VmRSS")
        self.lines: list[str] = []
        self.log: list[str] = []
        self.changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._note, args=("stdout", self.lines)),
            threading.Thread(target=self._note, args=("stderr", self.log)),
        ]
        for thread in self._threads:
            thread.start()

    def _note(self, name: str, lines: list[str]) -> None:
        for line in getattr(self._process, name):
            with self.changed:
                lines.append(line.strip())
                self.changed.notify_all()

    def begin_peak(self) -> None:
        """Forget the peak so far."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def peak(self) -> int:
        """The most memory in use since ``begin_peak``, in bytes."""
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(text.split(f"{name}:")[1].split()[0]) << 10

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


class ServerProcess(Process):
    """The listener. ``gone`` says why peers were gone."""

    def __init__(self, limits: TransportLimits) -> None:
        super().__init__("listen", json.dumps(asdict(limits)))
        self.address, self.gone = self.first_line, self.lines

    def wait_for_loss(self, reason: str) -> None:
        """Until a peer is gone for this reason; forgets all that came so far."""
        with self.changed:
            found = self.changed.wait_for(
                lambda: any(re.search(reason, line) for line in self.gone), timeout=DEADLINE_SECONDS
            )
            assert found, f"no peer is gone because {reason!r}, but: {self.gone[-5:]}"
            self.gone.clear()

    def wait_for_log(self, text: str) -> None:
        """Until the log says this: it also names strangers whose words nobody has read."""
        with self.changed:
            found = self.changed.wait_for(
                lambda: any(re.search(text, line) for line in self.log), timeout=DEADLINE_SECONDS
            )
            assert found, f"the log does not say {text!r}, but: {self.log[-5:]}"


class WorkerProcess(Process):
    """A worker that says hello and then only listens."""

    def __init__(self, address: str, limits: TransportLimits) -> None:
        super().__init__("connect", json.dumps(asdict(limits)), address)


def _serve(listener: Listener) -> None:
    listening: set[PeerId] = set()
    while True:
        event = listener.receive(deadline_seconds=0.0 if listening else 1.0)
        if isinstance(event, Received):
            _obey(listener, event, listening)
        elif event is not None:
            listening.discard(event.peer)
            print(event.reason, flush=True)
        for peer in listening:
            listener.send(peer, _UPDATE)


def _obey(listener: Listener, event: Received, listening: set[PeerId]) -> None:
    word = bytes(event.frame[:6])
    if word.startswith(b"ping ") or word == b"listen":
        listener.admit(event.peer)
    if word.startswith(b"ping"):
        listener.send(event.peer, bytes(event.frame))
    elif word == b"listen":
        listening.add(event.peer)
    elif word == b"nap":
        time.sleep(NAP_SECONDS)
    elif word.rstrip() != b"hush":
        listening.discard(event.peer)
        listener.drop(event.peer, "it sent no frame")


def _work(connection: Connection) -> None:
    connection.send(b"hello", deadline_seconds=DEADLINE_SECONDS)
    print("connected", flush=True)
    while True:
        with suppress(TransportTimeout):
            connection.receive(deadline_seconds=DEADLINE_SECONDS)


def _main(role: str, settings: str, *address: str) -> None:
    limits = TransportLimits(**json.loads(settings))
    if role == "listen":
        listener = listen(ANY_PORT, limits=limits)
        print(listener.address, flush=True)
        _serve(listener)
    else:
        _work(connect(*address, deadline_seconds=DEADLINE_SECONDS, limits=limits))


if __name__ == "__main__":
    _main(*sys.argv[1:])
