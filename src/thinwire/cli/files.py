"""``OutFile``: files that commands write, checked before work starts and replaced at its end."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import click

from thinwire.errors import ThinwireError
from thinwire.files import is_special, replacing


class OutFile(click.Path):
    """A file that can be written. With ``make_folder`` the command creates missing folders; with
    ``allow_dash`` "-" is standard output."""

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
        if not (self.allow_dash and path == Path("-")) and not is_special(path):
            problem = _problem(path.resolve().parent, make=self._make_folder)
            if problem:
                self.fail(f"{path}: {problem}", param, ctx)
        return path


def _problem(folder: Path, *, make: bool) -> str:
    """Why a file cannot be made in this folder; "" if it can be."""
    while make and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    try:
        # Permissions are not enough: root has all of them, even on a read-only disk.
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"no file can be made in {folder}: {error.strerror}"


def write_text(path: Path, text: str) -> None:
    """Write it whole, or leave the old file. Missing folders are created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ThinwireError(f"{path} cannot be written: {error.strerror}") from error


JSON_FILE = OutFile(allow_dash=True)


def write_json(path: Path, value: object, *, allow_nan: bool = True) -> None:
    """Write it whole, or leave the old file; "-" is standard output."""
    text = json.dumps(value, indent=1, allow_nan=allow_nan) + "\n"
    if path == Path("-"):
        click.echo(text, nl=False)
    else:
        write_text(path, text)
