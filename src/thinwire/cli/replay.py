"""``thinwire replay``: weights at any version, from a checkpoint and the logs of all servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from thinwire.cli.json_file import JSON_FILE, write_json
from thinwire.cli.out_file import OutFile

if TYPE_CHECKING:
    from thinwire.cli.checkpoint import Checkpoint
    from thinwire.replay import KeptRun


@click.command()
@click.option(
    "--checkpoint",
    "start_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Where to begin: weights, optimizer and version, as above.",
)
@click.option(
    "--log-dir",
    "log_dirs",
    required=True,
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The log of a server. Repeat it for every server of the run, in any order.",
)
@click.option(
    "--optimizer",
    required=True,
    help="The workers' optimizer: torch.optim.NAME or thinwire.optim.NAME.",
)
@click.option(
    "--out",
    required=True,
    type=OutFile(),
    help="Where to write a checkpoint like the first one.",
)
@click.option(
    "--version", type=click.IntRange(min=0), help="Where to stop, if not at the newest version."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Learning rate of every version, not those that the workers sent.",
)
@click.option("--json", "json_file", type=JSON_FILE, help="Write a summary to this file.")
def replay(
    start_file: Path,
    log_dirs: tuple[Path, ...],
    optimizer: str,
    out: Path,
    version: int | None,
    rate: float | None,
    json_file: Path | None,
) -> None:
    """Rebuild the weights that all workers had at a version, bit for bit.

    The servers may be running. START.pt is from before the first step (version 0), or any later:

    \b
      torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(),
                  "version": client.version}, "START.pt")
      thinwire replay --checkpoint START.pt --log-dir ps0 --log-dir ps1 \\
                      --optimizer torch.optim.SGD --version 1000 --out weights.pt
    """
    # Here, so that no other command loads it.
    from thinwire.cli.checkpoint import load_checkpoint, save_checkpoint
    from thinwire.replay import KeptRun

    start = load_checkpoint(start_file)
    kept = KeptRun(log_dirs)
    click.echo(_introduction(kept, start))
    end = _run(kept, start, optimizer, version=version, rate=rate)
    save_checkpoint(out, end)
    click.echo(f"Wrote {out}: weights and optimizer of version {end.version}.")
    others = end.apart_from(kept.trained(end.model))
    if others:
        click.echo(_remark(others))
    if json_file is not None:
        chosen = {"optimizer": optimizer, "rate": rate, "out": str(out), "as_in_start": others}
        write_json(json_file, {**_summary(kept, start, end), **chosen})


def _summary(kept: KeptRun, start: Checkpoint, end: Checkpoint) -> dict[str, object]:
    return {
        "run": kept.run,
        "recipe": kept.description.recipe,
        "log_dirs": [str(log.folder) for log in kept.logs],
        "kept": {"since": kept.since, "last": kept.last},
        "start": start.version,
        "version": end.version,
    }


def _introduction(kept: KeptRun, start: Checkpoint) -> str:
    servers = "one server" if len(kept.logs) == 1 else f"{len(kept.logs)} servers"
    return (
        f"Run {kept.run}, {servers}: the logs keep {kept.versions}. The checkpoint is of version "
        f"{start.version}."
    )


def _run(
    kept: KeptRun, start: Checkpoint, name: str, *, version: int | None, rate: float | None
) -> Checkpoint:
    from thinwire.cli.checkpoint import Checkpoint, make_optimizer
    from thinwire.cli.replay_view import Progress

    made = make_optimizer(name, start, trained=list(kept.trained(start.model)))
    reached = start.version
    steps = kept.steps(start.model, made, start=reached, version=version, rate=rate)
    with Progress(reached, kept.last if version is None else version) as progress:
        for reached in steps:
            progress.show(reached)
    return Checkpoint(start.model, made.state_dict(), reached)


def _remark(others: list[str]) -> str:
    which = others[0] if len(others) == 1 else f"{others[0]} and {len(others) - 1} more"
    return f"Not in the logs, so as in the first checkpoint: {which} (buffers, frozen parameters)."
