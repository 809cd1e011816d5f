"""Checkpoints of a run: a folder for each saved step, a file in it for each rank.

A checkpoint counts when the files of all ranks are there. Every rank keeps its last two, because
another one may not have come to the newest. Files hold plain tensors and numbers.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from thinwire.errors import ThinwireError
from thinwire.lab.train.log import cannot_write

KEPT = 2


class Keeper:
    """One rank's part in the checkpoints of ``folder``."""

    def __init__(self, folder: Path, *, rank: int, ranks: int) -> None:
        self._folder, self._rank, self._ranks = folder / "checkpoints", rank, ranks

    def newest(self) -> int:
        """The last step that all ranks have saved; 0 if there is none."""
        return next((s for s in reversed(self._saved()) if self._is_complete(s)), 0)

    def load(self) -> dict[str, Any] | None:
        """This rank's state of ``newest``, if there is one."""
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
        """Whole or not at all: a full disk leaves earlier ones as they are."""
        path = self._path(step, self._rank)
        fresh = path.with_suffix(".new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(path)
        except (OSError, RuntimeError) as error:
            with suppress(OSError):
                fresh.unlink()
            raise cannot_write(path, _error_of_file(error)) from error
        self._forget()

    def _saved(self) -> list[int]:
        """Steps of which this rank has a file."""
        own = self._folder.glob(f"*/rank-{self._rank}.pt")
        return sorted(int(path.parent.name) for path in own if path.parent.name.isdecimal())

    def _is_complete(self, step: int) -> bool:
        return all(self._path(step, rank).is_file() for rank in range(self._ranks))

    def _forget(self) -> None:
        for step in self._saved()[:-KEPT]:
            path = self._path(step, self._rank)
            path.unlink()
            with suppress(OSError):  # others have files in it
                path.parent.rmdir()

    def _path(self, step: int, rank: int) -> Path:
        return self._folder / f"{step:08d}" / f"rank-{rank}.pt"


def _error_of_file(error: BaseException) -> BaseException:
    """Behind some errors of a file torch raises its own, which do not say what is wrong."""
    behind = error.__context__
    return behind if isinstance(behind, OSError) else error
