"""``thinwire serve``: a parameter server."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thinwire.errors import ConfigError

if TYPE_CHECKING:
    from thinwire.server.server import Server
    from thinwire.transport.keys import ServerCurve

_File = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--listen", "address", default="tcp://127.0.0.1:5555", show_default=True)
@click.option("--workers", type=click.IntRange(min=1), required=True, help="The n of the mean.")
@click.option(
    "--recipe",
    "recipe_text",
    required=True,
    metavar="RECIPE",
    help="As in Python, such as 'doublesqueeze(OneBit())', 'dgc(0.001)' or dense. Workers must "
    "have the same.",
)
@click.option(
    "--quorum",
    type=click.IntRange(min=1),
    help="Pushes that close a version; 1 is fully asynchronous.  [default: all workers]",
)
@click.option(
    "--staleness",
    type=click.IntRange(min=0),
    help="How many versions behind a push may be; needed with a smaller quorum.",
)
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the log here. Started again with it, the server goes on where it was.",
)
@click.option(
    "--fsync",
    type=click.Choice(["step", "off"]),
    default="step",
    show_default=True,
    help="Whether the log must survive a power cut (step), or only the end of this process (off).",
)
@click.option("--keep-steps", type=click.IntRange(min=0), help="Keep so many versions in the log.")
@click.option("--keep-nbytes", type=click.IntRange(min=0), help="Keep so many bytes of log.")
@click.option("--keys", "keys_file", type=_File, help="This server's NAME.secret.")
@click.option("--allow", type=_File, help="The public keys of all workers.")
@click.option("--insecure", is_flag=True, help="Listen to other machines without keys.")
@click.option(
    "--on-loss",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="When a worker is lost: stop all, or go on without it.",
)
@click.option(
    "--loss-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="A worker that is away for so long is lost.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def serve(
    address: str,
    workers: int,
    recipe_text: str,
    quorum: int | None,
    staleness: int | None,
    log_dir: Path | None,
    fsync: str,
    keep_steps: int | None,
    keep_nbytes: int | None,
    keys_file: Path | None,
    allow: Path | None,
    insecure: bool,
    on_loss: str,
    loss_seconds: float,
    seed: int,
) -> None:
    """Run a parameter server until all workers are done.

    \b
    On the server:   thinwire serve --workers 2 --recipe 'dgc(0.001)' --log-dir ps0
    In the workers:  tw.Client(["tcp://127.0.0.1:5555"], tw.dgc(0.001), rank=0, workers=2)

    Several servers share the model: give workers all addresses, in the same order. Other machines
    need keys (see thinwire keys). Ctrl-C stops; workers wait for a while for it to be started
    again.
    """
    # Here, so that no other command loads it.
    from thinwire.server.retention import LogSettings
    from thinwire.server.server import Server
    from thinwire.spelling import read_recipe

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    server = Server(
        address,
        read_recipe(recipe_text),
        workers=workers,
        quorum=quorum,
        staleness=staleness,
        log_dir=log_dir,
        log_settings=LogSettings(fsync=fsync, keep_steps=keep_steps, keep_nbytes=keep_nbytes),
        keys=_curve(keys_file, allow),
        insecure=insecure,
        on_loss=on_loss,
        loss_seconds=loss_seconds,
        seed=seed,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    kept = f"its log is in {log_dir}" if log_dir else "without a log: a restart loses the run"
    click.echo(f"Serving {workers} workers at {server.address}; {kept}. Ctrl-C stops.")
    server.run()
    click.echo(_summary(server))
    if server.service.training.lost == set(range(workers)):
        raise click.exceptions.Exit(1)


def _curve(keys_file: Path | None, allow: Path | None) -> ServerCurve | None:
    from thinwire.transport.keys import ServerCurve, load_keys, load_public_keys

    if keys_file is None and allow is None:
        return None
    if keys_file is None or allow is None:
        raise ConfigError("--keys and --allow go together: the server's own, and who may come in")
    return ServerCurve(load_keys(keys_file), load_public_keys([allow]))


def _end(server: Server) -> str:
    if not server.service.done:
        return "Stopped"
    lost = ", ".join(map(str, sorted(server.service.training.lost)))
    return f"Lost workers: {lost}. The run ended" if lost else "All workers are done"


def _summary(server: Server) -> str:
    service, counters = server.service, server.service.counters
    end = _end(server)
    return (
        f"{end} at version {service.training.version}: {counters['accepted']} pieces counted, "
        f"{counters['stale']} sent back as too old, {counters['repeated']} repeated, "
        f"{counters['refused']} sessions refused; {counters['received_nbytes']:,} bytes in, "
        f"{counters['sent_nbytes']:,} out."
    )
