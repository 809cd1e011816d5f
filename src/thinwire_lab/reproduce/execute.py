"""``Executor``: runs trials one after the other, as ``thinwire train`` would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from thinwire.errors import NonFiniteError
from thinwire.local.rounds import Rounds
from thinwire_lab.bench.machine import this_machine
from thinwire_lab.reproduce.clan import clan
from thinwire_lab.reproduce.dgc import dgc
from thinwire_lab.reproduce.doublesqueeze import doublesqueeze
from thinwire_lab.reproduce.local_steps import local_steps
from thinwire_lab.reproduce.optimizers import optimizers
from thinwire_lab.reproduce.plan import Reproduction, Trial
from thinwire_lab.reproduce.result import Store, TrialResult
from thinwire_lab.tasks.registry import find_task
from thinwire_lab.train.events import Event
from thinwire_lab.train.interrupts import Interrupts
from thinwire_lab.train.plan import Plan, prepare
from thinwire_lab.train.run import Run
from thinwire_lab.train.settings import RunSettings

_MAKERS = {
    "dgc": dgc,
    "doublesqueeze": doublesqueeze,
    "clan": clan,
    "optimizers": optimizers,
    "local": local_steps,
}


def find_reproduction(name: str, scale: str) -> Reproduction:
    return _MAKERS[name](scale)


Results = dict[Trial, TrialResult]


class Watcher(Protocol):
    """Gets the progress of trials."""

    def begin(self, trial: Trial, plan: Plan, *, number: int, start: int) -> None: ...

    def show(self, event: Event) -> None: ...

    def end(self, trial: Trial, result: TrialResult) -> None: ...


@dataclass(frozen=True, slots=True)
class Executor:
    """``data`` is the folder of data sets; ``threads`` is for each run. ``command`` is what the
    user typed, for the results."""

    store: Store
    data: Path | None
    threads: int = 1
    command: str = ""

    def finished(self, trials: Iterable[Trial]) -> Results:
        stored = ((trial, self.store.load(trial)) for trial in trials)
        return {trial: result for trial, result in stored if result is not None}

    def check_data(self, trials: Iterable[Trial]) -> None:
        """Fail on missing files now, not after hours."""
        needed = {(t.experiment.task, t.experiment.scale): t for t in trials}
        for (task, scale), trial in needed.items():
            workers = trial.experiment.workers
            find_task(task, scale).feed.open(self.data, workers=workers, seed=0)

    def run(self, trials: Sequence[Trial], watcher: Watcher, interrupts: Interrupts) -> Results:
        """Run all trials that are not finished, until the user stops them. Every result is saved
        before the next trial begins."""
        results = self.finished(trials)
        waiting = [trial for trial in trials if trial not in results]
        self.check_data(waiting)
        for trial in waiting:
            if interrupts.asked:
                break
            result = self._run(trial, watcher, interrupts, number=len(results) + 1)
            if result is not None:
                self.store.save(trial, result)
                results[trial] = result
                watcher.end(trial, result)
        return results

    def _run(
        self, trial: Trial, watcher: Watcher, interrupts: Interrupts, *, number: int
    ) -> TrialResult | None:
        plan = prepare(self._settings(trial))
        diverged = ""
        with Run(plan) as run:
            watcher.begin(trial, plan, number=number, start=run.start)
            try:
                result = run.train(watcher.show, interrupts)
            except NonFiniteError as error:  # divergence is a result, too
                diverged, events = str(error), run.events
            else:
                events = result.events
                if not result.finished:
                    return None
        return TrialResult(
            plan.record(),
            str(this_machine()),
            plan.dense_nbytes,
            diverged,
            events,
            command=self.command,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def _settings(self, trial: Trial) -> RunSettings:
        experiment, rounds = trial.experiment, trial.variant.rounds or Rounds(1)
        return RunSettings(
            experiment.task,
            str(self.store.run_folder(trial)),
            scale=experiment.scale,
            recipe=trial.variant.recipe,
            workers=experiment.workers,
            seed=trial.seed,
            epochs=experiment.epochs,
            learning_rate=experiment.learning_rate,
            momentum=experiment.momentum,
            threads=self.threads,
            data=None if self.data is None else str(self.data),
            local_steps=None if trial.variant.rounds is None else rounds.longest,
            delay=rounds.delay,
            fragments=rounds.fragments,
        )
