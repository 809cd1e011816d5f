"""``trace``: write a timeline of training steps, which shows what each thread did, and the overlap.

The file is a Chrome trace: open it with https://ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Span = Callable[[str, object], AbstractContextManager[object]]
"""Makes a context for one activity: its name, and ``str(about)`` beside it. For any thread."""

_NOTHING = nullcontext()


def unwatched(name: str, about: object) -> AbstractContextManager[object]:
    """No-op span, used when tracing is off."""
    return _NOTHING


Json = dict[str, object]

_MICROSECONDS = 1e-3
"""Of a nanosecond."""


class Watched(Protocol):
    """What can be traced, such as ``tw.Compression``."""

    def watch(self, span: Callable[[str, object], AbstractContextManager[object]] | None) -> None:
        """Do everything within such spans from now on; with None, no more."""


@dataclass(frozen=True, slots=True)
class _Event:
    name: str
    about: str
    thread: int
    thread_name: str
    start_ns: int
    stop_ns: int


class Trace:
    """Collects spans of all threads of this process. Times are those of the machine's clock."""

    def __init__(self, name: str = "thinwire", process: int | None = None) -> None:
        """``process`` is a number for the file, this process's own unless given."""
        self._name = name
        self._process = os.getpid() if process is None else process
        self._events: list[_Event] = []

    @contextmanager
    def span(self, name: str, about: object = "") -> Iterator[None]:
        """Show what is done within as one bar with this name, and ``str(about)`` beside it."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            stop, thread = time.perf_counter_ns(), threading.current_thread()
            number = threading.get_native_id()
            self._events.append(_Event(name, str(about), number, thread.name, start, stop))

    def as_json(self) -> Json:
        """The spans so far, with the names of process and threads."""
        threads = {event.thread: event.thread_name for event in self._events}
        names = [self._named("process_name", 0, self._name)]
        names += [self._named("thread_name", thread, name) for thread, name in threads.items()]
        ordered = sorted(self._events, key=lambda event: event.start_ns)
        return {"traceEvents": [*names, *map(self._bar, ordered)]}

    def _named(self, kind: str, thread: int, name: str) -> Json:
        about = {"ph": "M", "pid": self._process, "tid": thread}
        return {"name": kind, **about, "args": {"name": name}}

    def _bar(self, event: _Event) -> Json:
        return {
            "name": event.name,
            "ph": "X",
            "pid": self._process,
            "tid": event.thread,
            "ts": event.start_ns * _MICROSECONDS,
            "dur": (event.stop_ns - event.start_ns) * _MICROSECONDS,
            "args": {"about": event.about},
        }


@contextmanager
def trace(
    file: str | os.PathLike[str],
    *watched: Watched,
    name: str = "thinwire",
    process: int | None = None,
) -> Iterator[Trace]:
    """Write a timeline of what ``watched`` does within this context, some steps of training.

    Each rank needs a file of its own, and ``process``, its rank, if ``merge_traces`` shall join
    them. Spans of the script itself can be added: ``with tracing.span("backward"): ...``.
    """
    tracing = Trace(name, process)
    for handle in watched:
        handle.watch(tracing.span)
    try:
        yield tracing
    finally:
        for handle in watched:
            handle.watch(None)
        Path(file).write_text(json.dumps(tracing.as_json()))


def merge_traces(files: Iterable[str | os.PathLike[str]]) -> Json:
    """One timeline of several processes of one machine: they have the same clock."""
    traces = (json.loads(Path(file).read_text()) for file in files)
    return {"traceEvents": [event for trace in traces for event in trace["traceEvents"]]}
