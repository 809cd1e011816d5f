"""Frames in a file, one after the other. Reads, and never writes."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from thinwire.errors import LogError, ProtocolError, RemoteProtocolError
from thinwire.server.disk import explained
from thinwire.server.marks import FILES
from thinwire.wire.frame import HEADER_NBYTES, Frame, frame_nbytes, unpack


class FrameFile:
    """Reads the frame at ``offset`` and goes on to the next. Frames own their memory."""

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        with explained(path, "opened"):
            self._fd = os.open(path, os.O_RDONLY)
        self.nbytes = os.fstat(self._fd).st_size

    def __enter__(self) -> FrameFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def read(self) -> Frame | None:
        """The next frame, or None at the end of the file.

        Raises RemoteProtocolError where bytes are not a frame; ``offset`` is then where they begin.
        """
        if self.offset == self.nbytes:
            return None
        header = self.bytes_at(self.offset, HEADER_NBYTES)
        nbytes = frame_nbytes(memoryview(header), limits=FILES)
        left = self.nbytes - self.offset
        if nbytes > left:
            raise RemoteProtocolError(f"frame: {left} bytes are left, its header says {nbytes}")
        frame = unpack(memoryview(self.bytes_at(self.offset, nbytes)), limits=FILES)
        self.offset += nbytes
        return frame

    def read_at(self, offset: int) -> Frame:
        """The frame that was written at ``offset``. Raises LogError if there is none."""
        self.offset = offset
        try:
            frame = self.read()
        except ProtocolError as error:
            raise LogError(f"log: {self.path}, byte {offset}: {error}") from error
        if frame is None:
            raise LogError(f"log: {self.path}, byte {offset}: the file ends here")
        return frame

    def bytes_at(self, offset: int, nbytes: int) -> bytes:
        """So many bytes, or fewer where the file ends."""
        with explained(self.path, "read"):
            return os.pread(self._fd, nbytes, offset)
