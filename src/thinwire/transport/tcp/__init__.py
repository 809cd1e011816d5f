"""Frames over TCP, in plain or by TLS 1.3. Only this package opens sockets."""

from thinwire.transport.tcp.connect import connect
from thinwire.transport.tcp.listener import listen

__all__ = ["connect", "listen"]
