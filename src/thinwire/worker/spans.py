"""How a worker lets itself be watched: what it does happens within spans, which cost nothing if
nobody watches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Span = Callable[[str, object], AbstractContextManager[object]]
"""Given what is done, and ``str(about)`` what, a context that it is done in. For any thread."""

_NOTHING = nullcontext()


def unwatched(name: str, about: object) -> AbstractContextManager[object]:
    """The span of those whom nobody watches."""
    return _NOTHING
