"""Frames over TCP by ZeroMQ: a ROUTER that listens, a DEALER for each worker, CURVE between them.

Only this package imports zmq. The layout on the wire is ZMTP 3.1, one part for each frame.
"""

from __future__ import annotations

from thinwire.transport.zeromq.auth import new_keys
from thinwire.transport.zeromq.bind import listen
from thinwire.transport.zeromq.connection import ZeromqConnection, connect
from thinwire.transport.zeromq.listener import ZeromqListener

__all__ = ["ZeromqConnection", "ZeromqListener", "connect", "listen", "new_keys"]
