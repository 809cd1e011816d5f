"""Without its library an integration says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize("name", ["lightning", "accelerate", "transformers"])
def test_a_missing_library_is_named_with_the_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in list(sys.modules):
        if module == name or module.startswith(f"{name}."):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"thinwire.integrations.{name}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'thinwire\[{name}\]'"):
        importlib.import_module(f"thinwire.integrations.{name}")
