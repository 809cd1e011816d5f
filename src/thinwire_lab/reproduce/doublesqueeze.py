"""``doublesqueeze`` (Tang et al. 2019): error feedback on workers and servers, on CIFAR-10.

MEM-SGD has error feedback on workers alone and pulls dense; QSGD (ternary) and plain top-k have
none. No momentum anywhere, as in the paper. The paper has curves, no table.
"""

from __future__ import annotations

from thinwire_lab.reproduce.plan import Experiment, Reproduction, Variant

_ONE_WAY = "Float32(), NoFeedback()"
_SOURCE = "Tang et al. 2019, figures of loss by epoch: curves, no table"
_AS_SGD, _WORSE = "as SGD", "worse"

_NOTES = (
    "QSGD here rounds each weight to -1, 0 or 1 times the largest, without bias; the paper scales "
    "by magnitude.",
    "The paper's batch, rates and k are from memory: they were not compared with its text.",
)


def doublesqueeze(scale: str) -> Reproduction:
    return Reproduction("doublesqueeze", "DoubleSqueeze, run again", (_EXPERIMENTS[scale],), _NOTES)


def _variants(ratio: float) -> tuple[Variant, ...]:
    topk, part = f"TopK({ratio})", f"{100 * ratio:g} %"
    return (
        Variant("sgd", "SGD", "dense", main=True),
        Variant(
            "onebit",
            "DoubleSqueeze, 1 bit",
            "doublesqueeze(OneBit())",
            main=True,
            paper=_AS_SGD,
        ),
        Variant(
            "topk",
            f"DoubleSqueeze, top-k {part}",
            f"doublesqueeze({topk})",
            main=True,
            paper=_AS_SGD,
        ),
        Variant(
            "memsgd-onebit",
            "MEM-SGD, 1 bit",
            f"Recipe(OneBit(), Residual(), {_ONE_WAY})",
            paper=_AS_SGD,
        ),
        Variant(
            "memsgd-topk",
            f"MEM-SGD, top-k {part}",
            f"Recipe({topk}, Residual(), {_ONE_WAY})",
            paper=_AS_SGD,
        ),
        Variant(
            "qsgd", "QSGD, ternary", f"Recipe(Dither(2), NoFeedback(), {_ONE_WAY})", paper=_WORSE
        ),
        Variant(
            "plain-topk",
            f"top-k {part}, no compensation",
            f"Recipe({topk}, NoFeedback(), {_ONE_WAY})",
            paper=_WORSE,
        ),
    )


_EXPERIMENTS = {
    "smoke": Experiment(
        "cifar",
        "Stand-in for CIFAR-10",
        "",
        "A tiny GPT on the source of Python's standard library: only to see that all of it runs.",
        "gpt",
        "smoke",
        _variants(0.01),
        momentum=0.0,
    ),
    "small": Experiment(
        "cifar",
        "CIFAR-10, 4 workers",
        _SOURCE,
        "ResNet-20, half as wide, instead of ResNet-18; 4 workers instead of 8, 20,000 pictures, 4 "
        "for each worker, 10,000 steps, cosine.",
        "resnet20",
        "small",
        _variants(0.01),
        epochs=8.0,
        learning_rate=0.1,
        momentum=0.0,
    ),
    "paper": Experiment(
        "cifar",
        "CIFAR-10, 8 workers",
        _SOURCE,
        "The paper's settings as recalled; its k of 300,000 is 2.7 % of the weights.",
        "resnet18",
        "paper",
        _variants(0.027),
        workers=8,
    ),
}
