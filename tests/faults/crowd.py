"""Connections that say nothing, in a process of their own; they come back whenever they are cut."""

from __future__ import annotations

import resource
import select
import socket
from contextlib import suppress

from tests.faults import wire


def say_nothing(address: str, count: int) -> None:
    """Hold ``count`` connections at all times, until this process is killed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 200), hard))
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    crowd: dict[int, socket.socket] = {}
    ended = select.epoll()
    while True:
        while len(crowd) < count:
            one = _connected((host, int(port)))
            crowd[one.fileno()] = one
            ended.register(one.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLERR)
        for fd, _ in ended.poll(1.0):
            ended.unregister(fd)
            crowd.pop(fd).close()


def _connected(where: tuple[str, int]) -> socket.socket:
    while True:
        with suppress(OSError):
            return socket.create_connection(where, timeout=wire.SECONDS)
