"""``CheckpointStore``: a folder for each saved step of a run, with a file for each rank.

A checkpoint is complete when the files of all ranks are there. Every rank keeps its last two,
because another rank may not have saved the newest yet. Files hold plain tensors and numbers.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from thinwire.errors import ThinwireError
from thinwire.files import replacing
from thinwire_lab.train.log import cannot_write

KEPT = 2


class CheckpointStore:
    """One rank's view of the checkpoints in ``folder``."""

    def __init__(self, folder: Path, *, rank: int, ranks: int) -> None:
        self._folder, self._rank, self._ranks = folder / "checkpoints", rank, ranks

    def newest(self) -> int:
        """The last step that all ranks have saved; 0 if they have saved none."""
        return next((s for s in reversed(self._saved()) if self._is_complete(s)), 0)

    def load(self) -> dict[str, Any] | None:
        """This rank's state of the newest complete checkpoint; None if there is none."""
        step = self.newest()
        if not step:
            return None
        path = self._path(step, self._rank)
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
        except (OSError, RuntimeError, EOFError) as error:
            reason = str(error).splitlines()[0]
            raise ThinwireError(
                f"{path} cannot be read: {reason}; delete {path.parent} to go on from before it"
            ) from error
        return state

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save it whole or not at all: a full disk leaves earlier ones as they are."""
        path = self._path(step, self._rank)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as fresh, fresh.open("wb") as file:
                torch.save(state, file)
        except (OSError, RuntimeError) as error:
            raise cannot_write(path, _error_of_file(error)) from error
        self._delete_old()

    def _saved(self) -> list[int]:
        """Steps that this rank has saved."""
        paths = self._folder.glob(f"*/rank-{self._rank}.pt")
        return sorted(int(path.parent.name) for path in paths if path.parent.name.isdecimal())

    def _is_complete(self, step: int) -> bool:
        return all(self._path(step, rank).is_file() for rank in range(self._ranks))

    def _delete_old(self) -> None:
        for step in self._saved()[:-KEPT]:
            path = self._path(step, self._rank)
            path.unlink()
            with suppress(OSError):  # other ranks have files in it
                path.parent.rmdir()

    def _path(self, step: int, rank: int) -> Path:
        return self._folder / f"{step:08d}" / f"rank-{rank}.pt"


def _error_of_file(error: BaseException) -> BaseException:
    """Errors that torch raises do not name the cause; the system's error behind them does."""
    cause = error.__context__
    return cause if isinstance(cause, OSError) else error
