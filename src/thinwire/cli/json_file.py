"""The file of ``--json``: an older one is kept until there is something to write."""

from __future__ import annotations

import json
from pathlib import Path

import click

from thinwire.cli.out_file import OutFile, write_text

JSON_FILE = OutFile(allow_dash=True)


def write_json(path: Path, value: object, *, allow_nan: bool = True) -> None:
    """Write it whole, or leave what was there; "-" is standard output."""
    text = json.dumps(value, indent=1, allow_nan=allow_nan) + "\n"
    if path == Path("-"):
        click.echo(text, nl=False)
    else:
        write_text(path, text)
