"""``ThinwireError`` and all its kinds: the tree of errors.

ThinwireError
  ConfigError (ValueError)          an impossible setting, refused when it is made
    UnknownCodecError               no codec of that name or wire id
  NonFiniteError (ValueError)       inf or nan where only finite numbers can be encoded
  CorruptPayloadError               bytes that no encoder can have written
  ProtocolError
    LocalProtocolError              this side broke the protocol: our bug
    RemoteProtocolError             the peer did: ends that session, never the server
  TransportError
    TransportTimeout (TimeoutError) names the peer, the seconds, and what was awaited
    TransportClosed
  WorkerLost                        names the rank, its last step and how long ago that was
  Refused                           the peer refused, and why
  LogError                          a server's log: damaged, in use, or its disk is full

A message says what was found, what was expected, where, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ThinwireError(Exception):
    """The root: catch this to catch all errors that Thinwire raises on purpose."""


class ConfigError(ThinwireError, ValueError):
    """A setting that cannot work. The message names the value and the range."""


class UnknownCodecError(ConfigError):
    """No codec is registered under this name or wire id."""

    @classmethod
    def for_name(cls, name: str, known: Iterable[str]) -> UnknownCodecError:
        known = sorted(known)
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
        return cls(f"no codec is named {name!r}{hint} Known codecs: {', '.join(known)}")


class NonFiniteError(ThinwireError, ValueError):
    """A lossy codec was given inf or nan, which only ``Float32`` can carry."""


class CorruptPayloadError(ThinwireError):
    """A payload that its codec cannot have written."""


class ProtocolError(ThinwireError):
    """A side broke the protocol; see the two kinds."""


class LocalProtocolError(ProtocolError):
    """This side tried to send what it may not send now."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes or a message that it may not send now."""


class TransportError(ThinwireError):
    """The connection failed."""


class TransportTimeout(TransportError, TimeoutError):
    """A deadline passed. Names the peer, the seconds, and what was awaited."""


class TransportClosed(TransportError):
    """The connection is closed."""


class WorkerLost(ThinwireError):
    """A worker is gone. Names its rank, its last step, and how long ago that was."""


class Refused(ThinwireError):
    """The peer refused; the message is its reason."""


class LogError(ThinwireError):
    """A server's log cannot be read or written.

    Names the file, for damage also the byte offset in it, and says what to do.
    """
