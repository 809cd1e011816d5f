"""``thinwire bench``: speed on this machine, beside the alternatives."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from thinwire.cli.bench_links import links
from thinwire.cli.bench_progress import RoundsProgress
from thinwire.cli.bench_server import server
from thinwire.cli.bench_table import count, print_report
from thinwire.cli.json_file import JSON_FILE, write_json
from thinwire.lab.bench.bars import Verdict
from thinwire.lab.bench.rounds import Limits
from thinwire.lab.bench.run import KernelBench, bench_kernels


@click.group()
def bench() -> None:
    """Measure speed on this machine, beside the alternatives."""


bench.add_command(links)
bench.add_command(server)


@bench.command()
@click.option(
    "--numel",
    "numels",
    type=int,
    multiple=True,
    default=(1_000_000, 25_000_000),
    show_default=True,
    help="Elements of the tensor, a multiple of 8. Repeat it for more sizes.",
)
@click.option("--rounds", type=int, default=15, show_default=True, help="Rounds for each size.")
@click.option(
    "--seconds", type=float, default=75.0, show_default=True, help="Start no round after this time."
)
@click.option(
    "--isa",
    type=click.Choice(["scalar", "avx2", "avx512", "neon"]),
    help="Kernels to use, not the best.",
)
@click.option(
    "--json",
    "json_file",
    type=JSON_FILE,
    help="Write everything to this file, every sample included.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 if a bar is missed.")
def kernels(
    numels: tuple[int, ...],
    rounds: int,
    seconds: float,
    isa: str | None,
    json_file: Path | None,
    strict: bool,
) -> None:
    """Time every kernel beside memcpy and torch, by turns, on one thread and on two.

    Only the ratios mean something on a machine that others use, too. A missed bar is a finding, not
    a failure, unless --strict.
    """
    settings = KernelBench(numels, Limits(rounds, seconds), isa)
    with RoundsProgress(rounds) as progress:

        def show(numel: int, round_: int, case: str) -> None:
            progress.show(round_, case, part=f"{count(numel)} elements, ")

        report = bench_kernels(settings, show)
    print_report(report)
    if json_file is not None:
        write_json(json_file, report.as_json())
    if strict and report.with_verdict(Verdict.MISSED):
        sys.exit(1)
