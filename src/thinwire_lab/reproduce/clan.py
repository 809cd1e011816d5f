"""``clan`` (Zhong et al. 2021): a masked language model with LANS, dense and compressed."""

from __future__ import annotations

from thinwire_lab.reproduce.plan import Experiment, Reproduction, Size, Variant

_SOURCE = (
    "Zhong et al. 2021, abstract: BERT-base, no loss of accuracy, 333x against mixed precision"
)
_WARM = "vectors_as(Float16(), otherwise=warmup(TopK(0.001, values='float16'))), Residual()"
_TOPK = "clan(TopK(0.001, values='float16'))"
_SIZES = (Size("BERT-base, top-k 0.1 % (abstract)", "bert", _TOPK, 333, half=True),)
_VARIANTS = (
    Variant("lans", "LANS, dense", "dense", main=True),
    Variant("topk", "CLAN, top-k 0.1 %", _TOPK, main=True, paper="as LANS"),
    Variant("topk-warm", "the same, warm-up", f"Recipe({_WARM}, {_WARM})"),
    Variant("onebit", "CLAN, 1 bit, a scale for 1024", "clan(OneBit(block=1024))", main=True),
    Variant("onebit-whole", "1 bit, a scale for a tensor", "clan(OneBit())"),
    Variant("onebit-vectors", "the same, also vectors", "clan(OneBit(), vectors=OneBit())"),
    Variant("dither", "CLAN, dithering 7 bit", "clan(Dither(7))", main=True),
)
_NOTES = (
    "Ratios are against gradients of 16 bits, as the paper's. LANS is dense in 32 bits here, so "
    "that it is half of 1x. The paper's 333x is of BERT-base, and 2 bytes / (0.001 x 6 bytes): a "
    "32-bit index and a 16-bit value for each kept weight. Its formats give about 16x for 1 bit, "
    "and 2x for dithering, whose 7 bits are a byte in its code.",
    "Biases and norms travel in 16 bits beside a biased codec: the paper's code, too, leaves small "
    "tensors as they are. They are 0.1 % of BERT-base, but 1.5 % of a network as small as this, so "
    "that ratios of its runs are lower. The row that says vectors shows what for.",
    "With 1 bit, one scale has to serve words whose gradients differ by orders of magnitude. A "
    "scale for every 1024 weights costs a thirtieth of a bit.",
    "The row with warm-up borrows DGC's.",
    "The paper trains on 3.3 billion words for 250,000 steps. Penn Treebank has a million words.",
)


def clan(scale: str) -> Reproduction:
    sizes = () if scale == "smoke" else _SIZES
    return Reproduction("clan", "CLAN, run again", (_EXPERIMENTS[scale],), _NOTES, sizes)


def _experiment(title: str, about: str, task: str, scale: str) -> Experiment:
    return Experiment("bert", title, _SOURCE, about, task, scale, _VARIANTS, half=True)


_EXPERIMENTS = {
    "smoke": _experiment(
        "Stand-in for BERT",
        "A tiny GPT on the source of Python's standard library: only to see that all of it runs.",
        "gpt-lans",
        "smoke",
    ),
    "small": _experiment(
        "Masked language model, Penn Treebank",
        "One layer of 64 instead of 12 of 768, 4 x 2 rows of 32 words, 1.5 epochs.",
        "bert",
        "small",
    ),
    "paper": _experiment(
        "Masked language model, Penn Treebank",
        "BERT-base with the paper's batch and rate, on Penn Treebank.",
        "bert",
        "paper",
    ),
}
