"""Certificates that are too old, of others, revoked, or for other hosts and ranks."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import thinwire as tw
from tests.certificates import make_authority, make_key
from tests.faults import wire
from tests.server.processes import ServerProcess
from tests.server.servers import network, plain_sgd
from tests.transports import ANY_PORT, DEADLINE_SECONDS, frame, gone, pair
from thinwire import errors
from thinwire.keys.lists import fingerprint
from thinwire.keys.settings import ServerKeys, WorkerKeys, certificate_of, own_certificate
from thinwire.transport.base import Connection, Listener, PeerId
from thinwire.transport.peer_limits import TransportLimits
from thinwire.transport.tcp import connect, listen

LIMITS = TransportLimits(first_frame_seconds=1.0)


def reach(listener: Listener, keys: WorkerKeys) -> Connection:
    return connect(listener.address, deadline_seconds=DEADLINE_SECONDS, keys=keys, limits=LIMITS)


def let_in(listener: Listener, keys: WorkerKeys) -> tuple[Connection, PeerId]:
    connection = reach(listener, keys)
    connection.send(b"hello", deadline_seconds=DEADLINE_SECONDS)
    return connection, frame(listener).peer


def refused(keys: ServerKeys, worker: WorkerKeys) -> str:
    """What the worker is told, at its first attempt, in one sentence."""
    with closing(listen(ANY_PORT, keys=keys, limits=LIMITS)) as listener:
        with pytest.raises(errors.Refused) as caught:
            reach(listener, worker)
        assert listener.receive(deadline_seconds=0.0) is None
        said = str(caught.value)
        assert "\n" not in said
        assert said.startswith(f"the {'certificate of the ' * ('certificate of' in said)}server at")
        return said


def accepted(keys: ServerKeys, worker: WorkerKeys) -> None:
    with closing(listen(ANY_PORT, keys=keys, limits=LIMITS)) as listener:
        let_in(listener, worker)[0].close()


def own_pair(server: Path, worker: Path) -> tuple[ServerKeys, WorkerKeys]:
    """Keys that trust each other's certificate."""
    return ServerKeys(server, certificate_of(worker)), WorkerKeys(worker, certificate_of(server))


@pytest.mark.parametrize(
    ("first_day", "last_day", "alert", "why"),
    [
        (-2, -1, "SSLV3_ALERT_CERTIFICATE_EXPIRED", "has expired"),
        (1, 2, "SSLV3_ALERT_BAD_CERTIFICATE", "is not yet valid"),
    ],
)
def test_a_certificate_is_valid_for_its_time_alone(
    first_day: int, last_day: int, alert: str, why: str, tmp_path: Path
) -> None:
    good, other = make_key(tmp_path, "good"), make_key(tmp_path, "other")
    bad = make_key(tmp_path, "bad", first_day=first_day, last_day=last_day)
    accepted(*own_pair(good, other))
    assert f"refuses this worker: {alert}" in refused(*own_pair(good, bad))
    assert f"is not valid: certificate {why}" in refused(*own_pair(bad, good))


def speak(client: socket.socket, context: ssl.SSLContext) -> bytes:
    with context.wrap_socket(client) as secured:
        secured.sendall(wire.frame(b"let me in"))
        return wire.read_frame(secured)


def test_a_certificate_without_its_key_is_worth_nothing(tmp_path: Path) -> None:
    """The hello names one that is allowed, and another is shown, or none."""
    server, worker = pair(tmp_path)
    thief = make_key(tmp_path, "thief")
    allowed = own_certificate(Path(worker.key))
    with closing(listen(ANY_PORT, keys=server, limits=LIMITS)) as listener:
        for key in (thief, None):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if key is not None:
                context.load_cert_chain(certificate_of(key), key)
            with wire.tcp(listener.address) as client:
                client.sendall(wire.hello(wire.TLS, allowed))
                assert wire.read_hello(client)[0] == wire.TLS
                with pytest.raises(OSError, match=r"ALERT|reset|ended"):
                    speak(client, context)
            assert listener.receive(deadline_seconds=0.1) is None
        let_in(listener, worker)[0].close()


