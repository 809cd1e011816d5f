"""``Recipe``: codec and feedback of each direction. Most users need only the named ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from thinwire.checks import check_momentum, check_positive, check_whole
from thinwire.codec.base import Codec, is_unbiased
from thinwire.codec.chunk_topk import ChunkTopK
from thinwire.codec.dense import BFloat16, Float16, Float32
from thinwire.codec.dither import Dither
from thinwire.codec.policy import (
    Chooser,
    as_policy,
    by_row,
    unless_dense_is_cheaper,
    vectors_as,
)
from thinwire.codec.schedule import warmup
from thinwire.codec.sign import OneBit
from thinwire.codec.sparse import Nonzero
from thinwire.codec.topk import TopK
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, NoFeedback, chain, check_feedback, stages_of
from thinwire.feedback.clip import Clip
from thinwire.feedback.momentum import AdamMomentum, Momentum, SGDMomentum, shared_momentum
from thinwire.feedback.residual import Residual


@dataclass(frozen=True, slots=True)
class Outer:
    """What global weights do with the mean of what workers changed in their local steps.

    They move by ``lr`` times it, with Nesterov ``momentum`` if there is one; 1 without momentum is
    plain averaging. ``delay`` is for asynchronous servers: momentum takes part in every so many
    versions only (``tw.optim.DelayedNesterov``).
    """

    lr: float = 1.0
    momentum: float = 0.0
    delay: int = 1

    def __post_init__(self) -> None:
        check_positive(self.lr, owner="Outer", field="lr")
        check_momentum(self.momentum, owner="Outer")
        check_whole(self.delay, least=1, owner="Outer", field="delay")


@dataclass(frozen=True, slots=True)
class Recipe:
    """``push`` is what workers send, ``pull`` what comes back, each with its feedback.

    ``outer`` is for local steps, where what is sent is old weights minus new. None: the recipe is
    for gradients, and servers refuse workers of the other kind.
    """

    push: Chooser = field(default_factory=Float32)
    push_feedback: Feedback = field(default_factory=NoFeedback)
    pull: Chooser = field(default_factory=Float32)
    pull_feedback: Feedback = field(default_factory=NoFeedback)
    outer: Outer | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "push", as_policy(self.push))
        object.__setattr__(self, "pull", as_policy(self.pull))
        check_feedback(self.push_feedback, owner="Recipe: push_feedback")
        check_feedback(self.pull_feedback, owner="Recipe: pull_feedback")

    @property
    def keeps_state(self) -> bool:
        """Whether feedback keeps state from step to step."""
        return bool(self.push_feedback.init(0)) or bool(self.pull_feedback.init(0))

    @property
    def rescales(self) -> bool:
        """Whether residuals follow the learning rate."""
        stages = (*stages_of(self.push_feedback), *stages_of(self.pull_feedback))
        return any(isinstance(stage, Residual) and stage.rescale for stage in stages)

    @property
    def shares_momentum(self) -> bool:
        """Whether pushes carry the optimizer's momentum, so that answers are the new one."""
        return shared_momentum(self.push_feedback) is not None

    @property
    def clips_model(self) -> bool:
        """Whether a push needs the norm of all gradients, so that none can be sent early."""
        stages = stages_of(self.push_feedback)
        return any(isinstance(stage, Clip) and stage.scope == "model" for stage in stages)


def check_recipe(value: object, *, owner: str) -> None:
    """Raise ConfigError for what is not a Recipe, such as the name of one."""
    if not isinstance(value, Recipe):
        raise ConfigError(f"{owner}: expected a recipe such as tw.dgc(0.001), got {value!r}")


def dense() -> Recipe:
    """Ordinary averaging through the same code: the baseline."""
    return Recipe()


