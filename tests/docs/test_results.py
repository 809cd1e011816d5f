"""Tables in the documentation are those that the committed results make."""

from __future__ import annotations

import json

from tests.docs.markdown import ROOT
from tests.docs.optimizers_table import optimizer_rows


def test_the_table_of_optimizers_is_made_of_the_results() -> None:
    text = (ROOT / "docs/optimizers.md").read_text()
    missing = [row for row in optimizer_rows() if row not in text]
    assert not missing, "docs/optimizers.md lacks these rows:\n" + "\n".join(missing)


def test_the_table_of_time_to_loss_is_made_of_the_results() -> None:
    text = (ROOT / "docs/performance.md").read_text().replace("**", "")
    found = [json.loads(file.read_text()) for file in (ROOT / "docs/results/training").iterdir()]
    slow = [one for one in found if one["run"]["link"] == "100mbit-10ms"]
    (dense,) = (one for one in found if one["run"]["way"] == "ddp" and one["result"]["points"])
    aim = dense["result"]["points"][-1]["loss"]
    assert len(slow) == 6
    for one in slow:
        result = one["result"]
        loss = (result["points"] or dense["result"]["points"])[-1]["loss"]
        cells = f"| {1000 * result['step_seconds']:,.0f} | {loss:.4f} | "
        above = f"{100 * (loss / aim - 1):+.1f} % |" if loss != aim else "|"
        assert cells + above in text, one["run"]["way"]
