"""Invariants of asynchronous training, run in one process by VirtualCluster: the rules are those of
the server, the order of arrival is from a seed."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.codec.base import Codec
from thinwire.compressor.encoded import decoded
from thinwire.recipe import Recipe
from thinwire.server.aggregate import Aggregate
from thinwire.virtual.pace import Race
from thinwire.wire.messages import Push, Update

CODECS: list[Codec] = [tw.OneBit(), tw.TopK(0.05), tw.Float32()]
RESCALED = tw.Residual(rescale=True)
RECIPES = [
    *(tw.doublesqueeze(codec) for codec in CODECS),
    *(tw.Recipe(codec, RESCALED, codec, RESCALED) for codec in CODECS),
    tw.dgc(0.05, momentum=0.9, clip_norm=1.0, warmup_steps=4),
    tw.clan(tw.Dither(4)),
    tw.dense(),
]
SHAPES = {"weight": (40, 30), "bias": (40,)}
WORKERS = 4
ONE_SLOW = (1.0, 1.1, 0.9, 0.1)


def gradient(worker: int, count: int, name: str) -> Tensor:
    """The ``count``-th gradient of a worker, known before it is computed."""
    seed = 100_000 * list(SHAPES).index(name) + 100 * count + worker
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(seed))


def aggregate_of(cluster: tw.VirtualCluster) -> Aggregate:
    assert isinstance(cluster._pace, Race)
    return cluster._pace.server.aggregate


@dataclass
class Known:
    """A cluster whose gradients are known, whatever the weights; notes updates and loss calls."""

    recipe: Recipe
    quorum: int = 1
    staleness: int | None = None
    speeds: Sequence[float] = ONE_SLOW
    seed: int = 0
    rates: list[list[float]] = field(default_factory=lambda: [[] for _ in range(WORKERS)])
    means: list[dict[str, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.net = nn.Linear(30, 40)
        self.optimizer = tw.optim.SGD(self.net.parameters(), lr=0.1)
        self.cluster = tw.VirtualCluster(
            self.net,
            self.optimizer,
            self.recipe,
            workers=WORKERS,
            seed=self.seed,
            piece_numel=640,
            quorum=self.quorum,
            staleness=self.staleness,
            speeds=self.speeds,
        )

    def train(self, rates: Sequence[float]) -> None:
        for rate in rates:
            self.optimizer.param_groups[0]["lr"] = rate
            self.cluster.step(self._loss)
            assert self.cluster.last is not None
            self.means.append(self.cluster.last.mean)

    def _loss(self, worker: int) -> Tensor:
        count = len(self.rates[worker])
        self.rates[worker].append(float(self.optimizer.param_groups[0]["lr"]))
        terms = [
            (p * gradient(worker, count, name)).sum() for name, p in self.net.named_parameters()
        ]
        return torch.stack(terms).sum()

    def given(self, name: str, rates: Sequence[Sequence[float]]) -> Tensor:
        """The mean over workers of all gradients that arrived, each times its rate."""
        total = torch.zeros(SHAPES[name], dtype=torch.float64)
        for worker, finished in enumerate(self.cluster.finished):
            for count in range(finished):
                total += rates[worker][count] * gradient(worker, count, name).double() / WORKERS
        return total

    def owed(self, name: str, worker_rates: Sequence[float], server_rate: float) -> Tensor:
        """What workers and server owe, and the pushes of the version that is open."""
        state = self.cluster.exchange.state_dict()
        workers, server = state["workers"], state["server"]
        assert isinstance(workers, list)
        assert isinstance(server, dict)
        total = server_rate * server[name]["residual"].double()
        for own, rate in zip(workers, worker_rates, strict=True):
            if name in own:
                total = total + rate * own[name]["residual"].double() / WORKERS
        aggregate = aggregate_of(self.cluster)
        for number, piece in aggregate.pieces.items():
            if piece.key.name == name:
                for one in aggregate.open[number]:
                    pushed = one.learning_rate if server_rate != 1.0 else 1.0
                    total[piece.start : piece.stop] += pushed * decoded(one.encoded) / WORKERS
        return total.reshape(SHAPES[name])


@pytest.mark.parametrize(("quorum", "staleness"), [(1, 5), (1, 0), (2, 1), (3, 0)])
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_I4_nothing_is_lost_though_gradients_are_refused(
    codec: Codec, quorum: int, staleness: int
) -> None:
    run = Known(tw.doublesqueeze(codec), quorum, staleness)
    run.train([0.1] * 110)
    cluster = run.cluster
    assert cluster.refused >= 3
    assert min(cluster.finished) >= 1
    still_open = len(aggregate_of(cluster).open[0])
    assert cluster.evaluations == cluster.refused + quorum * cluster.version + still_open
    ones = [[1.0] * len(own) for own in run.rates]
    for name in SHAPES:
        applied = torch.stack([mean[name].double() for mean in run.means]).sum(0)
        found = applied + run.owed(name, [1.0] * WORKERS, 1.0)
        torch.testing.assert_close(found, run.given(name, ones), rtol=1e-5, atol=1e-4)


class Heard:
    """What an aggregate counts, noted: whose it is, how old, and the rates of those that close."""

    def __init__(self, aggregate: Aggregate, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workers: list[int] = []
        self.closing_rates: list[float] = []
        self.lags: list[int] = []
        count = aggregate.count

        def noting(worker: int, step: int, push: Push) -> list[Update]:
            self.workers.append(worker)
            self.lags.append(aggregate.version - push.version)
            updates = count(worker, step, push)
            self.closing_rates += [push.learning_rate for _ in updates]
            return updates

        monkeypatch.setattr(aggregate, "count", noting)


@pytest.mark.parametrize("codec", [tw.OneBit(), tw.TopK(0.05)], ids=repr)
def test_I5_the_rate_of_a_gradient_goes_with_it(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A residual that follows the rate conserves displacement for any schedule: each gradient
    counts with the rate its worker had, and each update with that of the push that closed it."""
    run = Known(tw.Recipe(codec, RESCALED, codec, RESCALED), quorum=1, staleness=8)
    heard = Heard(aggregate_of(run.cluster), monkeypatch)
    run.train([0.1] * 20 + [0.5] * 10 + [0.05] * 30 + [0.3] * 23)
    assert run.cluster.refused >= 1
    assert len(set(heard.closing_rates)) == 4
    # Late gradients come with the rate of the version they are of, not the newest.
    assert heard.closing_rates != [0.1] * 20 + [0.5] * 10 + [0.05] * 30 + [0.3] * 23
    finished = run.cluster.finished
    last = [own[count - 1] for own, count in zip(run.rates, finished, strict=True)]
    for name in SHAPES:
        moved = sum(
            rate * mean[name].double()
            for rate, mean in zip(heard.closing_rates, run.means, strict=True)
        )
        found = moved + run.owed(name, last, heard.closing_rates[-1])
        torch.testing.assert_close(found, run.given(name, run.rates), rtol=1e-5, atol=1e-5)


