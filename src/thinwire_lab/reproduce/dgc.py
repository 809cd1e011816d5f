"""``dgc`` (Deep Gradient Compression, Lin et al. 2018): CIFAR-10, Penn Treebank and an ablation.

The ablation removes one part at a time. Gradient dropping (Aji and Heafield 2017) is the paper's
own comparison: top-k with a residual, momentum in the optimizer, nothing else.
"""

from __future__ import annotations

from thinwire_lab.reproduce.plan import Experiment, Reproduction, Size, Variant

_RATIO = 0.001
_PULL = "vectors_as(Float32(), otherwise=Nonzero()), NoFeedback()"
_WARM = f"vectors_as(Float32(), otherwise=unless_dense_is_cheaper(warmup(TopK({_RATIO}))))"
_COLD = f"vectors_as(Float32(), otherwise=TopK({_RATIO}))"

_DGC = f"dgc({_RATIO})"
_DROPPING = f"Recipe({_COLD}, Residual(), {_PULL})"
_NO_CORRECTION = f"Recipe({_WARM}, Residual(), {_PULL})"
_NO_MASKING = f"Recipe({_WARM}, chain(Momentum(0.9, mask=False), Residual()), {_PULL})"

_TABLE_2 = "Lin et al. 2018, table 2: ResNet-110, 164 epochs"
_TABLE_4 = "Lin et al. 2018, table 4: 2x1500 LSTM, 40 epochs, 4 nodes"

_SIZES = (
    Size("ResNet-50 (table 3)", "resnet50", _DGC, 277),
    Size("2x1500 LSTM (table 4)", "lstm-large", _DGC, 462),
)
_NOTES = (
    "The paper's table for 8 nodes prints +0.37 where 93.28 - 92.92 is 0.36. Its row for "
    "LibriSpeech prints 0.74 MB and 608x, but 488.08 / 0.74 is 660: both cannot be right. Figures "
    "for ResNet-50 that are elsewhere quoted as 58.17 and 58.20 % are those of AlexNet; ResNet-50 "
    "is 75.96 and 76.15 %.",
    "Biases and norms, which are vectors, travel dense, as in the paper. In a small network they "
    "are a larger part of all weights, so its ratio is lower than that of a large one.",
)


def dgc(scale: str) -> Reproduction:
    sizes = () if scale == "smoke" else _SIZES
    return Reproduction(
        "dgc", "Deep Gradient Compression, run again", _EXPERIMENTS[scale], _NOTES, sizes
    )


def _ablation(dense: str = "", compressed: str = "", dropped: str = "") -> tuple[Variant, ...]:
    return (
        Variant("dense", "dense", "dense", main=True, paper=dense),
        Variant("dgc", "DGC 0.1 %", _DGC, main=True, paper=compressed),
        Variant("dropping", "gradient dropping", _DROPPING, main=True, paper=dropped),
        Variant("no-correction", "DGC, no momentum correction", _NO_CORRECTION),
        Variant("no-masking", "DGC, no factor masking", _NO_MASKING),
        Variant("no-warmup", "DGC, no warm-up", f"dgc({_RATIO}, warmup_steps=0)"),
    )


def _pair(dense: str, compressed: str, *, main: bool = False) -> tuple[Variant, ...]:
    return (
        Variant("dense", "dense", "dense", main=main, paper=dense),
        Variant("dgc", "DGC 0.1 %", _DGC, main=main, paper=compressed),
    )


def _lstm(scale: str, task: str, about: str) -> Experiment:
    clipped = Variant(
        "no-clipping", "DGC, the mean is clipped, no worker", f"dgc({_RATIO}, clip_norm=None)"
    )
    variants = (*_pair("72.30", "72.24, 462x", main=True), clipped)
    return Experiment("lstm", "Penn Treebank, LSTM", _TABLE_4, about, task, scale, variants)


def _cifar(
    scale: str,
    task: str,
    about: str,
    rates: tuple[float | None, ...] = (None,) * 3,
    epochs: tuple[float | None, ...] = (None,) * 3,
) -> tuple[Experiment, ...]:
    rows = {
        4: _ablation("93.75 %", "93.87 %", "92.75 %"),
        8: _pair("92.92 %", "93.28 %"),
        16: _pair("93.14 %", "93.20 %"),
    }
    return tuple(
        Experiment(
            f"cifar-{workers}",
            f"CIFAR-10, {workers} workers",
            f"{_TABLE_2}, batch {32 * workers}",
            about,
            task,
            scale,
            variants,
            workers=workers,
            epochs=count,
            learning_rate=rate,
        )
        for (workers, variants), rate, count in zip(rows.items(), rates, epochs, strict=True)
    )


_SMALL = (
    "ResNet-20, half as wide, instead of ResNet-110; 20,000 pictures, 4 for each worker, 5,000 "
    "steps, cosine. The rate grows with the number of workers, because the batch does."
)
_SMALL_LSTM = (
    "2x64 tied instead of 2x1500; 20 words for each worker, 16,267 steps, 1.4 epochs. SGD without "
    "momentum, as in the paper."
)
_SMOKE = "A tiny GPT on the source of Python's standard library: only to see that all of it runs."

_EXPERIMENTS = {
    "smoke": (
        Experiment("cifar-4", "Stand-in for CIFAR-10", "", _SMOKE, "gpt", "smoke", _ablation()),
    ),
    "small": (
        *_cifar("small", "resnet20", _SMALL, (0.05, 0.07, 0.1), (4.0, 8.0, 16.0)),
        _lstm("small", "lstm-small", _SMALL_LSTM),
    ),
    "paper": (
        *_cifar("paper", "resnet110", "The paper's own settings."),
        _lstm("paper", "lstm-large", "The paper's network; settings of PyTorch's example."),
    ),
}
