"""Results of trials in a folder, a JSON file each, written at once and whole."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

from thinwire.errors import ConfigError, ThinwireError
from thinwire.lab.reproduce.plan import Trial
from thinwire.lab.reproduce.result import TrialResult, identity, result_from_json
from thinwire.lab.train.log import cannot_write


class Store:
    """``OUT/results`` keeps what is finished, ``OUT/runs`` what is under way."""

    def __init__(self, out: Path) -> None:
        self._results, self._runs = out / "results", out / "runs"

    def run_folder(self, trial: Trial) -> Path:
        return self._runs / trial.folder

    def load(self, trial: Trial) -> TrialResult | None:
        """None if it is not finished. A result of another plan is refused."""
        path = self._path(trial)
        try:
            values = json.loads(path.read_text())
            found, result = values["trial"], result_from_json(values)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ThinwireError(f"{path} cannot be read: delete it to run it again") from error
        own = identity(trial)
        other = next((name for name in own if found.get(name) != own[name]), None)
        if other is not None:
            raise ConfigError(
                f"{path} is of another plan, with {other} {found.get(other)}, not {own[other]}: "
                "give a new folder, or delete it"
            )
        return result

    def save(self, trial: Trial, result: TrialResult) -> None:
        """From now on the trial is finished, so its checkpoints are not needed."""
        path = self._path(trial)
        fresh = path.with_suffix(".new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps(result.as_json(trial), indent=1, allow_nan=False) + "\n")
            fresh.rename(path)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink()
            raise cannot_write(path, error) from error
        shutil.rmtree(self.run_folder(trial), ignore_errors=True)

    def _path(self, trial: Trial) -> Path:
        return self._results / f"{trial.folder}.json"