def dgc(
    ratio: float = 0.001,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    mask: bool = False,
    clip_norm: float | None = None,
    warmup_steps: int = 1000,
    pull_ratio: float | None = None,
    values: str = "float32",
    vectors: Codec | None = None,
) -> Recipe:
    """Deep Gradient Compression: top-k with momentum correction, masking, clipping and warm-up.

    In the first ``warmup_steps`` more is kept, as in the paper: 25 %, 6.3 %, 1.6 % and 0.4 % for a
    quarter of them each, but never less than ``ratio``. At first gradients are large and change
    fast, and what is delayed then is out of date when it arrives. The paper has four epochs of it.

    ``mask`` clears the velocity of elements that were just sent, as the paper does. Use it at rates
    near the largest that is stable. It takes momentum from those that are sent often, and at the
    rate of dense training that costs more than it gives (Fashion-MNIST: 0.8 points of accuracy).

    ``compress_ddp``, ``Client`` and ``VirtualCluster`` take momentum and weight decay over from a
    ``torch.optim.SGD``, whose momentum must be the same; with ``tw.optim.SGD`` there is nothing to
    take over, and other optimizers are refused. ``momentum=0.0`` works with any optimizer. 1-D
    tensors are sent as ``vectors`` (None: float32, as in the paper). The answer is lossless unless
    ``pull_ratio`` keeps only part of it.
    """
    kept = TopK(ratio, values=values)
    push = unless_dense_is_cheaper(warmup(kept, steps=warmup_steps) if warmup_steps else kept)
    pull: Chooser = Nonzero() if pull_ratio is None else TopK(pull_ratio, values=values)
    check_momentum(momentum, owner="dgc")
    correction = (Momentum(momentum, nesterov, mask),) if momentum else ()
    return Recipe(
        push=vectors_as(vectors or Float32(), otherwise=push),
        push_feedback=chain(*_clip(clip_norm), *correction, Residual()),
        pull=vectors_as(Float32(), otherwise=pull) if vectors is None else pull,
        pull_feedback=NoFeedback() if pull_ratio is None else Residual(),
    )


STRETCH = 1.5
"""Of one bit for momentum, but with Adam not in embeddings. With 1, and one scale, the loss on
Fashion-MNIST is 2.9 % above that of dense training, with 1.5 within 1 %; with 2, where it is no
contraction any more, 6 %."""


def doublesqueeze(codec: Codec | None = None, *, clip_norm: float | None = None) -> Recipe:
    """DoubleSqueeze: error-compensated compression by the workers and by the server.

    For SGD without momentum. ``codec`` None is top-k 5 % with 8-bit values, and 16 bits for 1-D
    tensors. ``clip_norm`` clips each worker's gradient before it is sent: leave
    ``clip_grad_norm_`` out then, which would clip what was delayed, too.
    """
    kept = vectors_as(Float16(), otherwise=TopK(0.05, values="int8"))
    both: Chooser = kept if codec is None else codec
    feedback = Residual() if clip_norm is None else chain(Clip(clip_norm), Residual())
    return Recipe(both, feedback, both, Residual())


def _clip(norm: float | None) -> tuple[Clip, ...]:
    return () if norm is None else (Clip(norm),)


def momentum_sgd(
    codec: Codec | None = None, *, clip_norm: float | None = None, vectors: Codec | None = None
) -> Recipe:
    """For ``torch.optim.SGD`` with momentum: its momentum is what travels, both ways.

    ``codec`` None is one bit for each element, with a scale for every 1,024; in embeddings for
    every row, where rows have fewer than 256 for every 256, in other small tensors for every 8,192.
    Momentum, dampening, weight decay and Nesterov are the optimizer's; give it as ``optimizer``.
    ``clip_norm`` clips each worker's gradient before momentum is added: leave ``clip_grad_norm_``
    out then, which would clip the momentum. 1-D tensors are sent as ``vectors`` (None: 16 bits).
    With ``Float32`` nothing is delayed: gradients travel, as in ``dense()``.
    """
    if codec == Float32() and clip_norm is None:
        return Recipe()
    one_bit = by_row(OneBit(block=8192, stretch=STRETCH), short=256)
    both = vectors_as(vectors or Float16(), otherwise=one_bit if codec is None else codec)
    back = chain(SGDMomentum(), Residual())
    return Recipe(both, chain(*_clip(clip_norm), SGDMomentum(), Residual()), both, back)


