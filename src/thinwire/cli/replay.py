"""``thinwire replay``: rebuild the weights of any version from a checkpoint and the logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import rich.progress
from rich.console import Console

from thinwire.cli.files import JSON_FILE, OutFile, write_json
from thinwire.cli.show.progress import ProgressDisplay

if TYPE_CHECKING:
    from thinwire.replay.checkpoint import Checkpoint
    from thinwire.replay.replay import KeptRun

PLAIN_LINES = 5
"""How many lines of progress are printed without a terminal."""


@click.command()
@click.option(
    "--checkpoint",
    "start_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Checkpoint to start from: weights, optimizer and version, as above.",
)
@click.option(
    "--log-dir",
    "log_dirs",
    required=True,
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Log folder of a server. Repeat it for every server of the run, in any order.",
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
    help="Write the rebuilt checkpoint to this file, in the same form.",
)
@click.option(
    "--version", type=click.IntRange(min=0), help="Version to rebuild.  [default: the newest]"
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Learning rate of every version.  [default: those that the workers sent]",
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

    It needs a checkpoint of an earlier version, such as one from before the first step (version 0).
    The servers may be running.

    \b
      torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(),
                  "version": client.version}, "START.pt")
      thinwire replay --checkpoint START.pt --log-dir ps0 --log-dir ps1 \\
                      --optimizer torch.optim.SGD --version 1000 --out weights.pt
    """
    # Here, so that no other command loads it.
    from thinwire.replay.checkpoint import load_checkpoint, save_checkpoint
    from thinwire.replay.replay import KeptRun

    start = load_checkpoint(start_file)
    kept = KeptRun(log_dirs)
    click.echo(_introduction(kept, start))
    end = _run(kept, start, optimizer, version=version, rate=rate)
    save_checkpoint(out, end)
    click.echo(f"Wrote {out}: weights and optimizer of version {end.version}.")
    unlogged = end.apart_from(kept.trained(end.model))
    if unlogged:
        click.echo(_remark(unlogged))
    if json_file is not None:
        chosen = {"optimizer": optimizer, "rate": rate, "out": str(out), "as_in_start": unlogged}
        write_json(json_file, {**_summary(kept, start, end), **chosen})


def _summary(kept: KeptRun, start: Checkpoint, end: Checkpoint) -> dict[str, object]:
    return {
        "run": kept.run,
        "recipe": kept.recipe,
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
    from thinwire.replay.checkpoint import Checkpoint, make_optimizer

    rebuilt = make_optimizer(name, start, trained=list(kept.trained(start.model)))
    reached = start.version
    steps = kept.steps(start.model, rebuilt, start=reached, version=version, rate=rate)
    with ReplayProgress(reached, kept.last if version is None else version) as progress:
        for reached in steps:
            progress.show(reached)
    return Checkpoint(start.model, rebuilt.state_dict(), reached)


def _remark(names: list[str]) -> str:
    which = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return f"Not in the logs, so as in the first checkpoint: {which} (buffers, frozen parameters)."


class ReplayProgress(ProgressDisplay):
    """A bar on a terminal, a few lines elsewhere, from version ``start`` to ``stop``."""

    def __init__(self, start: int, stop: int) -> None:
        self._start, self._stop = start, stop
        console = Console(highlight=False)
        self._is_terminal = console.is_terminal
        progress = rich.progress.Progress(
            "version {task.fields[version]}",
            rich.progress.BarColumn(bar_width=30),
            rich.progress.TaskProgressColumn(),
            rich.progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        super().__init__(progress)
        self._task = self._progress.add_task("", total=stop - start, version=start)

    def show(self, version: int) -> None:
        """Called after every version."""
        done = version - self._start
        if self._is_terminal:
            self._progress.update(self._task, completed=done, version=version)
        elif done % max(1, (self._stop - self._start) // PLAIN_LINES) == 0:
            click.echo(f"version {version} of {self._stop}")
