"""``Staging``: copy a bucket's gradients to float32 in CPU memory, and back.

Gradients on an accelerator are copied on a stream of their own, through pinned memory, while
backward goes on; events say when a copy is done. float32 on the CPU is used where it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from thinwire import _native


class Staging:
    """Where the buckets of one model are staged. Memory is allocated once per bucket."""

    def __init__(self) -> None:
        self._memory: dict[tuple[int, int], Tensor] = {}
        self._buckets: dict[int, int] = {}
        self._streams: dict[torch.device, Any] = {}

    def stage(self, index: int, buffer: Tensor, *, scale: float) -> Staged:
        """Begin to copy bucket ``index``, which is flat and multiplied by ``scale``."""
        stream = self._stream(buffer.device)
        if buffer.device.type == "cpu" and buffer.dtype == torch.float32:
            self._prepare(index, buffer)
            return Staged(buffer, buffer, stream, scale)
        key = (index, buffer.numel())
        if key not in self._memory:
            pinned = buffer.device.type != "cpu"
            self._memory[key] = torch.empty(buffer.numel(), pin_memory=pinned)
        staged = Staged(buffer, self._memory[key], stream, scale)
        staged.fetch()
        return staged

    def _prepare(self, index: int, buffer: Tensor) -> None:
        """Move a bucket that is new into huge pages: backward and every stage go through it."""
        if self._buckets.get(index) != buffer.data_ptr():
            self._buckets[index] = buffer.data_ptr()
            _native.prefer_huge_pages(buffer)

    def _stream(self, device: torch.device) -> Any:
        if device.type == "cpu":
            return None
        if device not in self._streams:
            self._streams[device] = torch.get_device_module(device).Stream(device)
        return self._streams[device]


class Staged:
    """One staged bucket: ``fetch`` and ``store`` begin copies, ``flat`` waits for the first."""

    def __init__(self, buffer: Tensor, memory: Tensor, stream: Any, scale: float) -> None:
        """``stream`` is one of the buffer's device, or None if that is the CPU."""
        self._buffer = buffer
        self._memory = memory
        self._stream = stream
        self._scale = scale
        self._fetched: Any = None

    def fetch(self) -> None:
        """Begin to copy the bucket here, after what its device is doing now."""
        if self._stream is not None:
            module = torch.get_device_module(self._buffer.device)
            self._stream.wait_stream(module.current_stream(self._buffer.device))
        with self._on_stream():
            self._memory.copy_(self._buffer, non_blocking=True)
            if self._stream is not None:
                self._fetched = self._stream.record_event()

    def flat(self) -> Tensor:
        """The gradients, flat, float32 and not scaled, once they are here."""
        if self._fetched is not None:
            self._fetched.synchronize()
        if self._scale != 1.0:
            self._memory.mul_(1.0 / self._scale)
        return self._memory

    def store(self) -> Tensor:
        """Begin to copy what ``flat`` holds now back to the bucket; returns the bucket."""
        if self._scale != 1.0:
            self._memory.mul_(self._scale)
        if self._memory is not self._buffer:
            with self._on_stream():
                self._buffer.copy_(self._memory, non_blocking=True)
        return self._buffer

    def stored(self) -> Tensor:
        """The bucket itself."""
        return self._buffer

    def future(self) -> torch.futures.Future[Tensor]:
        """A future; waiting for it waits for the copy back, too."""
        devices: list[int | str | torch.device]
        devices = [] if self._stream is None else [self._buffer.device]
        return torch.futures.Future(devices=devices)

    def complete(self, future: torch.futures.Future[Tensor]) -> None:
        with self._on_stream():
            future.set_result(self._buffer)

    def _on_stream(self) -> AbstractContextManager[object]:
        if self._stream is None:
            return nullcontext()
        context: AbstractContextManager[object]
        context = torch.get_device_module(self._buffer.device).stream(self._stream)
        return context
