"""``table``: statistics as short tables of plain text, for ``print``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

_LARGEST = 5
_NAME_LENGTH = 40
_LABEL_LENGTH = 11
_UNITS = ("kB", "MB", "GB", "TB")


class _Bytes(Protocol):
    @property
    def dense_nbytes(self) -> int: ...

    @property
    def pushed_nbytes(self) -> int: ...

    @property
    def pulled_nbytes(self) -> int: ...


def table(rows: Sequence[tuple[str, str]], tensors: Mapping[str, _Bytes] | None = None) -> str:
    """A line for each label and its text, and the tensors with the most bytes."""
    lines = [f"{label:<{_LABEL_LENGTH}}{text}" for label, text in rows]
    if tensors:
        lines.append(f"{'tensors':<{_LABEL_LENGTH}}{len(tensors)}; most bytes:")
        lines += _largest(tensors)
    return "\n".join(lines)


def _largest(tensors: Mapping[str, _Bytes]) -> list[str]:
    order = sorted(tensors, key=lambda name: -_nbytes(tensors[name]))[:_LARGEST]
    length = max(len(_end_of(name)) for name in order)
    return [f"  {_end_of(name):<{length}}  {_tensor_text(tensors[name])}" for name in order]


def _nbytes(tensor: _Bytes) -> int:
    return tensor.pushed_nbytes + tensor.pulled_nbytes


def _tensor_text(tensor: _Bytes) -> str:
    # Only what is pushed has a ratio: a worker may pull more updates than it pushes gradients.
    ratio = fewer(tensor.dense_nbytes, tensor.pushed_nbytes)
    pushed = _joined(f"{byte_text(tensor.pushed_nbytes)} pushed", ratio)
    return f"{pushed}; {byte_text(tensor.pulled_nbytes)} pulled"


def _end_of(name: str) -> str:
    """The end of a long name: its beginning is the same for many."""
    return name if len(name) <= _NAME_LENGTH else f"...{name[3 - _NAME_LENGTH :]}"


def sent_text(nbytes: float, dense: float) -> str:
    """So many bytes, and how many times fewer than ``dense`` they are."""
    return _joined(byte_text(nbytes), fewer(dense, nbytes))


def _joined(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def byte_text(nbytes: float) -> str:
    """In the unit that needs the fewest digits: each is 1000 times the one before it."""
    if round(nbytes) < 1000:
        return f"{nbytes:.0f} B"
    exponent = next((n for n in range(1, len(_UNITS)) if nbytes < 999.95 * 1000**n), len(_UNITS))
    return f"{nbytes / 1000**exponent:,.1f} {_UNITS[exponent - 1]}"


def fewer(dense: float, sent: float) -> str:
    """How many times fewer bytes than ``dense``; empty if either is nothing."""
    if not dense or not sent:
        return ""
    ratio = dense / sent
    if 0.95 <= ratio < 1.05:
        return "as dense"
    return f"{ratio:.1f}x fewer" if ratio > 1 else f"{1 / ratio:.1f}x more"


def time_text(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def residual_text(ratio: float | None, forgotten: float | None) -> str:
    kept = "none kept" if ratio is None else f"{ratio:.3g} times the newest gradient"
    return kept if forgotten is None else f"{kept}, a step forgets {forgotten:.3g} times one"
