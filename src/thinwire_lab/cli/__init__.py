"""``COMMANDS``: the lab's commands, one file each, which ``thinwire`` finds by entry point."""

from thinwire.cli.main import LazyCommand

COMMANDS = {
    "demo": LazyCommand(
        "thinwire_lab.cli.demo", "demo", "See it work: a small GPT, trained on this machine."
    ),
    "train": LazyCommand(
        "thinwire_lab.cli.train", "train", "Train a task, simulated or with real workers."
    ),
    "reproduce": LazyCommand(
        "thinwire_lab.cli.reproduce", "reproduce", "Run the comparisons of a paper again."
    ),
    "bench": LazyCommand(
        "thinwire_lab.cli.bench",
        "bench",
        "Measure kernels, links and servers beside the alternatives.",
    ),
}
