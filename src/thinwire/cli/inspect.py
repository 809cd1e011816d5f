"""``thinwire inspect``: what is in a frame, log or snapshot file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from thinwire.cli.json_file import JSON_FILE, write_json


@click.command()
@click.argument("path", metavar="FILE_OR_FOLDER", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    help="Frames of a file, or files of a folder, to show: half from each end.",
)
@click.option(
    "--json",
    "json_file",
    type=JSON_FILE,
    help="Write everything to this file, every frame included.",
)
def inspect(path: Path, rows: int, json_file: Path | None) -> None:
    """Show a server's log folder, or the frames of one file.

    Of a log: what was trained, which versions are kept, what each worker pushed, and its files.

    Every checksum is checked. Damaged places are shown with file and byte, and the exit code is 1.
    Nothing is changed. In the log of a running server the newest group may be half-written.
    """
    # Here, so that no other command loads it.
    from thinwire.cli.inspect_folder import print_folder
    from thinwire.cli.inspect_view import as_json, print_file
    from thinwire.server.contents import read_contents
    from thinwire.server.folder import read_folder

    if path.is_dir():
        folder = read_folder(path)
        files, problem = folder.files, folder.problem
        print_folder(folder, rows=rows)
    else:
        files, problem = [read_contents(path)], None
        print_file(files[0], rows=rows)
    if json_file is not None:
        write_json(json_file, as_json(files, problem))
    if problem or any(one.damage for one in files):
        sys.exit(1)