def adam(
    codec: Codec | None = None,
    *,
    clip_norm: float | None = None,
    first: int = 96,
    most_gap: int = 128,
) -> Recipe:
    """Compressed Adam, for ``torch.optim.AdamW``, ``torch.optim.Adam`` and ``tw.optim.AdamW``.

    The momentum travels, both ways; ``codec`` None is one bit for each element, with a scale for
    every 1,024, and in embeddings for every row. The variance is refreshed by steps that send
    gradients in 16 bits: the ``first`` ones, and later ones at gaps that double up to ``most_gap``
    steps. 1-D tensors travel in 16 bits in every step.
    ``clip_norm`` clips each worker's gradient before momentum is added: leave ``clip_grad_norm_``
    out then. With ``Float32`` nothing is delayed: gradients travel, as in ``dense()``.
    """
    both: Chooser = by_row(OneBit(stretch=STRETCH), rows=OneBit()) if codec is None else codec
    if codec == Float32() and clip_norm is None:
        return Recipe()
    shared = AdamMomentum(first, most_gap)
    back = chain(shared, Residual())
    return Recipe(both, chain(*_clip(clip_norm), shared, Residual()), both, back)


def clan(codec: Codec | None = None, *, vectors: Codec | None = None) -> Recipe:
    """CLAN's exchange, for the LANS optimizer: feedback for biased codecs, none for unbiased.

    ``codec`` None is ``Dither(7)``, as in the paper. LANS divides by the root of the mean square of
    what it sees, which parts of gradients that come late and all at once make large; so biased
    codecs can lose much.

    1-D tensors are sent as ``vectors``. None: as all others if ``codec`` is unbiased, else in 16
    bits. LANS normalises gradients, so that it takes full steps also where there is only noise, and
    biases and norms suffer from that most. They are a thousandth of BERT-base.
    """
    codec = Dither(7) if codec is None else codec
    unbiased = is_unbiased(codec)
    if vectors is None:
        vectors = codec if unbiased else Float16()
    both: Chooser = codec if vectors == codec else vectors_as(vectors, otherwise=codec)
    feedback = NoFeedback() if unbiased and is_unbiased(vectors) else Residual()
    return Recipe(both, feedback, both, feedback)


def local_average(codec: Codec | None = None) -> Recipe:
    """For local steps: global weights are the mean of what workers have trained.

    What workers changed travels as ``codec`` in both directions, with error feedback; None is one
    bit for each element, with a scale for every 1,024, and in embeddings for every row. 1-D tensors
    travel in 16 bits. With ``Float32`` nothing is compressed.
    """
    if codec == Float32():
        return Recipe(outer=Outer())
    both = vectors_as(BFloat16(), otherwise=by_row(OneBit()) if codec is None else codec)
    return Recipe(both, Residual(), both, Residual(), Outer())


def diloco(
    codec: Codec | None = None, *, lr: float = 0.7, momentum: float = 0.9, delay: int = 1
) -> Recipe:
    """For local steps, DiLoCo: as ``local_average``, then an outer step with Nesterov momentum.

    ``lr``, ``momentum`` and ``delay`` are those of ``Outer``. Momentum needs some hundred rounds;
    with fewer, less of it is better (``lr=0.8, momentum=0.5``).
    """
    return replace(local_average(codec), outer=Outer(lr, momentum, delay))


def sparseloco(
    ratio: float = 1 / 64, *, decay: float = 0.95, values: str = "2bit", two_way: bool = True
) -> Recipe:
    """For local steps, SparseLoCo: the largest changes in every 4,096, in a few bits, no momentum.

    Each worker pushes ``ratio`` of what it changed as ``ChunkTopK`` of ``values``, with a residual
    that is multiplied by ``decay`` in each round: what was left out long ago is out of date. That
    takes the place of outer momentum. Global weights move by the mean over all workers, an element
    that a worker left out counting as zero, as in the paper. 1-D tensors travel in 16 bits.

    ``two_way`` compresses the answer the same way, but its residual keeps all: it is owed to every
    worker alike, and no worker can send it again. Without it the answer is the list of all elements
    that any worker pushed, in float32.
    """
    kept = ChunkTopK(ratio, values)
    push = vectors_as(BFloat16(), otherwise=kept)
    forgetful = Residual(decay=decay)
    if two_way:
        return Recipe(push, forgetful, push, Residual(), Outer())
    return Recipe(push, forgetful, vectors_as(Float32(), otherwise=Nonzero()), outer=Outer())
