"""``Attached``: a client that has joined its servers: what it pushes, and what versions change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from thinwire.checks import check_positive
from thinwire.client.apply import Applying, AtOnce, Trained
from thinwire.client.early_forward import Early
from thinwire.client.push import Pushing, PushJob, ReadyGradients
from thinwire.client.servers import ServerAddresses, Servers, check_place
from thinwire.errors import ConfigError
from thinwire.exchange.pipeline import Pipeline
from thinwire.exchange.roles import WorkerRole
from thinwire.gradient.network import check_same_parameters, trained_parameters
from thinwire.gradient.pieces import Key
from thinwire.gradient.steps import StepInfo
from thinwire.local.rounds import Rounds
from thinwire.optim.takeover import use_momentum
from thinwire.recipe import Recipe
from thinwire.recipe_names import typed_recipe
from thinwire.watch.stats import ClientStats, Tally, residual_ratios


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The options of ``Client``; it says what they mean."""

    rank: int
    workers: int
    deadline_seconds: float
    report_seconds: float
    overlap: bool
    early_forward: bool
    seed: int
    force: bool
    rounds: Rounds | None

    def __post_init__(self) -> None:
        check_place(self.rank, self.workers)
        check_positive(self.deadline_seconds, owner="Client", field="deadline_seconds")
        check_positive(self.report_seconds, owner="Client", field="report_seconds")
        if self.rounds is not None:
            self._check_rounds(self.rounds)

    def _check_rounds(self, rounds: Rounds) -> None:
        if rounds.fragments > 1:
            raise ConfigError(
                "Client: servers answer for the whole network at once: use fragments=1, or "
                "tw.local_steps on a process group"
            )
        if self.early_forward:
            raise ConfigError(
                "Client: with local_steps no forward waits for servers: leave early_forward out, "
                "and use tw.Rounds(every, delay=...) to hide the exchange behind training"
            )


@dataclass(frozen=True, slots=True)
class Target:
    """Tensors by name whose gradients are pushed, and the optimizer that applies versions."""

    parameters: Mapping[str, Tensor]
    optimizer: Optimizer
    keys: list[Key]
    scheduler: LRScheduler | None = None
    net: nn.Module | None = None
    """None where ``parameters`` are not those of a network."""

    @classmethod
    def of(cls, net: nn.Module, optimizer: Optimizer, scheduler: LRScheduler | None) -> Target:
        """The network itself."""
        parameters = trained_parameters(net)
        keys = [Key(name, tuple(p.shape)) for name, p in parameters.items()]
        return cls(parameters, optimizer, keys, scheduler, net)


