"""``thinwire reproduce``: the papers' comparisons, beside the papers' own figures."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from thinwire.cli.main import INTERRUPTED
from thinwire.cli.out_file import write_text

_Folder = click.Path(file_okay=False, path_type=Path)
SEEDS = {"smoke": 1, "small": 3, "paper": 3}


@click.command()
@click.argument("paper", type=click.Choice(["dgc", "doublesqueeze", "clan"]))
@click.option(
    "--scale",
    type=click.Choice(["smoke", "small", "paper"]),
    default="small",
    show_default=True,
    help="smoke: a minute and no data, to see it run. small: an hour or two. paper: for a cluster.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help="Of the main comparisons; ablations have one.  [default: 3; smoke: 1]",
)
@click.option("--out", type=_Folder, required=True, help="Results, and report.html.")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Such as cifar-4, lstm/dgc or '*/dgc'. May be repeated; --list shows names.",
)
@click.option("--list", "list_only", is_flag=True, help="Show all runs and which are finished.")
@click.option(
    "--data", type=_Folder, help="The folder of data sets.  [default: that of $THINWIRE_DATA]"
)
@click.option(
    "--links",
    "links_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What 'thinwire bench links --json' wrote: step times by bandwidth, for the report.",
)
def reproduce(
    paper: str,
    scale: str,
    seeds: int | None,
    out: Path,
    only: tuple[str, ...],
    list_only: bool,
    data: Path | None,
    links_file: Path | None,
) -> None:
    """Run the comparisons of PAPER again, and set them beside its own figures.

    Workers are simulated in this process; bytes are those of real frames. Every finished run is
    kept at once in OUT/results. Ctrl-C saves and stops, and the same command goes on. Two commands
    with different --only may share OUT, if they run nothing in common.
    """
    # Here, so that no other command loads it.
    from thinwire.cli.reproduce_view import (
        ReproduceProgress,
        print_end,
        print_list,
        print_tables,
    )
    from thinwire.lab.reproduce.execute import Executor
    from thinwire.lab.reproduce.links import read_links
    from thinwire.lab.reproduce.plan import trials
    from thinwire.lab.reproduce.registry import find_reproduction
    from thinwire.lab.reproduce.report import make_page
    from thinwire.lab.reproduce.sizes import measure
    from thinwire.lab.reproduce.store import Store
    from thinwire.lab.train.stopping import Interrupts

    plan = find_reproduction(paper, scale)
    everything = trials(plan, seeds=seeds or SEEDS[scale])
    chosen = trials(plan, seeds=seeds or SEEDS[scale], only=only)
    links = None if links_file is None else read_links(links_file)
    executor = Executor(Store(out), data, command=_command())
    if list_only:
        print_list(chosen, executor.finished(chosen))
        return
    with Interrupts() as interrupts:
        with ReproduceProgress(len(chosen)) as progress:
            done = executor.run(chosen, progress, interrupts)
        results = executor.finished(everything)
        print_tables(plan, results)
        if results:
            page = make_page(
                plan,
                results,
                planned=len(everything),
                command=_command(),
                sizes=tuple(map(measure, plan.sizes)),
                links=links,
            )
            write_text(out / "report.html", page.html())
        print_end(out, finished=len(done), planned=len(chosen), reported=bool(results))
    if len(done) < len(chosen):
        raise click.exceptions.Exit(INTERRUPTED)


def _command() -> str:
    return shlex.join(["thinwire", *sys.argv[1:]])
