"""``LocalSteps``: one rank that trains alone between rounds, and its exchanges with the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire import _native
from thinwire.errors import ConfigError, NonFiniteError
from thinwire.exchange.base import StepExchange, Unit
from thinwire.exchange.pipeline import Pipeline
from thinwire.gradient.pieces import Piece, batches
from thinwire.gradient.steps import StepInfo
from thinwire.hooks.rank_handle import STAGES, RankHandle
from thinwire.hooks.rank_state import CompressionState, RankState
from thinwire.hooks.rendezvous import Membership
from thinwire.local.global_weights import Changes, GlobalWeights
from thinwire.local.rounds import Rounds, divide
from thinwire.recipe import Recipe
from thinwire.watch.stats import Stats

_ATTRIBUTE = "_thinwire_local_steps"
"""Where an optimizer has its ``LocalSteps``: it may be given once."""


class ChangesBuffer:
    """A GradientBuffer of what a fragment changed."""

    def __init__(self, flat: dict[str, Tensor]) -> None:
        self.flat = flat

    def unit(self, pieces: Sequence[Piece], info: StepInfo) -> Unit:
        return Unit(pieces, self.flat, info)

    def store(self) -> bool:
        """The mean is merged by the training thread."""
        return True

    def complete(self) -> None:
        """Training waits for the whole fragment."""


class LocalSteps(RankHandle):
    """What ``local_steps`` returns: state, statistics, global weights, and a way to stop.

    ``steps`` are those of this rank's optimizer, ``rounds`` the exchanges that have begun.
    """

    def __init__(
        self,
        weights: GlobalWeights,
        membership: Membership,
        recipe: Recipe,
        schedule: Rounds,
        optimizer: Optimizer,
        deadline_seconds: float,
    ) -> None:
        """Use ``local_steps`` instead."""
        runner = Pipeline(STAGES, on_error=self._teller())
        super().__init__(membership, runner, recipe=recipe, deadline_seconds=deadline_seconds)
        before = getattr(optimizer, _ATTRIBUTE, None)
        if isinstance(before, LocalSteps) and not before._closed:
            raise ConfigError("local_steps: this optimizer is counted already: close that first")
        self._weights, self.schedule = weights, schedule
        numels = {name: weights[name].numel() for name in weights.local}
        self._fragments = divide(numels, schedule.fragments)
        self._under_way: dict[int, Changes] = {}
        self.rounds = 0
        # It lives as long as the optimizer, also if the script drops it: ranks would train apart.
        setattr(optimizer, _ATTRIBUTE, self)
        self._hook = optimizer.register_step_post_hook(self._after_step)

    def synchronize(self) -> None:
        """Exchange all that is left, and wait: then all ranks have the same weights.

        For the end of training. All ranks must call it after the same number of steps; the next
        rounds are when they would have been.
        """
        self._check_usable()
        self._weights.check_own("synchronize()")
        with self._telling():
            for fragment in list(self._under_way):
                self._finish(fragment)
            for fragment in range(self.schedule.fragments):
                self._begin(fragment, goes_on=False)
                self._finish(fragment)

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """The network has the global weights in here, to be evaluated or saved.

        They are those of the last round, the same on all ranks. No step may be made in here.
        """
        with self._weights.in_network():
            yield

    def state_dict(self) -> CompressionState:
        """This rank's state, its own weights included; waits for the exchange under way.

        Save the optimizer's state with it, for each rank: ranks differ in both.
        """
        self.wait()
        state = super().state_dict()
        for own in state.values():
            own["local"] = {
                **self._weights.state_dict(),
                **_written(self._under_way),
                "rounds": {"begun": torch.tensor(self.rounds)},
            }
        return state

    def load_state_dict(self, state: CompressionState) -> None:
        """Continue where this rank's ``state_dict`` was made, also within a round. The network's
        weights become those of then."""
        self._weights.check_own("load_state_dict()")
        own = self.checked([state]).get(self._own_key)
        local = _local_part(own) if own is not None else None
        if local is not None:
            self._weights.check_state_dict(local)
        super().load_state_dict(state)
        if local is not None:
            self._load_local(local)

    def load_state_dicts(self, states: Iterable[CompressionState]) -> None:
        """Continue from the states of all ranks of a run, whatever their number was.

        If it differs, each rank begins with the mean of the weights that they had: so what they
        have changed since their last round still counts, on average.
        """
        every = self._of_own_part(self.checked(states))
        super().load_state_dicts([every])
        if self._own_key in every and self.fits(every):
            return  # loaded by load_state_dict
        parts = [_local_part(every[key]) for key in sorted(every, key=lambda k: every[k]["rank"])]
        mean = {
            name: torch.stack([part["local"][name].double() for part in parts]).mean(0)
            for name in parts[0]["local"]
        }
        if any(part.get("mean") for part in parts):
            raise ConfigError(
                "these states were made during an exchange, for another number of ranks: save "
                "after synchronize()"
            )
        self._load_local({**parts[0], "local": mean})

    def stats(self) -> Stats:
        """What happened so far, on this rank. Dense is what gradients would have sent in every
        step."""
        stats = super().stats()
        times = self.steps
        tensors = {
            name: replace(tensor, dense_nbytes=4 * self._weights[name].numel() * times)
            for name, tensor in stats.tensors.items()
        }
        dense = 4 * times * self._weights.trained_numel
        return replace(stats, dense_nbytes=dense, tensors=tensors, rounds=self.rounds)

    def close(self) -> None:
        """Stop counting: the network is the rank's own from now on."""
        self._hook.remove()
        super().close()

    def _after_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._check_usable()
        self._weights.check_own("an optimizer step")
        with self._telling():
            self.steps += 1
            for due in self.schedule.due(self.steps):
                if due.begins:
                    self._begin(due.fragment, goes_on=self.schedule.overlaps)
                elif due.fragment in self._under_way:
                    self._finish(due.fragment)

    def _begin(self, fragment: int, *, goes_on: bool) -> None:
        """Send what this rank has changed of a fragment, in the background."""
        names = self._fragments[fragment]
        changes = self._weights.changes(names, goes_on=goes_on)
        self._under_way[fragment] = changes
        buffer = ChangesBuffer(changes.flat)
        self._current = StepExchange(StepInfo(self.rounds))
        self.rounds += 1
        pieces = [piece for name in names for piece in self._pieces[name]]
        units = batches(pieces) if pieces else []
        for unit in units:
            last = unit is units[-1]
            self._runner.submit(self._job(buffer, unit, completes_buffer=last, last=last))

    def _finish(self, fragment: int) -> None:
        """Wait for the mean of a fragment, and merge it."""
        self.wait()
        changes = self._under_way.pop(fragment)
        for name, mean in changes.flat.items():
            if not _native.all_finite(mean):
                raise NonFiniteError(
                    f"step {self.steps}: {name} is not finite on this rank or another: training "
                    "has diverged"
                )
        self._weights.apply(changes.flat)
        self._weights.merge(changes)

    def _end_step(self, step: StepExchange) -> None:
        """Do nothing: the training thread merges, and looks whether the mean is finite."""

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell the other ranks of an error in here, who would wait for this one."""
        try:
            yield
        except BaseException as error:
            self._tell(error)
            raise

    def _load_local(self, local: Mapping[str, Mapping[str, Any]]) -> None:
        self._weights.load_state_dict(local)
        self.rounds = int(local["rounds"]["begun"])
        means, begun = local.get("mean", {}), local.get("begun", {})
        self._under_way = {
            number: Changes(_copied(means, names), _copied(begun, names))
            for number, names in enumerate(self._fragments)
            if any(name in means for name in names)
        }


def _written(
    under_way: Mapping[int, Changes],
) -> dict[str, dict[str, Tensor | dict[str, Tensor]]]:
    """The means that have come, but are not merged yet, and the weights that they belong to."""
    every = list(under_way.values())
    return {
        "mean": {name: x.clone() for changes in every for name, x in changes.flat.items()},
        "begun": {name: x.clone() for changes in every for name, x in changes.begun.items()},
    }


def _copied(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    return {name: tensors[name].clone() for name in names if name in tensors}


def _local_part(state: RankState) -> dict[str, dict[str, Any]]:
    if "local" not in state:
        raise ConfigError(
            "this state has no local weights: it is of compress_ddp or compress_module, not of "
            "local_steps"
        )
    return cast(dict[str, dict[str, Any]], state["local"])
