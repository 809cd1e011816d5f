"""``replacing``: write a file atomically and durably. A crash leaves the old or the new one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

TEMPORARY = ".tmp"
"""Suffix of unfinished files. One that a crash leaves may be deleted."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path``, which replaces it, synced, if nothing is raised."""
    if is_special(path):
        yield path
        return
    target = path.resolve()  # a link stays a link
    temporary = target.with_name(target.name + TEMPORARY)
    try:
        yield temporary
        if target.exists():  # what was private stays private
            shutil.copymode(target, temporary)
        _sync(temporary, os.O_RDWR)
        os.replace(temporary, target)
        sync_folder(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make new, renamed and deleted names in ``folder`` survive a power cut."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def is_special(path: Path) -> bool:
    """Whether it is a pipe or a device, such as /dev/null, which must not be replaced."""
    return path.exists() and not path.is_file()


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
