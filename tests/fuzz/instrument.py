"""Shows atheris the code of the package.

``atheris.instrument_imports`` sees nothing of an editable install, whose modules come through a
loader of scikit-build's own; so the functions are instrumented once they are there.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator


def functions_of(package: str) -> Iterator[types.FunctionType]:
    """Every function and method that a loaded module of ``package`` defines."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == package:
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    yield from _functions_in(value)


def _functions_in(value: object) -> Iterator[types.FunctionType]:
    value = getattr(value, "__wrapped__", value)
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, type):
        for member in list(vars(value).values()):
            if not isinstance(member, type):
                yield from _functions_in(member)


def instrument(package: str, instrument_function: Callable[[types.FunctionType], object]) -> int:
    """Instrument all of them; returns how many there are."""
    found = {id(function): function for function in functions_of(package)}
    for function in found.values():
        instrument_function(function)
    return len(found)
