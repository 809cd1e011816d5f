"""``thinwire keys``: make key pairs, and lists of the workers that a server accepts.

Secrets appear in no output and no error.
"""

from __future__ import annotations

from pathlib import Path

import click

from thinwire.errors import ConfigError

_File = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def keys() -> None:
    """Make and show the keys by which servers and workers authenticate each other.

    \b
    On every machine:  thinwire keys new NAME
    On the server:     thinwire keys allow workers.allow worker-*.public
    """


@keys.command(short_help="Make a key pair.")
@click.argument("name")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder for the two files; created if it does not exist.",
)
def new(name: str, folder: Path) -> None:
    """Make a key pair: NAME.secret, which stays on this machine, and NAME.public.

    Existing files are not overwritten.
    """
    # Here, so that no other command loads it.
    from thinwire.transport.keys import save_keys
    from thinwire.transport.zeromq import new_keys

    try:
        folder.mkdir(parents=True, exist_ok=True)
        public, secret = save_keys(new_keys(), folder, name)
    except OSError as error:
        raise ConfigError(f"{folder}: no keys could be written here: {error.strerror}") from error
    click.echo(f"Wrote {secret}, which stays on this machine, and {public}.")
    click.echo(
        f"Next: copy {public.name} to the other side: a worker's to the server, for thinwire keys "
        "allow; a server's to every worker."
    )


@keys.command(short_help="Show the public keys in a file.")
@click.argument("file", type=_File)
def show(file: Path) -> None:
    """Show the public keys in a file: a key pair or a list. Secret keys are never shown."""
    for line in _public_lines(file):
        click.echo(line)


def _public_lines(file: Path) -> list[str]:
    """``HEX NAME`` for each public key in a file of any kind."""
    from thinwire.transport.keys import load_keys, load_public_keys

    if _is_secret(file):
        return [f"{load_keys(file).public.hex()} {file.stem}"]
    load_public_keys([file])  # refuses other contents, without showing them
    return [_without_keys(line) for line in _text(file).splitlines() if line.strip()]


def _is_secret(file: Path) -> bool:
    return file.suffix == ".secret" or _text(file).startswith("public ")


def _text(file: Path) -> str:
    from thinwire.transport.keys import read_key_file

    return read_key_file(file)


def _without_keys(line: str) -> str:
    """The key and its name; anything more may be a secret that was put there by mistake."""
    key, *words = line.split()
    name = "".join(c for c in "".join(words[:1]) if c.isprintable())
    return key if len(name) >= len(key) else f"{key} {name}".strip()


@keys.command(short_help="Add public keys to the list that a server accepts.")
@click.argument("allowed", metavar="LIST", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("public", metavar="PUBLIC...", type=_File, nargs=-1, required=True)
def allow(allowed: Path, public: tuple[Path, ...]) -> None:
    """Add public keys to the LIST that a server accepts; it is created if it does not exist.

    To revoke a key, delete its line. A server reads its list when it starts.
    """
    before = _lines_to_allow(allowed) if _exists(allowed) else []
    known = {line.split()[0].lower() for line in before}
    lines = [line for file in public for line in _lines_to_allow(file)]
    new_lines = {line.split()[0].lower(): line for line in lines}
    added = [line for key, line in new_lines.items() if key not in known]
    if added:
        _append(allowed, added)
    click.echo(f"Keys added to {allowed}: {len(added)}; it lists {len(known) + len(added)} now.")
    click.echo(f"Next: start the server with --allow {allowed}.")


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error


def _lines_to_allow(file: Path) -> list[str]:
    if _is_secret(file):
        raise ConfigError(
            f"{file}: is a secret key, which never leaves its machine: give "
            f"{file.with_suffix('.public')}"
        )
    return _public_lines(file)


def _append(file: Path, lines: list[str]) -> None:
    try:
        complete = not file.exists() or not _text(file) or _text(file).endswith("\n")
        with file.open("a") as out:
            out.write(("" if complete else "\n") + "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
