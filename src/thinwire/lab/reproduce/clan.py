"""CLAN (Zhong et al. 2021): a masked language model with LANS, and with LANS over compression."""

from __future__ import annotations

from thinwire.lab.reproduce.plan import Experiment, Reproduction, Size, Variant

_SOURCE = (
    "Zhong et al. 2021, abstract: BERT-base, no loss of accuracy, 333x against mixed precision"
)
_WARM = "vectors_as(Float16(), otherwise=warmup(TopK(0.001, values='float16'))), Residual()"
_ROWS = "vectors_as(Float16(), otherwise=OneBit(block=64)), Residual()"
_TOPK = "clan(TopK(0.001, values='float16'))"
_SIZES = (Size("BERT-base, top-k 0.1 % (abstract)", "bert", _TOPK, 333, half=True),)
_VARIANTS = (
    Variant("lans", "LANS, dense", "dense", main=True),
    Variant(
        "topk",
        "CLAN, top-k 0.1 %",
        _TOPK,
        main=True,
        paper="333x",
    ),
    Variant("topk-warm", "the same, warm-up, dense vectors", f"Recipe({_WARM}, {_WARM})"),
    Variant("onebit", "CLAN, 1 bit", "clan(OneBit())", paper="about 16x"),
    Variant(
        "onebit-rows",
        "1 bit, a scale for 64, dense vectors",
        f"Recipe({_ROWS}, {_ROWS})",
        main=True,
    ),
    Variant("dither", "CLAN, dithering 7 bit", "clan(Dither(7))", main=True, paper="about 2x"),
)
_NOTES = (
    "Ratios are against gradients of 16 bits, as the paper's. 333 is 2 bytes / (0.001 x 6 bytes): "
    "a 32-bit index and a 16-bit value for each kept weight. Those of 1 bit and dithering, whose "
    "7 bits are a byte in the paper's code, are worked out from its formats. LANS is dense in 32 "
    "bits here, so that it is half of 1x.",
    "The row with warm-up borrows DGC's. It and the second of 1 bit send biases and norms in 16 "
    "bits: the paper's code leaves tensors below a megabyte uncompressed, which are most of a "
    "network as small as this.",
    "With 1 bit, one scale has to serve words whose gradients differ by orders of magnitude. A "
    "scale for every 64 weights, a row of the matrix of words, costs half a bit more.",
    "The paper trains on 3.3 billion words for 250,000 steps. Penn Treebank has a million words.",
)


def clan(scale: str) -> Reproduction:
    sizes = () if scale == "smoke" else _SIZES
    return Reproduction("clan", "CLAN", (_EXPERIMENTS[scale],), _NOTES, sizes)


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
