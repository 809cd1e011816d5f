"""What joins the processes of the server benchmark: loopback, or a link of a given rate.

For a link every process gets a host of its own: see ``hosts``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from thinwire.errors import ConfigError
from thinwire.lab.bench.hosts import Host, hosts
from thinwire.lab.bench.server_crew import LOOPBACK, Place

LOOPBACK_LINK = "loopback"

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def bits_per_second(link: str) -> int | None:
    """The rate of a link such as "100mbit" or "1gbit"; None for loopback."""
    return None if link == LOOPBACK_LINK else read_rate(link, otherwise=LOOPBACK_LINK)


def read_rate(text: str, *, otherwise: str) -> int:
    """Bits per second. ``otherwise`` is what could have been said instead of a rate."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})(kbit|mbit|gbit)", text)
    if found is None:
        raise ConfigError(f"bench: link {text!r}, expected {otherwise} or a rate such as 1gbit")
    return int(found[1]) * _UNITS[found[2]]


@contextmanager
def places_on(link: str, count: int) -> Iterator[list[Place]]:
    """Places for so many processes, whose hosts each send and receive at the link's rate."""
    rate = bits_per_second(link)
    if rate is None:
        yield [LOOPBACK] * count
        return
    with hosts(count) as made:
        made.limit(rate)
        yield [place_on(host) for host in made.hosts]


def place_on(host: Host) -> Place:
    return Place(host.address, host.interface, host.prefix)
