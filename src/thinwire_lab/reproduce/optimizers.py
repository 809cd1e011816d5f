"""``optimizers``: no paper's, but our own promise: the same optimizer and rate, the same result.

Each network is trained with each optimizer at the rate of dense training: dense, with the recipe
that Thinwire chooses for the optimizer, and with one that looks as good but sends the wrong thing.
"""

from __future__ import annotations

from torch import nn

from thinwire.checks import check_choice
from thinwire.choice import recipe_for
from thinwire.recipe import dgc
from thinwire.recipe_names import typed_recipe
from thinwire.recipe_text import written
from thinwire_lab.reproduce.plan import Experiment, Reproduction, Variant
from thinwire_lab.tasks.ours import OPTIMIZERS, RATES

_OPTIMIZERS = {
    "sgd": "SGD",
    "momentum": "SGD with momentum 0.9",
    "adamw": "AdamW",
    "lans": "LANS",
}
_WRONG = dict.fromkeys(OPTIMIZERS, "doublesqueeze(OneBit())") | {
    "sgd": "doublesqueeze(TopK(0.001))"
}

_NETWORKS = {
    "gpt": ("GPT, characters", "632,000 parameters, 4 rows of 64 for each worker"),
    "fashion": ("Fashion-MNIST, CNN", "51,000 parameters, 32 pictures for each worker"),
    "penn": (
        "Penn Treebank, LSTM",
        "2x64, input and output embeddings of 10,000 words each, so that most rows are rare; 5 "
        "rows of 20 words for each worker; with SGD gradients are clipped",
    ),
    "cifar": ("CIFAR-10, ResNet-8", "78,000 parameters, 20,000 pictures, 8 for each worker"),
    "masked": (
        "Penn Treebank, masked words",
        "a BERT of one layer of 64, 4 rows of 32 words for each worker",
    ),
}
# Spelled out, because to the lab dgc(0.001) is the paper's, with the task's own warm-up.
_EXTRA = {
    "fashion-momentum": (
        Variant("dgc", "tw.dgc(0.001), with its defaults", written(dgc(0.001)), main=True),
    )
}
_SMOKE = "A tiny GPT on the source of Python's standard library: only to see that all of it runs."
_NOTES = (
    "Every rate is the usual one, or the best of two or three in short dense runs with another "
    "seed; no compressed run was looked at. Rates, and those that were tried, are in "
    "src/thinwire_lab/tasks/ours.py.",
    "chosen is the recipe that compress_ddp and the others take if none is given. wrong sends "
    "gradients late, and the optimizer multiplies or divides by what comes of it; for SGD, which "
    "does neither, it is top-k without warm-up.",
)


def optimizers(scale: str) -> Reproduction:
    """Smoke has only the tiny GPT, which needs no data."""
    check_choice(scale, ("smoke", "small"), owner="optimizers", field="scale")
    networks = ("gpt",) if scale == "smoke" else tuple(RATES)
    experiments = tuple(
        _experiment(network, optimizer, scale) for network in networks for optimizer in OPTIMIZERS
    )
    return Reproduction("optimizers", "Optimizers, dense and compressed", experiments, _NOTES)


def _experiment(network: str, optimizer: str, scale: str) -> Experiment:
    title, about = _NETWORKS[network]
    name = f"{network}-{optimizer}"
    return Experiment(
        name,
        f"{title}, {_OPTIMIZERS[optimizer]}",
        "",
        _SMOKE if scale == "smoke" else f"Rate {RATES[network][optimizer]:g}; {about}.",
        name,
        scale,
        (*_variants(optimizer), *_EXTRA.get(name, ())),
    )


def _variants(optimizer: str) -> tuple[Variant, ...]:
    chosen = typed_recipe(recipe_for(OPTIMIZERS[optimizer].make(nn.Linear(1, 1))))
    wrong = _WRONG[optimizer]
    return (
        Variant("dense", "dense", "dense", main=True),
        Variant("chosen", f"chosen: {chosen}", chosen, main=True),
        Variant("wrong", f"wrong: {wrong}", wrong, main=True),
    )
