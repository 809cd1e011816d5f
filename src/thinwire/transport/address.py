"""Where a server is, and whether it may be there without keys."""

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


def check_secured(address: str, *, has_keys: bool, insecure: bool) -> None:
    """Raise ConfigError if frames would leave this machine with nobody knowing who sent them."""
    if not (has_keys or insecure or is_loopback(address)):
        raise ConfigError(
            f"{address} is not a loopback address, so keys are required: anybody who reaches it "
            "could read and change the training; give keys, or say insecure=True"
        )


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it. A name other than localhost may mean anything."""
    match = _TCP.fullmatch(address)
    host = match["host"].strip("[]") if match else ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_ipv6(address: str) -> bool:
    return address.startswith("tcp://[")
