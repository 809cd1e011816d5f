"""``listen``: bind a ROUTER to an address."""

from __future__ import annotations

import zmq

from thinwire.errors import TransportError
from thinwire.transport.address import check_address, check_secured, is_ipv6
from thinwire.transport.keys import ServerCurve
from thinwire.transport.peer_limits import DEFAULT_LIMITS, TransportLimits
from thinwire.transport.zeromq.auth import secure_server
from thinwire.transport.zeromq.listener import ZeromqListener
from thinwire.transport.zeromq.port import Port


def listen(
    address: str,
    *,
    curve: ServerCurve | None = None,
    insecure: bool = False,
    limits: TransportLimits = DEFAULT_LIMITS,
) -> ZeromqListener:
    """Listen at ``tcp://HOST:PORT``; port 0 is any free one, see ``address`` of the result.

    ``insecure`` allows an address that others than this machine reach without keys. Raises
    TransportError if the address is taken or not of this machine.
    """
    check_address(address, least_port=0)
    check_secured(address, has_keys=curve is not None, insecure=insecure)
    port = Port(zmq.ROUTER, limits=limits, ipv6=is_ipv6(address))
    try:
        port.socket.set(zmq.ROUTER_MANDATORY, 1)
        # Otherwise a peer that takes a routing id in use is never read, and its memory never freed.
        port.socket.set(zmq.ROUTER_HANDOVER, 1)
        if curve is not None:
            secure_server(port.socket, curve)
        port.socket.bind(address)
    except zmq.ZMQError as error:
        port.close()
        raise TransportError(f"cannot listen at {address}: {error.strerror}") from error
    return ZeromqListener(port, limits)
