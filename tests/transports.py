"""Every transport as a rig: a listener, workers that connect to it, and a way to restart it."""

from __future__ import annotations

import atexit
import shutil
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.inproc import InprocListener
from thinwire.keys.lists import fingerprint
from thinwire.keys.make import new_keys
from thinwire.keys.settings import ServerKeys, WorkerKeys
from thinwire.transport.base import Connection, Listener, PeerGone, PeerId, Received
from thinwire.transport.peer_limits import DEFAULT_LIMITS, TransportLimits
from thinwire.transport.tcp import connect, listen

DEADLINE_SECONDS = 30.0
"""For what must happen. Far more than it takes, since the machine may be busy."""

ANY_PORT = "tcp://127.0.0.1:0"


@dataclass
class Rig:
    """``listen`` is given the address to listen at, or None for any."""

    listen: Callable[[str | None], Listener]
    dial: Callable[[Listener], Connection]
    listener: Listener = field(init=False)
    connections: list[Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listener = self.listen(None)

    def connect(self) -> Connection:
        self.connections.append(self.dial(self.listener))
        return self.connections[-1]

    def restart(self) -> None:
        self.listener.close()
        self.listener = self.listen(self.listener.address)

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.listener.close()

    def introduce(self) -> tuple[Connection, PeerId]:
        """A connection that has said hello, and who it is to the listener."""
        connection = self.connect()
        connection.send(b"hello", deadline_seconds=DEADLINE_SECONDS)
        received = frame(self.listener)
        assert bytes(received.frame) == b"hello"
        return connection, received.peer


def event(listener: Listener) -> Received | PeerGone:
    """What happens next; something must. Whoever is heard of is no stranger any more."""
    found = listener.receive(deadline_seconds=DEADLINE_SECONDS)
    assert found is not None, "nothing happened"
    listener.admit(found.peer)
    return found


def frame(listener: Listener) -> Received:
    found = event(listener)
    assert isinstance(found, Received), found
    return found


def gone(listener: Listener) -> PeerGone:
    found = event(listener)
    assert isinstance(found, PeerGone), found
    return found


def inproc(limits: TransportLimits = DEFAULT_LIMITS) -> Rig:
    def dial(listener: Listener) -> Connection:
        assert isinstance(listener, InprocListener)
        return listener.connect()

    return Rig(lambda _: InprocListener(limits=limits), dial)


def tcp(limits: TransportLimits = DEFAULT_LIMITS) -> Rig:
    return _over_tcp(None, limits)


def tls(limits: TransportLimits = DEFAULT_LIMITS) -> Rig:
    return _over_tcp(pair(), limits)


def _over_tcp(keys: tuple[ServerKeys, WorkerKeys] | None, limits: TransportLimits) -> Rig:
    server, worker = keys or (None, None)
    return Rig(
        lambda address: listen(address or ANY_PORT, keys=server, limits=limits),
        lambda listener: connect(
            listener.address, deadline_seconds=DEADLINE_SECONDS, keys=worker, limits=limits
        ),
    )


RIGS: dict[str, Callable[[TransportLimits], Rig]] = {"inproc": inproc, "tcp": tcp, "tls": tls}


def _folder_of_this_process() -> Path:
    """A new one, which is removed when the process ends: servers and workers outlive their rigs."""
    place = tempfile.mkdtemp(prefix="thinwire-keys-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Path(place)


def pair(folder: Path | None = None, *, ranks: str = "") -> tuple[ServerKeys, WorkerKeys]:
    """Keys of a server and of the one worker that it lets in, which may be some ranks alone."""
    place = _folder_of_this_process() if folder is None else folder
    server, server_certificate = new_keys(place, "server")
    worker, certificate = new_keys(place, "worker")
    allow = place / "workers.allow"
    der = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    allow.write_text(f"{fingerprint(der)} worker{ranks and f' ranks={ranks}'}\n")
    return ServerKeys(server, allow), WorkerKeys(worker, server_certificate)
