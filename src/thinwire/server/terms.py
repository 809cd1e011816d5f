"""What a run was started with, kept beside its log: a restart counts the log again, by these."""

from __future__ import annotations

import json
from pathlib import Path

from thinwire.errors import ConfigError, LogError
from thinwire.recipe import Recipe
from thinwire.server.disk import explained, write_whole
from thinwire.server.rules import Rules

FILE = "terms.json"


def check_terms(folder: Path, recipe: Recipe, rules: Rules, seed: int) -> None:
    """Write the terms of a new run, or refuse those that are not the old ones."""
    path = folder / FILE
    terms: dict[str, object] = {
        "recipe": repr(recipe),
        "workers": rules.workers,
        "quorum": rules.quorum,
        "staleness": rules.staleness,
        "seed": seed,
    }
    if not path.exists():
        write_whole(path, [(json.dumps(terms, indent=1).encode(),)])
        return
    with explained(path, "read"):
        text = path.read_text()
    try:
        before = json.loads(text)
    except ValueError as error:
        raise LogError(f"{path}: {error}: restore it from a copy") from error
    for name, value in terms.items():
        if before.get(name) != value:
            raise ConfigError(
                f"the log in {folder} was begun with {name} {before.get(name)}, not {value}: start "
                "the server as before, or with an empty folder"
            )
