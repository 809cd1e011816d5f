"""Tables in the documentation are those that the committed results make."""

from __future__ import annotations

from tests.docs.markdown import ROOT
from tests.docs.optimizers_table import optimizer_rows


def test_the_table_of_optimizers_is_made_of_the_results() -> None:
    text = (ROOT / "docs/optimizers.md").read_text()
    missing = [row for row in optimizer_rows() if row not in text]
    assert not missing, "docs/optimizers.md lacks these rows:\n" + "\n".join(missing)