class Attached:
    """Made by ``Client.attach``, which joins the servers; ``end`` leaves them."""

    def __init__(
        self,
        addresses: ServerAddresses,
        recipe: Recipe,
        target: Target,
        settings: ClientSettings,
        *,
        version: int,
    ) -> None:
        self.target, self.settings, self.recipe = target, settings, recipe
        self.role = WorkerRole(
            recipe, rank=settings.rank, workers=settings.workers, seed=settings.seed
        )
        if target.net is not None:
            self.role.momentum = use_momentum(recipe, target.optimizer, dict(target.parameters))
        self.servers = Servers(
            addresses,
            recipe,
            target.keys,
            rank=settings.rank,
            workers=settings.workers,
            version=version,
            weights=target.parameters.values(),
        )
        self.tally, self.gradients = Tally(), ReadyGradients()
        self.steps, self.closed = 0, False
        self._pipeline = Pipeline(["encode"], on_error=lambda error: None)

    def begin(self, loaded: Mapping[str, Any]) -> None:
        """Load what was owed, and watch gradients. ``catch_up`` comes next."""
        servers, target, settings = self.servers, self.target, self.settings
        if self.recipe.shares_momentum:
            servers.check_synchronous()
        trained = Trained(
            servers,
            target.parameters,
            target.optimizer,
            target.scheduler,
            self.tally,
            settings.deadline_seconds,
            self.role.momentum,
        )
        self._at_once = AtOnce(trained)
        self.applying: Applying = self._at_once
        self.pushing = Pushing(servers, target.parameters, self.recipe, self.role, self.tally)
        self.steps = self.pushing.load_state_dict(loaded, steps=int(loaded.get("steps", 0)))
        overlaps = settings.overlap and target.net is not None and not self.recipe.clips_model
        self.gradients.watch(target.parameters, self._push_ready if overlaps else None)

    def catch_up(self) -> None:
        """Apply the versions before this worker joined."""
        self._at_once.catch_up(step=self.steps)
        if self.settings.early_forward and self.target.net is not None:
            self.applying = Early(self._at_once.trained, self.target.net)

    @property
    def version(self) -> int:
        """The newest version that was applied to all weights, or begins to be."""
        return self.servers.updates.version

    def check_unchanged(self) -> None:
        """Raise ConfigError if other parameters are trained, gradients are not those that were
        sent, or are of weights that were not up to date."""
        if self.target.net is not None:
            check_same_parameters(self.target.net, self.target.parameters)
        self.gradients.check_unchanged()
        self.applying.check_read()

    def push_rest(self) -> None:
        """Push all gradients that were not pushed during backward, in the background."""
        self.gradients.add_rest()
        self._submit()

    def count_step(self) -> None:
        """The push of this step is complete."""
        self.steps += 1
        self.gradients.clear()
        seconds = self.settings.report_seconds
        report = partial(self.pushing.report, self.steps, every_seconds=seconds)
        self._pipeline.submit(PushJob(report))

    def take_next(self, *, step: int) -> None:
        """Wait for the next version after the push of ``step``; apply it and all that are there."""
        self.drain()
        self.applying.advance(step=step)

    def push_round(self) -> int:
        """Push the gradients of the global weights; returns their version."""
        version = self.version
        self.push_rest()
        self.count_step()
        return version

    def finish_round(self, version: int) -> None:
        """Apply the version after this one, when it is there, and all others that are there."""
        if self.version == version:
            self.take_next(step=self.steps - 1)

    def drain(self) -> None:
        """Wait for the background: until then it may change residuals."""
        if self.closed:
            raise ConfigError("Client: closed already")
        seconds = 2 * self.settings.deadline_seconds
        self._pipeline.drain(deadline_seconds=seconds, what=f"step {self.steps}")

    def stats(self) -> ClientStats:
        """What happened since this worker was attached."""
        self.drain()
        servers, tally = self.servers, self.tally
        ratios, ratio = residual_ratios(self.role.compressor, servers.pieces)
        return ClientStats(
            recipe=typed_recipe(self.recipe),
            steps=self.steps,
            version=self.version,
            dense_nbytes=sum(tally.dense.values()),
            pushed_nbytes=sum(tally.pushed.values()),
            pulled_nbytes=sum(tally.pulled.values()),
            sent_nbytes=servers.sent_nbytes,
            received_nbytes=servers.received_nbytes,
            refused_pieces=servers.updates.refused_pieces,
            overflowed_pieces=self.pushing.overflowed,
            rejoined=sum(session.rejoined for session in servers.sessions),
            encode_seconds=self._pipeline.work_seconds["encode"],
            residual_ratio=ratio,
            tensors=tally.tensors(ratios),
            dense_pulled_nbytes=sum(tally.dense_pulled.values()),
            forgotten_ratio=self.role.compressor.forgotten_ratio,
        )

    def state_dict(self) -> dict[str, Any]:
        """What is owed. Waits until servers have acknowledged all pushes."""
        self.drain()
        return {"steps": self.steps, "version": self.version, **self.pushing.state_dict()}

    def end(self, error: BaseException | None) -> None:
        """Leave the servers. With an error they expect this worker to come back."""
        if self.closed:
            return
        self.closed = True
        self.gradients.unwatch()
        if self.role.momentum is not None:
            self.role.momentum.detach()
        self.applying.end()
        self._pipeline.close()
        if error is None:
            self.servers.close()
        else:
            self.servers.abandon(f"{type(error).__name__}: {error}")

    def _push_ready(self) -> None:
        # Before all weights have their version, its scheduler has not stepped yet.
        if self.applying.is_settled:
            self._submit()

    def _submit(self) -> None:
        names = self.gradients.take()
        if names:
            info = StepInfo(self.steps, float(self.target.optimizer.param_groups[0]["lr"]))
            push = partial(self.pushing.push, names, info, self.version)
            self._pipeline.submit(PushJob(push))
