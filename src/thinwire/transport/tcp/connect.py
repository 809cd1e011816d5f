"""``connect``: reach a server, trying again until it answers, and shake hands with it."""

from __future__ import annotations

import errno
import logging
import socket
import ssl

from thinwire.address import check_address, check_secured, split_address
from thinwire.clock import Deadline, Retries
from thinwire.errors import Refused, RemoteProtocolError, TransportError, TransportTimeout
from thinwire.keys.settings import WorkerKeys
from thinwire.keys.tls import WorkerTls
from thinwire.transport.peer_limits import DEFAULT_LIMITS, TransportLimits
from thinwire.transport.tcp.connection import TcpConnection
from thinwire.transport.tcp.peer import tune
from thinwire.transport.tcp.stream import PlainStream, TlsStream
from thinwire.wire.hello import REFUSALS, Hello, HelloReader, Word

_logger = logging.getLogger(__name__)

_ATTEMPT_SECONDS = 5.0
_FAILED = "no server answered", "is it running, and is the address right?"
_NOT_LET_IN = "nothing let this worker in", "is it a Thinwire server, and is it full?"


def connect(
    address: str,
    *,
    deadline_seconds: float,
    keys: WorkerKeys | None = None,
    insecure: bool = False,
    limits: TransportLimits = DEFAULT_LIMITS,
) -> TcpConnection:
    """Connect to the server at ``tcp://HOST:PORT``, trying again until it answers.

    ``insecure`` allows a server that is not on this machine without keys. Raises TransportTimeout
    if no server answers in time, Refused if one of both does not accept the other's key.
    """
    check_address(address, least_port=1)
    check_secured(address, has_keys=keys is not None, insecure=insecure)
    tls = None if keys is None else WorkerTls(keys)
    deadline = Deadline(deadline_seconds)
    retries, (failed, doubts) = Retries(deadline), _FAILED
    while True:
        attempt = Deadline(max(0.01, min(_ATTEMPT_SECONDS, deadline.left_seconds())))
        try:
            own = socket.create_connection(split_address(address), timeout=attempt.seconds)
            failed, doubts = _NOT_LET_IN
            return _shake_hands(own, address, tls, limits, attempt)
        except (OSError, RemoteProtocolError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise TransportError(
                    f"cannot connect to {address}: this process can open no more files "
                    f"({error.strerror}): raise the limit with ulimit -n"
                ) from None
            _logger.debug("%s: %s", address, error)
        if deadline.passed():
            raise TransportTimeout(f"{failed} at {address} within {deadline.seconds:g} s: {doubts}")
        if retries.is_reminder_due():
            end = f"giving up after {deadline.seconds:.3g} s"
            _logger.warning("waiting for %s: %s so far; %s %s", address, failed, doubts, end)
        retries.pause()


def _shake_hands(
    own: socket.socket,
    address: str,
    tls: WorkerTls | None,
    limits: TransportLimits,
    attempt: Deadline,
) -> TcpConnection:
    try:
        tune(own)
        word = Word.PLAIN if tls is None else Word.TLS
        own.sendall(Hello(word, b"" if tls is None else tls.certificate).pack())
        answer = HelloReader().read(own.recv)
        if answer.word is not word:
            _, why = REFUSALS.get(answer.word, ("", "gives an answer that does not fit"))
            raise Refused(f"the server at {address} {why}")
        stream = PlainStream(own) if tls is None else _secured(own, address, tls, answer)
        connection = TcpConnection(own, stream, address, limits)
        connection.await_welcome(attempt)
        return connection
    except BaseException as error:
        own.close()
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            why = f"{error.reason}: is its certificate valid, and of an authority known there?"
            raise Refused(f"the server at {address} refuses this worker: {why}") from None
        raise


def _secured(own: socket.socket, address: str, tls: WorkerTls, answer: Hello) -> TlsStream:
    if not tls.knows(answer.certificate):
        raise Refused(
            f"the server at {address} has another key than the one that was given for it: "
            "is this the right address, and its certificate up to date?"
        )
    host, _ = split_address(address)
    stream = TlsStream(own, tls.context(answer.certificate), server_side=False, host=host)
    try:
        stream.handshake()
        return stream
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        raise Refused(f"the certificate of the server at {address} is not valid: {why}") from None
