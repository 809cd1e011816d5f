"""Reads the results that documentation quotes."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tests.docs.markdown import ROOT
from thinwire_lab.reproduce.plan import Trial
from thinwire_lab.reproduce.result import TrialResult, result_from_json


def committed(folder: str, trials: Iterable[Trial]) -> dict[Trial, TrialResult]:
    """Those of ``trials`` whose results are in ``docs/results``."""
    found = {}
    for trial in trials:
        path = ROOT / "docs/results" / folder / f"{trial.folder}.json"
        if path.exists():
            found[trial] = result_from_json(json.loads(path.read_text()))
    return found
