"""``thinwire bench``: measure speed on this machine, beside the alternatives."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from thinwire.cli.files import write_json
from thinwire_lab.bench.kernels.run import KernelBench, bench_kernels
from thinwire_lab.bench.kernels.targets import Verdict
from thinwire_lab.bench.rounds import Limits
from thinwire_lab.cli.bench_links import links
from thinwire_lab.cli.bench_options import json_option
from thinwire_lab.cli.bench_server import server
from thinwire_lab.cli.bench_training import training
from thinwire_lab.cli.show.bench import RoundsProgress
from thinwire_lab.cli.show.bench_kernels import count, print_report


@click.group()
def bench() -> None:
    """Measure speed on this machine, beside the alternatives.

    Compare the ratios: absolute times depend on what else the machine is doing.
    """


bench.add_command(links)
bench.add_command(server)
bench.add_command(training)


@bench.command(short_help="Kernels beside memcpy and torch.")
@click.option(
    "--numel",
    "numels",
    type=int,
    multiple=True,
    default=(1_000_000, 25_000_000),
    show_default=True,
    help="Number of elements of the tensor, a multiple of 8. Repeat it for more sizes.",
)
@click.option(
    "--rounds", type=int, default=15, show_default=True, help="How often to time each case."
)
@click.option(
    "--seconds",
    type=float,
    default=75.0,
    show_default=True,
    help="Start no more rounds after this many seconds.",
)
@click.option(
    "--isa",
    type=click.Choice(["scalar", "avx2", "avx512", "neon"]),
    help="Instruction set to use.  [default: the best of this processor]",
)
@json_option
@click.option("--strict", is_flag=True, help="Exit with code 1 if a target is missed.")
def kernels(
    numels: tuple[int, ...],
    rounds: int,
    seconds: float,
    isa: str | None,
    json_file: Path | None,
    strict: bool,
) -> None:
    """Time every kernel beside memcpy and torch, on one thread and on two.

    All cases take turns, so that a disturbance affects all alike. Every kernel has targets for its
    ratios; a missed one is reported, and fails the command only with --strict.
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
