"""``check_run_settings``: recipe, rules and seed of a run, kept beside its log.

A restart replays the log, which gives the same updates only with the same settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from thinwire.checks import check_whole
from thinwire.errors import ConfigError, LogError
from thinwire.recipe import Recipe
from thinwire.recipe_names import typed_recipe, typed_stored_recipe
from thinwire.recipe_text import same_recipe, stored_recipe
from thinwire.server.log.files import explained, write_whole
from thinwire.server.log.recovery import Recovery
from thinwire.server.settings import Rules
from thinwire.wire.messages import Describe, Join, decode

FILE = "terms.json"
"""Logs on disk have a file of this name, so it stays although the code says run settings."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What decides which updates a server makes of the same pushes."""

    recipe: Recipe
    rules: Rules
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self.seed, least=0, owner="Server", field="seed")

    def as_json(self) -> dict[str, object]:
        return {
            "recipe": stored_recipe(self.recipe),
            "workers": self.rules.workers,
            "quorum": self.rules.quorum,
            "staleness": self.rules.staleness,
            "seed": self.seed,
        }


def check_run_settings(folder: Path, recovery: Recovery, run: RunSettings) -> None:
    """Raise ConfigError for other settings than those that the log in ``folder`` was begun with."""
    before = _read_file(folder / FILE)
    if before is None:  # then the log itself tells a part of them
        before = _logged(recovery)
    if "recipe" in before:
        stored = str(before.pop("recipe"))
        if not same_recipe(run.recipe, stored):
            _refuse(folder, "recipe", typed_stored_recipe(stored), typed_recipe(run.recipe))
    settings = run.as_json()
    for name, value in before.items():
        if name in settings and value != settings[name]:
            _refuse(folder, name, value, settings[name])


def keep_run_settings(folder: Path, run: RunSettings) -> None:
    """Write the settings of a new run; those of an old one stay."""
    path = folder / FILE
    if not path.exists():
        text = json.dumps(run.as_json(), indent=1)
        write_whole(path, [(text.encode(),)])


def _read_file(path: Path) -> dict[str, object] | None:
    """None if there is no such file. Raises LogError unless it is whole."""
    with explained(path, "read"):
        if not path.exists():
            return None
        data = path.read_bytes()
    try:
        settings = json.loads(data.decode())
        if not isinstance(settings, dict):
            raise ValueError(f"expected an object, found {type(settings).__name__}")
        for name in ("workers", "quorum", "staleness", "seed"):
            if type(settings.get(name)) is not int:
                raise ValueError(f"{name} is {settings.get(name)!r}, expected a whole number")
        if not isinstance(settings.get("recipe"), str):
            raise ValueError(f"recipe is {settings.get('recipe')!r}, expected text")
    except (ValueError, RecursionError) as error:  # the latter by brackets within brackets
        raise LogError(
            f"{path} is damaged: {error}; restore it from a copy, or delete it and start the "
            "server exactly as this log was begun"
        ) from error
    return settings


def _logged(recovery: Recovery) -> dict[str, object]:
    """Recipe and workers as the first worker gave them, if the log still has its handshake."""
    settings: dict[str, object] = {}
    for message in _handshakes(recovery):
        if isinstance(message, Describe):
            settings["recipe"] = message.recipe
        else:
            settings["workers"] = message.workers
        if len(settings) == 2:
            break
    return settings


def _handshakes(recovery: Recovery) -> Iterator[Describe | Join]:
    pending = () if recovery.snapshot is None else recovery.snapshot.pending
    for frame in chain(pending, recovery.frames()):
        if frame.kind in (Describe.kind, Join.kind):
            message = decode(frame)
            if isinstance(message, Describe | Join):
                yield message


def _refuse(folder: Path, name: str, before: object, now: object) -> None:
    raise ConfigError(
        f"the log in {folder} was begun with {name} {before}, not {now}: start the server as "
        "before, or with an empty folder"
    )
