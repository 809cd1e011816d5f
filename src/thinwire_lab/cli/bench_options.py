"""Options that several benchmarks share."""

from __future__ import annotations

import click

from thinwire.cli.files import JSON_FILE
from thinwire_lab.bench.synthetic import BACKWARDS

json_option = click.option(
    "--json",
    "json_file",
    type=JSON_FILE,
    help="Write all results to this file, with every sample.",
)
backward_option = click.option(
    "--backward",
    type=click.Choice(BACKWARDS),
    default=BACKWARDS[0],
    show_default=True,
    help="What a synthetic backward does: sleep, as beside a GPU, or compute on a processor.",
)
rounds_option = click.option(
    "--rounds", type=int, default=10, show_default=True, help="How often each case has its turn."
)
optimizer_option = click.option(
    "--optimizer", is_flag=True, help="Include the optimizer in the time of a step."
)