def test_a_server_that_has_not_the_key_of_its_certificate_is_not_talked_to(tmp_path: Path) -> None:
    """It can copy the certificate, and must prove more."""
    _, worker = pair(tmp_path)
    assert worker.server is not None
    thief = make_key(tmp_path, "thief")
    keys = ServerKeys(thief, certificate_of(Path(worker.key)))
    listener = listen(ANY_PORT, keys=keys, limits=LIMITS)
    stolen = ssl.PEM_cert_to_DER_cert(Path(worker.server).read_text())
    listener._all._tls.certificate = stolen  # type: ignore[union-attr]  # for its hello
    with closing(listener), pytest.raises(errors.Refused, match="is not valid: self-signed"):
        reach(listener, worker)


class Guests:
    """A listener whose list names two workers, in a file or in a folder."""

    def __init__(self, folder: Path, form: str) -> None:
        server = make_key(folder, "server")
        self.allow = folder / "allowed"
        self.keys = [make_key(folder, name) for name in ("one", "two")]
        if form == "folder":
            self.allow.mkdir()
        self._form = form
        self.invite(self.keys)
        self.listener = listen(ANY_PORT, keys=ServerKeys(server, self.allow), limits=LIMITS)
        self.workers = [WorkerKeys(key, certificate_of(server)) for key in self.keys]

    def invite(self, keys: list[Path]) -> None:
        """These, and no others."""
        if self._form == "file":
            lines = [f"{fingerprint(own_certificate(key))} {key.stem}\n" for key in keys]
            self.allow.write_text("".join(lines))
            return
        for key in self.keys:
            copy = self.allow / f"{key.stem}.crt"
            if key in keys:
                copy.write_text(certificate_of(key).read_text())
            else:
                copy.unlink(missing_ok=True)


@pytest.fixture(params=["file", "folder"])
def guests(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guests]:
    made = Guests(tmp_path, request.param)
    yield made
    made.listener.close()


def test_who_is_taken_off_the_list_is_disconnected_and_the_others_stay(guests: Guests) -> None:
    (one, peer_one), (two, peer_two) = (let_in(guests.listener, keys) for keys in guests.workers)
    guests.invite(guests.keys[1:])
    found = gone(guests.listener)
    assert (found.peer, found.reason) == (peer_one, "its key is not on the list any more")
    with pytest.raises(errors.TransportClosed):
        one.receive(deadline_seconds=DEADLINE_SECONDS)
    with pytest.raises(errors.Refused, match="does not know this worker's key"):
        reach(guests.listener, guests.workers[0])
    two.send(b"still here", deadline_seconds=DEADLINE_SECONDS)
    assert frame(guests.listener).peer == peer_two
    guests.invite(guests.keys)
    guests.listener.receive(deadline_seconds=1.5)
    again, _ = let_in(guests.listener, guests.workers[0])
    for connection in (one, two, again):
        connection.close()


def test_a_busy_server_revokes_as_well(guests: Guests) -> None:
    """Its owner does not look for events meanwhile."""
    connection, _ = let_in(guests.listener, guests.workers[0])
    guests.invite(guests.keys[1:])
    with pytest.raises(errors.TransportClosed):
        connection.receive(deadline_seconds=DEADLINE_SECONDS)
    connection.close()


