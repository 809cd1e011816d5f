"""Files of a log: names, whole and durable writes, the folder's lock, and ``FrameFile`` to read."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

from thinwire.errors import LogError, ProtocolError, RemoteProtocolError
from thinwire.files import Buffer, replacing
from thinwire.server.log.records import FILES
from thinwire.wire.frame import HEADER_NBYTES, Frame, frame_nbytes, unpack

_MOST_BUFFERS = 1024  # IOV_MAX of Linux: more buffers in one call are refused
_DIGITS = 12  # of the numbers in names, so that names sort as numbers do

_ADVICE = {
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG): "make room on its disk",
    (errno.EACCES, errno.EPERM, errno.EROFS): "let this user read and write it",
    (errno.EMFILE, errno.ENFILE): "allow more open files (ulimit -n)",
    (errno.EISDIR, errno.ENOTDIR, errno.EEXIST): "move it away",
}


@contextmanager
def explained(path: Path, doing: str) -> Generator[None, None, None]:
    """Turn an OSError into a LogError about ``path`` that says what to do."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        known = (advice for numbers, advice in _ADVICE.items() if error.errno in numbers)
        advice = next(known, "check its disk")
        raise LogError(
            f"log: {path} could not be {doing}: {why}; {advice}, then restart"
        ) from error


def list_folder(folder: Path) -> list[Path]:
    """All paths in it. Raises LogError if it cannot be read, where ``Path.glob`` finds nothing."""
    with explained(folder, "listed"):
        return [folder / name for name in os.listdir(folder)]


def numbered_path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:0{_DIGITS}}"


def find_numbered(folder: Path, name: str) -> dict[int, Path]:
    """Path by number, the newest last, of names that ``numbered_path`` gives."""
    paths = {}
    for path in list_folder(folder):
        digits = path.name.removeprefix(f"{name}-")
        if digits.isdecimal() and path == numbered_path(folder, name, int(digits)):
            paths[int(digits)] = path
    return dict(sorted(paths.items()))


def write_at(fd: int, parts: Sequence[Buffer], offset: int) -> int:
    """Write all of ``parts`` at ``offset``, in as few calls as possible; returns the end."""
    for start in range(0, len(parts), _MOST_BUFFERS):
        left = parts[start : start + _MOST_BUFFERS]
        while left:
            written = os.pwritev(fd, left, offset)
            offset += written
            left = _after(left, written)
    return offset


def _after(parts: Sequence[Buffer], nbytes: int) -> Sequence[Buffer]:
    """What is left of ``parts`` after a short write of ``nbytes``."""
    for i, part in enumerate(parts):
        if nbytes < len(part):
            return [memoryview(part)[nbytes:], *parts[i + 1 :]]
        nbytes -= len(part)
    return []


def write_whole(path: Path, frames: Iterable[Sequence[Buffer]], *, replaces: bool = True) -> int:
    """Write ``path`` atomically and durably; returns its nbytes.

    Unless it ``replaces`` a file, raises LogError if there is one.
    """
    with explained(path, "written"), replacing(path) as temporary:
        nbytes = _write_new(temporary, frames)
        if not replaces:
            _check_free(path)
    return nbytes


def _check_free(path: Path) -> None:
    """Raise LogError if ``path`` exists. The folder's lock keeps other servers from making it."""
    try:
        path.lstat()
    except FileNotFoundError:
        return
    raise LogError(
        f"log: {path} is there already, expected nothing of that name: it is left as it is. Does "
        "something else write into this folder? Move the file away, or use another folder"
    )


def _write_new(path: Path, frames: Iterable[Sequence[Buffer]]) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        end = 0
        for parts in frames:
            end = write_at(fd, parts, end)
    finally:
        os.close(fd)
    return end


def cut_file(path: Path, nbytes: int) -> None:
    """Truncate a file to ``nbytes``, and sync it."""
    with explained(path, "cut"):
        fd = os.open(path, os.O_WRONLY)
        try:
            os.ftruncate(fd, nbytes)
            os.fsync(fd)
        finally:
            os.close(fd)


def lock_folder(folder: Path) -> int:
    """Lock ``folder`` until the returned file descriptor is closed, or the process ends.

    The lock file stays: deleting it would let two processes lock two files of the same name.
    """
    path = folder / "lock"
    with explained(path, "opened"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(fd, path)
    except LogError:
        os.close(fd)
        raise
    return fd


def _lock(fd: int, path: Path) -> None:
    with explained(path, "locked"):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            raise LogError(
                f"log: {path.parent} is in use by another server (process {owner or 'unknown'}): "
                "stop that one, or give this one a folder of its own"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


class FrameFile:
    """Reads frame after frame from ``offset`` on. Frames own their memory."""

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        with explained(path, "opened"):
            self._fd = os.open(path, os.O_RDONLY)
        self.nbytes = os.fstat(self._fd).st_size

    def __enter__(self) -> FrameFile:
        return self

    def __exit__(self, *exception: object) -> None:
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
        """``nbytes`` at ``offset``, or fewer where the file ends."""
        with explained(self.path, "read"):
            return os.pread(self._fd, nbytes, offset)