def test_no_gradient_older_than_allowed_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Known(tw.doublesqueeze(tw.OneBit()), quorum=1, staleness=2)
    heard = Heard(aggregate_of(run.cluster), monkeypatch)
    run.train([0.1] * 60)
    assert max(heard.lags) == 2
    assert 3 not in heard.workers  # ten times slower: always too old
    assert run.cluster.refused >= run.cluster.finished[3] > 0
    assert run.cluster.evaluations == run.cluster.refused + len(heard.lags)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(20, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 5))


class Run:
    """A small training on random data, which all workers draw from one generator."""

    def __init__(self, recipe: Recipe, *, seed: int = 5, **rules: int | Sequence[float]) -> None:
        self.net = network()
        self.optimizer = tw.optim.SGD(self.net.parameters(), lr=0.05)
        self.cluster = tw.VirtualCluster(
            self.net,
            self.optimizer,
            recipe,
            workers=3,
            seed=seed,
            **rules,  # type: ignore[arg-type]  # each is of the type that its name wants
        )
        self._chance = torch.Generator().manual_seed(1)
        self.losses: list[float] = []
        self.nbytes: list[tuple[float, int]] = []

    def train(self, steps: int) -> Run:
        for step in range(steps):
            self.optimizer.param_groups[0]["lr"] = 0.05 if step % 5 else 0.02
            self.losses.append(self.cluster.step(self._loss))
            assert self.cluster.last is not None
            self.nbytes.append((self.cluster.last.pushed_nbytes, self.cluster.last.pulled_nbytes))
        return self

    def _loss(self, worker: int) -> Tensor:
        x = torch.randn(16, 20, generator=self._chance)
        return nn.functional.cross_entropy(self.net(x), (x[:, 0] > 0).long())

    def bits(self) -> list[bytes]:
        return [value.numpy().tobytes() for value in self.net.state_dict().values()]


