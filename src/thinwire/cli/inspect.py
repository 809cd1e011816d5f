"""``thinwire inspect``: show the contents of a log, or of a file of frames."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from thinwire.cli.files import JSON_FILE, write_json


@click.command()
@click.argument("path", metavar="FILE_OR_FOLDER", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    help="How many frames (of a file) or files (of a folder) to show: half from each end.",
)
@click.option(
    "--json",
    "json_file",
    type=JSON_FILE,
    help="Write all contents to this file, with every frame.",
)
def inspect(path: Path, rows: int, json_file: Path | None) -> None:
    """Show the log of a server (a folder), or the frames of one file.

    Of a log it shows what was trained, which versions are kept, what each worker pushed, and its
    files.

    All checksums are verified. Damage is shown with its file and byte, and the exit code is then 1.
    Nothing is changed. In the log of a running server the newest group may be half-written.
    """
    # Here, so that no other command loads it.
    from thinwire.cli.show.inspect import as_json, print_file, print_folder
    from thinwire.server.log.contents import read_contents
    from thinwire.server.log.folder import read_folder

    if path.is_dir():
        folder = read_folder(path)
        files, problem = folder.files, folder.problem
        print_folder(folder, rows=rows)
    else:
        files, problem = [read_contents(path)], None
        print_file(files[0], rows=rows)
    if json_file is not None:
        write_json(json_file, as_json(files, problem))
    if problem or any(file.damage for file in files):
        sys.exit(1)
