"""``thinwire reproduce``: run the comparisons of a paper, beside its own figures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thinwire.cli.files import write_text
from thinwire.cli.start import INTERRUPTED

if TYPE_CHECKING:
    from thinwire_lab.reproduce.execute import Executor
    from thinwire_lab.reproduce.plan import Reproduction, Trial
    from thinwire_lab.reproduce.report import Links
    from thinwire_lab.reproduce.result import TrialResult
    from thinwire_lab.train.interrupts import Interrupts

_Folder = click.Path(file_okay=False, path_type=Path)
SEEDS = {"smoke": 1, "small": 3, "paper": 3}


@click.command()
@click.argument("paper", type=click.Choice(["dgc", "doublesqueeze", "clan", "optimizers", "local"]))
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
    help="Number of seeds of the main comparisons; ablations have one.  [default: 3; smoke: 1]",
)
@click.option("--out", type=_Folder, required=True, help="Folder for results and report.html.")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Run only these, such as cifar-4, lstm/dgc or '*/dgc'. Repeat it for more; --list shows "
    "all names.",
)
@click.option("--list", "list_only", is_flag=True, help="List all runs, and which are finished.")
@click.option("--data", type=_Folder, help="Folder of data sets.  [default: $THINWIRE_DATA]")
@click.option(
    "--links",
    "links_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Add step times by bandwidth to the report, from a file of 'thinwire bench links --json'.",
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
    """Run the comparisons of a paper again, and show them beside its own figures.

    "optimizers" is no paper's: every network with every optimizer, dense, with the recipe that is
    chosen for it, and with a wrong one. "local" compares recipes of local steps with a mean of
    gradients in every step. These two have no scale paper.

    Workers are simulated in this process; bytes are those of real frames. Every finished run is
    kept at once in OUT/results. Ctrl-C saves a checkpoint and stops; the same command resumes. Two
    commands with different --only may share OUT if they have no run in common.
    """
    # Here, so that no other command loads it.
    from thinwire_lab.cli.show.reproduce import print_end, print_list
    from thinwire_lab.reproduce.execute import Executor, find_reproduction
    from thinwire_lab.reproduce.plan import trials
    from thinwire_lab.reproduce.report import read_links
    from thinwire_lab.reproduce.result import Store
    from thinwire_lab.train.interrupts import Interrupts

    plan = find_reproduction(paper, scale)
    planned = trials(plan, seeds=seeds or SEEDS[scale])
    chosen = trials(plan, seeds=seeds or SEEDS[scale], only=only)
    links = None if links_file is None else read_links(links_file)
    executor = Executor(Store(out), data, command=_command())
    if list_only:
        print_list(chosen, executor.finished(chosen))
        return
    with Interrupts() as interrupts:
        finished = _run(executor, chosen, interrupts)
        results = executor.finished(planned)
        _report(plan, results, links, out / "report.html", planned=len(planned))
        print_end(out, finished=finished, planned=len(chosen), reported=bool(results))
    if finished < len(chosen):
        raise click.exceptions.Exit(INTERRUPTED)


def _run(executor: Executor, trials: Sequence[Trial], interrupts: Interrupts) -> int:
    """Run what is not finished yet. Returns how many are finished now."""
    from thinwire_lab.cli.show.reproduce import ReproduceProgress

    with ReproduceProgress(len(trials)) as progress:
        return len(executor.run(trials, progress, interrupts))


def _report(
    plan: Reproduction,
    results: Mapping[Trial, TrialResult],
    links: Links | None,
    file: Path,
    *,
    planned: int,
) -> None:
    """Print tables, and write the report if there are results."""
    from thinwire_lab.cli.show.reproduce import print_tables
    from thinwire_lab.reproduce.report import make_page
    from thinwire_lab.reproduce.sizes import measure

    print_tables(plan, results)
    if results:
        sizes = tuple(map(measure, plan.sizes))
        page = make_page(
            plan, results, planned=planned, command=_command(), sizes=sizes, links=links
        )
        write_text(file, page.html())


def _command() -> str:
    return shlex.join(["thinwire", *sys.argv[1:]])