@pytest.mark.parametrize("recipe", RECIPES, ids=range(len(RECIPES)))
@pytest.mark.parametrize("speeds", [(1.0, 1.0, 1.0), (0.1, 3.0, 1.0)])
def test_a_quorum_of_all_is_synchronous_training_bit_for_bit(
    recipe: Recipe, speeds: Sequence[float]
) -> None:
    plain = Run(recipe).train(12)
    ruled = Run(recipe, quorum=3, staleness=0, speeds=speeds).train(12)
    assert ruled.bits() == plain.bits()
    assert ruled.losses == plain.losses
    assert ruled.nbytes == plain.nbytes
    assert ruled.cluster.finished == plain.cluster.finished == [12, 12, 12]
    assert ruled.cluster.version == plain.cluster.version == 12


@pytest.mark.parametrize("recipe", [tw.doublesqueeze(tw.OneBit()), tw.dgc(0.05)], ids=repr)
def test_the_seed_is_the_order_of_arrival(recipe: Recipe) -> None:
    first, again = (Run(recipe, quorum=2, staleness=3).train(20) for _ in range(2))
    other = Run(recipe, seed=6, quorum=2, staleness=3).train(20)
    assert again.bits() == first.bits()
    assert again.losses == first.losses
    assert again.cluster.clock == first.cluster.clock
    assert other.cluster.clock != first.cluster.clock
    assert other.losses != first.losses


def by_hand(speeds: Sequence[float], versions: int, rate: float) -> tuple[list[Tensor], float]:
    """Asynchronous SGD on half the square of the weights, with all versions of the weights kept."""
    weights = [torch.linspace(-1, 1, 7)]
    ends = [(1 / speed, worker, 0) for worker, speed in enumerate(speeds)]
    heapq.heapify(ends)
    now = 0.0
    while len(weights) <= versions:
        now, worker, version = heapq.heappop(ends)
        weights.append(weights[-1] - rate * (weights[version] * (1 / len(speeds))))
        heapq.heappush(ends, (now + 1 / speeds[worker], worker, len(weights) - 1))
    return weights, now


def test_each_gradient_is_of_the_weights_that_its_worker_had() -> None:
    speeds = (1.0, 0.37, 0.11)
    net = nn.Linear(7, 1, bias=False)
    net.weight.data = torch.linspace(-1, 1, 7)[None]
    cluster = tw.VirtualCluster(
        net,
        torch.optim.SGD(net.parameters(), lr=0.3),
        tw.dense(),
        workers=3,
        quorum=1,
        speeds=speeds,
        jitter=0.0,
    )
    expected, now = by_hand(speeds, 40, 0.3)
    for version in range(1, 41):
        cluster.step(lambda worker: net.weight.square().sum() / 2)
        torch.testing.assert_close(net.weight.detach()[0], expected[version])
    assert cluster.clock == pytest.approx(now)
    assert cluster.refused == 0


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"speeds": (1.0, 2.0)}, "2 speeds for 3 workers"),
        ({"speeds": (1.0, 0.0, 1.0)}, "speeds must be positive"),
        ({"quorum": 4}, "can never be met"),
        ({"staleness": -1}, "staleness must be a whole number"),
        ({"quorum": 1, "jitter": 1.0}, r"jitter must be in \[0, 1\)"),
    ],
)
def test_rules_that_cannot_be_are_refused(rules: dict[str, int], message: str) -> None:
    with pytest.raises(tw.ConfigError, match=message):
        Run(tw.dense(), **rules)


def test_a_refusal_needs_a_residual_to_go_back_to() -> None:
    with pytest.raises(tw.ConfigError, match="a push was refused"):
        Run(tw.dense(), quorum=1, staleness=0, speeds=(1.0, 1.0, 0.1)).train(30)
