"""``thinwire keys``: make keys, and lists of the workers that a server lets in.

Private keys appear in no output and no error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from thinwire.errors import ConfigError

if TYPE_CHECKING:
    from thinwire.keys.lists import Grant

_File = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def keys() -> None:
    """Make and show the keys by which servers and workers authenticate each other.

    \b
    On every machine:  thinwire keys new NAME
    On the server:     thinwire keys allow workers.allow worker-*.crt
    """


@keys.command(short_help="Make a key and its certificate.")
@click.argument("name")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder for the two files; created if it does not exist.",
)
def new(name: str, folder: Path) -> None:
    """Make a private key, NAME.key, which stays on this machine, and its certificate, NAME.crt.

    Existing files are not overwritten.
    """
    # Here, so that no other command loads it.
    from thinwire.keys.make import new_keys

    try:
        folder.mkdir(parents=True, exist_ok=True)
        key, certificate = new_keys(folder, name)
    except OSError as error:
        raise ConfigError(f"{folder}: no keys could be written here: {error.strerror}") from error
    click.echo(f"Wrote {key}, which stays on this machine, and {certificate}.")
    click.echo(
        f"Next: copy {certificate.name} to the other side: a worker's to the server, for thinwire "
        "keys allow; a server's to every worker."
    )


@keys.command(short_help="Show who is in a certificate or a list.")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
def show(file: Path) -> None:
    """Show the fingerprints in a certificate, a list, or a folder of certificates.

    For NAME.key it shows NAME.crt: private keys are never shown.
    """
    for line in _lines(_certificate_of(file)):
        click.echo(line)


def _certificate_of(file: Path) -> Path:
    from thinwire.keys.lists import read_text
    from thinwire.keys.settings import certificate_of

    is_private = not file.is_dir() and "PRIVATE KEY-----" in read_text(file)
    return certificate_of(file) if is_private else file


def _lines(file: Path) -> list[str]:
    from thinwire.keys.lists import read_allowed

    return [_line(fingerprint, grant) for fingerprint, grant in read_allowed(file).items()]


def _line(fingerprint: str, grant: Grant) -> str:
    """As it stands in a list, without what does not belong to one."""
    name = "".join(c for c in grant.name if c.isprintable())
    ranks = "" if grant.ranks is None else f"ranks={','.join(map(str, sorted(grant.ranks)))}"
    return " ".join(filter(None, (fingerprint, name, ranks)))


@keys.command(short_help="Add certificates to the list that a server lets in.")
@click.argument("allowed", metavar="LIST", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("certificates", metavar="CERTIFICATE...", type=_File, nargs=-1, required=True)
@click.option("--ranks", help="Let these keys be used by workers of these ranks only: 0,2-3.")
def allow(allowed: Path, certificates: tuple[Path, ...], ranks: str | None) -> None:
    """Add certificates to the LIST that a server lets in; it is created if it does not exist.

    To revoke one, delete its line: a running server notices within two seconds, and disconnects it.
    """
    from thinwire.keys.lists import Grant, parse_ranks, read_allowed

    only = None if ranks is None else parse_ranks(ranks, where="--ranks")
    known = read_allowed(allowed) if _exists(allowed) else {}
    found = {key: grant for file in certificates for key, grant in read_allowed(file).items()}
    added = [
        _line(key, grant if only is None else Grant(grant.name, only))
        for key, grant in found.items()
        if key not in known
    ]
    if added:
        _append(allowed, added)
    click.echo(f"Keys added to {allowed}: {len(added)}; it lists {len(known) + len(added)} now.")
    click.echo(f"Next: start the server with --allow {allowed}.")


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error


def _append(file: Path, lines: list[str]) -> None:
    from thinwire.keys.lists import read_text

    try:
        text = read_text(file) if file.exists() else ""
        complete = not text or text.endswith("\n")
        with file.open("a") as out:
            out.write(("" if complete else "\n") + "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
