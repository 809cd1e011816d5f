"""Files that commands write: refused before the work, and written whole after it. Until then what
was there stays as it is."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from thinwire.errors import ThinwireError


class OutFile(click.Path):
    """A file that can be written. With ``make_folder`` the command makes folders that are missing;
    with ``allow_dash`` "-" is standard output."""

    def __init__(self, *, make_folder: bool = False, allow_dash: bool = False) -> None:
        super().__init__(dir_okay=False, writable=True, allow_dash=allow_dash)
        self._make_folder = make_folder

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not (self.allow_dash and path == Path("-")) and not _is_special(path):
            problem = _problem(path.resolve().parent, make=self._make_folder)
            if problem:
                self.fail(f"{path}: {problem}", param, ctx)
        return path


def _is_special(path: Path) -> bool:
    """A pipe or a device, such as /dev/null: nothing may take its place."""
    return path.exists() and not path.is_file()


def _problem(folder: Path, *, make: bool) -> str:
    """Why a file cannot be made in this folder; "" if it can be."""
    while make and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    try:
        # Rights do not tell everything: root has all of them, on a read-only disk, too.
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"no file can be made in {folder}: {error.strerror}"


def write_text(path: Path, text: str) -> None:
    """Write it whole, or leave what was there. Folders that are missing are made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ThinwireError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The file to write, beside ``path``: it takes its place if nothing is raised."""
    if _is_special(path):
        yield path
        return
    target = path.resolve()  # a link stays a link
    temporary = target.with_name(target.name + ".tmp")
    try:
        yield temporary
        if target.exists():  # what was private stays private
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
