"""``thinwire serve``: run a parameter server."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thinwire.defaults import LOSS_SECONDS
from thinwire.errors import ConfigError

if TYPE_CHECKING:
    from thinwire.keys.settings import ServerKeys
    from thinwire.server.server import Server
    from thinwire.watch.stats import ServerStats

_File = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--listen",
    "address",
    default="tcp://127.0.0.1:5555",
    show_default=True,
    help="Address that workers connect to; tcp://0.0.0.0:5555 for workers on other machines.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    required=True,
    help="Number of workers averaged over.",
)
@click.option(
    "--recipe",
    "recipe_text",
    required=True,
    metavar="RECIPE",
    help="How gradients are compressed, as in Python: dense, 'dgc(0.001)', "
    "'doublesqueeze(OneBit())'. Workers must use the same.",
)
@click.option(
    "--quorum",
    type=click.IntRange(min=1),
    help="Apply an update after this many pushes; 1 is fully asynchronous.  [default: all workers]",
)
@click.option(
    "--staleness",
    type=click.IntRange(min=0),
    help="Refuse a push that is more than this many versions behind. Required if the quorum is "
    "smaller than the number of workers.",
)
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a log of all updates to this folder. A server that is started again with the same "
    "folder resumes from it.",
)
@click.option(
    "--fsync",
    type=click.Choice(["step", "off"]),
    default="step",
    show_default=True,
    help="step: the log survives a power cut. off: faster; it survives only the end of the server.",
)
@click.option(
    "--keep-steps",
    type=click.IntRange(min=0),
    help="Keep about this many of the newest versions in the log.  [default: all]",
)
@click.option(
    "--keep-nbytes",
    type=click.IntRange(min=0),
    help="Keep about this many bytes of log.  [default: all]",
)
@click.option(
    "--keys",
    "keys_file",
    type=_File,
    help="This server's NAME.key, made by 'thinwire keys new', with NAME.crt beside it.",
)
@click.option(
    "--allow",
    type=click.Path(exists=True, path_type=Path),
    help="Workers to let in: a list made by 'thinwire keys allow', or a folder of certificates. "
    "Read again when it changes.",
)
@click.option(
    "--ca",
    type=_File,
    help="Let in workers with a certificate of this authority; with --allow only those listed.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Accept workers on other machines without keys. Anyone on the network can then join.",
)
@click.option(
    "--on-loss",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="When a worker is lost: stop the run, or continue without it.",
)
@click.option(
    "--loss-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=LOSS_SECONDS,
    show_default=True,
    help="A worker that is disconnected for this long is lost.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of codecs that round at random.",
)
def serve(
    address: str,
    recipe_text: str,
    keys_file: Path | None,
    allow: Path | None,
    ca: Path | None,
    **options: Any,
) -> None:
    """Run a parameter server until all workers are done.

    \b
    On the server:   thinwire serve --workers 2 --recipe 'dgc(0.001)' --log-dir ps0
    In the workers:  tw.Client(["tcp://127.0.0.1:5555"], tw.dgc(0.001), rank=0, workers=2)

    To share a large model among several servers, start each of them like this and give all
    addresses to every worker, in the same order. Other machines need keys (see thinwire keys).
    Ctrl-C stops the server; workers wait for it to be started again, until their deadline.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    keys = _keys(keys_file, allow, ca)
    _check_reach(address, has_keys=keys is not None, insecure=options["insecure"])
    workers, log_dir = options["workers"], options["log_dir"]
    server = _make_server(address, recipe_text, keys, **options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    kept = f"its log is in {log_dir}" if log_dir else "without a log: a restart loses the run"
    click.echo(f"Serving {workers} workers at {server.address}; {kept}. Ctrl-C stops.")
    server.run()
    stats = server.stats()
    click.echo(_summary(stats))
    if len(stats.lost) == workers:
        raise click.exceptions.Exit(1)


def _make_server(
    address: str,
    recipe_text: str,
    keys: ServerKeys | None,
    *,
    fsync: str,
    keep_steps: int | None,
    keep_nbytes: int | None,
    **settings: Any,
) -> Server:
    """``settings`` are options that ``Server`` takes by the same name."""
    # Here, so that no other command loads it.
    from thinwire.recipe_text import read_recipe
    from thinwire.server.log.settings import LogSettings
    from thinwire.server.server import Server

    log_settings = LogSettings(fsync=fsync, keep_steps=keep_steps, keep_nbytes=keep_nbytes)
    recipe = read_recipe(recipe_text)
    return Server(address, recipe, log_settings=log_settings, keys=keys, **settings)


def _keys(keys_file: Path | None, allow: Path | None, ca: Path | None) -> ServerKeys | None:
    from thinwire.keys.settings import ServerKeys

    if keys_file is None and allow is None and ca is None:
        return None
    if keys_file is None or (allow is None and ca is None):
        raise ConfigError(
            "--keys and --allow (or --ca) go together: the server's key, and the workers it lets in"
        )
    return ServerKeys(keys_file, allow, ca)


def _check_reach(address: str, *, has_keys: bool, insecure: bool) -> None:
    """``Server`` checks this, too, but its error names Python arguments, not options."""
    from thinwire.address import check_address, check_secured

    remedy = "give --keys and --allow (see thinwire keys), or --insecure"
    check_address(address, least_port=0)
    check_secured(address, has_keys=has_keys, insecure=insecure, remedy=remedy)


def _end(stats: ServerStats) -> str:
    if not stats.done:
        return "Stopped"
    lost = ", ".join(map(str, stats.lost))
    return f"Lost workers: {lost}. The run ended" if lost else "All workers are done"


def _summary(stats: ServerStats) -> str:
    return (
        f"{_end(stats)} at version {stats.version}: since this start "
        f"{stats.accepted_pieces} pieces counted, "
        f"{stats.stale_pieces} sent back as too old, {stats.repeated_pieces} repeated, "
        f"{stats.refused_sessions} sessions refused; {stats.received_nbytes:,} bytes in, "
        f"{stats.sent_nbytes:,} out."
    )
