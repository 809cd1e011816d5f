"""``Door``: refuse new connections for a while by a socket filter. ``Watch``: a periodic thread."""

from __future__ import annotations

import ctypes
import logging
import socket
import threading
import time
from collections.abc import Callable

_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # of Linux's asm-generic/socket.h; Python has no names


_logger = logging.getLogger(__name__)


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


class Door:
    """Of the port that ``own`` listens on. Established connections are not affected.

    While it is shut, the kernel drops requests to connect. The kernels of workers retry with
    backoff, after a second, then two, so that an honest worker is late and not refused. If the
    kernel has no socket filters the door stays open, and a warning is logged.
    """

    def __init__(self, own: socket.socket | None) -> None:
        self._socket = own
        self._is_shut = False

    def shut(self, wanted: bool) -> None:
        """Shut it, or open it."""
        if self._socket is not None and wanted != self._is_shut:
            self._is_shut = wanted
            try:
                if wanted:
                    _attach_nothing(self._socket)
                else:
                    self._socket.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
            except OSError as error:
                _logger.warning(
                    "socket filters do not work here (%s): new connections cannot be refused "
                    "during a flood, and may take memory without a bound",
                    error,
                )
                self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _attach_nothing(own: socket.socket) -> None:
    """A filter of one instruction: of each packet, keep 0 bytes."""
    instruction = _Instruction(code=0x06, value=0)  # BPF_RET | BPF_K
    program = _Program(1, ctypes.pointer(instruction))
    own.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, bytes(program))


_SECONDS = 0.05


class Watch:
    """Call ``look`` periodically until stopped; it returns the delay before the next call, or None
    for the default.

    The delay is never 0, so that another thread can take the lock that both need.

    ``look`` gets the seconds since the last call, at most four default delays: a process that was
    stopped or starved did not read, so its peers were not silent.
    """

    def __init__(self, look: Callable[[float], float | None]) -> None:
        self._look = look
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="thinwire watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits until it has ended. May be called twice."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stopped.is_set():
            now = time.monotonic()
            seconds, last = min(now - last, 4 * _SECONDS), now
            wait = self._look(seconds)
            self._stopped.wait(_SECONDS if wait is None else wait)