@pytest.mark.parametrize("damage", ["", "nonsense\n"], ids=["gone", "damaged"])
def test_a_list_that_cannot_be_read_changes_nothing(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guests = Guests(tmp_path, "file")
    connection, peer = let_in(guests.listener, guests.workers[0])
    guests.allow.unlink()
    if damage:
        guests.allow.write_text(damage)
    assert guests.listener.receive(deadline_seconds=2.5) is None
    assert caplog.text.count("the list of workers stays as it was") == 1
    connection.send(b"still here", deadline_seconds=DEADLINE_SECONDS)
    assert frame(guests.listener).peer == peer
    connection.close()
    guests.listener.close()


def test_an_authority_vouches_for_its_own_and_nobody_else(tmp_path: Path) -> None:
    ours, theirs = make_authority(tmp_path, "ours"), make_authority(tmp_path, "theirs")
    server = make_key(tmp_path, "server", by=ours)
    mine, other = make_key(tmp_path, "mine", by=ours), make_key(tmp_path, "other", by=theirs)
    own = make_key(tmp_path, "own")
    keys, ca = ServerKeys(server, ca=ours.certificate), ours.certificate
    accepted(keys, WorkerKeys(mine, ca=ca))
    accepted(keys, WorkerKeys(mine, certificate_of(server)))
    for stranger in (other, own):
        assert "refuses this worker: " in refused(keys, WorkerKeys(stranger, ca=ca))
    foreign = ServerKeys(make_key(tmp_path, "foreign", by=theirs), ca=ca)
    assert "is not valid: unable to get local issuer" in refused(foreign, WorkerKeys(mine, ca=ca))


def test_under_an_authority_a_server_has_the_name_of_its_address(tmp_path: Path) -> None:
    """Or any of its workers could pretend to be the server."""
    ca = make_authority(tmp_path, "ours")
    worker = WorkerKeys(make_key(tmp_path, "worker", by=ca), ca=ca.certificate)
    elsewhere = make_key(tmp_path, "server", by=ca, host="192.0.2.7")
    said = refused(ServerKeys(elsewhere, ca=ca.certificate), worker)
    assert "is not valid: IP address mismatch" in said


def test_with_a_list_and_an_authority_a_worker_needs_both(tmp_path: Path) -> None:
    ca = make_authority(tmp_path, "ours")
    server, mine = make_key(tmp_path, "server", by=ca), make_key(tmp_path, "mine", by=ca)
    unlisted, unsigned = make_key(tmp_path, "unlisted", by=ca), make_key(tmp_path, "unsigned")
    allow = tmp_path / "allowed"
    listed = [fingerprint(own_certificate(key)) for key in (mine, unsigned)]
    allow.write_text("\n".join(listed))
    keys = ServerKeys(server, allow, ca.certificate)
    accepted(keys, WorkerKeys(mine, ca=ca.certificate))
    assert "does not know" in refused(keys, WorkerKeys(unlisted, ca=ca.certificate))
    assert "refuses this worker: " in refused(keys, WorkerKeys(unsigned, ca=ca.certificate))


def test_a_key_is_good_for_its_ranks_alone(tmp_path: Path) -> None:
    recipe = tw.dense()
    server, worker = pair(tmp_path, ranks="0,2-3")
    with ServerProcess(tmp_path / "server", recipe, workers=5, keys=server) as running:

        def join(rank: int, keys: WorkerKeys) -> None:
            net = network()
            with tw.Client(
                [running.address],
                recipe,
                rank=rank,
                workers=5,
                keys=keys,
                deadline_seconds=DEADLINE_SECONDS,
            ) as client:
                client.attach(net, plain_sgd(net))

        for rank in (1, 4):
            with pytest.raises(errors.Refused, match=f"your key may not be used by worker {rank}"):
                join(rank, worker)
        assert "worker 1: your key may not be used by worker 1" in running.log()
        for rank in (0, 2, 3):
            join(rank, worker)
        assert "joined at version 0" in running.log()


def test_keys_of_before_are_told_apart(tmp_path: Path) -> None:
    """Those of CURVE: NAME.secret and NAME.public, and a list of the latter."""
    secret, public = tmp_path / "worker.secret", tmp_path / "worker.public"
    digits = "0123456789abcdef" * 4
    secret.write_text(f"public {digits}\nsecret {digits}\n")
    secret.chmod(0o600)
    public.write_text(f"{digits} worker\n")
    good = make_key(tmp_path, "good")
    for make in (
        lambda: WorkerKeys(secret, certificate_of(good)),
        lambda: WorkerKeys(good, public),
        lambda: WorkerKeys(good, secret),
        lambda: ServerKeys(secret, public),
        lambda: ServerKeys(good, public),
        lambda: ServerKeys(good, secret),
    ):
        with pytest.raises(errors.ConfigError, match="thinwire keys new") as caught:
            make()
        assert "of an older Thinwire" in str(caught.value)
        assert digits not in str(caught.value)
