"""``check_address``: addresses of servers, and which of them need keys."""

from __future__ import annotations

import ipaddress
import re

from thinwire.errors import ConfigError

_TCP = re.compile(r"tcp://(?P<host>\[[^\]]+\]|[^:\[\]]+):(?P<port>[0-9]+)")


def check_address(address: str, *, least_port: int) -> None:
    """Raise ConfigError unless this is ``tcp://HOST:PORT``."""
    match = _TCP.fullmatch(address)
    if match is None or not least_port <= int(match["port"]) <= 65535:
        raise ConfigError(
            f"address {address!r}, expected tcp://HOST:PORT with a port from {least_port} to 65535"
        )


def check_secured(
    address: str,
    *,
    has_keys: bool,
    insecure: bool,
    remedy: str = "give keys=..., or insecure=True",
) -> None:
    """Raise ConfigError if peers on other machines could take part without keys.

    ``remedy`` says what to do, in terms of Python or of a command line.
    """
    if not (has_keys or insecure or is_loopback(address)):
        raise ConfigError(
            f"{address} is not a loopback address, so keys are required: other machines that reach "
            f"it could read and change the training; {remedy}"
        )


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it. Names other than localhost are not resolved."""
    match = _TCP.fullmatch(address)
    host = match["host"].strip("[]") if match else ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """Host and port, as sockets take them; no host is all of this machine's addresses."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return "" if host == "*" else host.strip("[]"), int(port)
