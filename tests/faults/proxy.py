"""A TCP proxy for tests: bytes pass through it late, damaged, or not at all.

    with Proxy("127.0.0.1", 5555) as proxy:
        connection = connect(proxy.address, ...)   # instead of the server's own address
        proxy.to_server.delay_seconds = 0.1        # from now on
        proxy.to_server.flip_at = 5000             # damage one bit of the 5000th byte from now
        proxy.cut()                                # end all connections; new ones may come

It knows nothing of what passes.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

_CHUNK_NBYTES = 1 << 16


class Lane:
    """What happens to the bytes of one direction. Set a field at any time, from any thread.

    ``delay_seconds``: each chunk waits so long. ``paused``: nothing passes, the connection stays,
    as if the network were gone. ``flip_at``, ``cut_at``, ``repeat_at``: after how many bytes from
    now one bit is flipped, the connection ends, or what came last passes twice; over all
    connections, and once.
    """

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        self.paused = False
        self.flip_at: int | None = None
        self.cut_at: int | None = None
        self.repeat_at: int | None = None
        self.passed_nbytes = 0

    def through(self, chunk: bytes) -> tuple[bytes, bool]:
        """What passes instead of ``chunk``, and whether the connection ends after it."""
        end = self.cut_at is not None and self.cut_at <= len(chunk)
        flip = self.flip_at is not None and self.flip_at < len(chunk)
        data = bytearray(chunk)
        if flip and self.flip_at is not None:
            data[self.flip_at] ^= 0x10
        if end and self.cut_at is not None:
            del data[self.cut_at :]
        repeat = self.repeat_at is not None and self.repeat_at < len(chunk)
        if repeat and self.repeat_at is not None:
            data = data[: self.repeat_at + 1] + data
        self.repeat_at = None if repeat or self.repeat_at is None else self.repeat_at - len(chunk)
        self.flip_at = None if flip or self.flip_at is None else self.flip_at - len(chunk)
        self.cut_at = None if end or self.cut_at is None else self.cut_at - len(chunk)
        self.passed_nbytes += len(data)
        return bytes(data), end


class Proxy:
    """Listens on a free port of 127.0.0.1 and passes each connection on to ``host``, ``port``."""

    def __init__(self, host: str, port: int) -> None:
        self.to_server = Lane()
        self.to_worker = Lane()
        self._target = (host, port)
        self._changed = threading.Event()  # set when the proxy closes: ends every wait
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self, *, reset: bool = True) -> None:
        """End all connections, by RST or in good order."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        ends = [end for pair in pairs for end in pair]
        if reset:
            for end in ends:
                with suppress(OSError):  # it has ended already
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the threads, which close it

    def wait_for_traffic(self, nbytes: int = 30_000, *, deadline_seconds: float = 120.0) -> None:
        """Until so many bytes more have gone to workers: what is disturbed must be at work.

        Where tests share processors, processes may take long to start.
        """
        until = time.monotonic() + deadline_seconds
        enough = self.to_worker.passed_nbytes + nbytes
        while self.to_worker.passed_nbytes < enough:
            if time.monotonic() > until:
                raise AssertionError(f"no traffic at {self.address}")
            time.sleep(0.005)

    def close(self) -> None:
        self._changed.set()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, work: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._changed.is_set():
            if not select.select([self._listener], [], [], 0.05)[0]:
                continue
            worker, _ = self._listener.accept()
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                worker.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._pairs.append((worker, server))
            self._start(self._serve, worker, server)

    def _serve(self, worker: socket.socket, server: socket.socket) -> None:
        """Both directions of one connection; closes it when one has ended."""
        with worker, server:
            back = threading.Thread(target=self._pass, args=(server, worker, self.to_worker))
            back.start()
            self._pass(worker, server, self.to_server)
            back.join()

    def _pass(self, source: socket.socket, sink: socket.socket, lane: Lane) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK_NBYTES):
                while lane.paused and not self._changed.is_set():
                    self._changed.wait(0.01)
                if lane.delay_seconds:
                    self._changed.wait(lane.delay_seconds)
                data, end = lane.through(chunk)
                sink.sendall(data)
                if end:
                    break
        for ended in (source, sink):
            with suppress(OSError):
                ended.shutdown(socket.SHUT_RDWR)
