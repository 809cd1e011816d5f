"""What a server's log costs: one step of 1-bit pushes and their update, by turns in one run.

    python benchmarks/log.py [--numel 25000000] [--workers 2] [--rounds 15] [--folder DIR]

Ratios mean something, absolute times do not. ``step`` is as fast as the disk under the folder.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

import thinwire as tw
from thinwire.exchange.roles import ServerRole
from thinwire.gradient.pieces import Key, cut
from thinwire.gradient.steps import StepInfo
from thinwire.server.log.log import Log
from thinwire.server.log.settings import LogSettings
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.frame import SERVER, pack
from thinwire.wire.messages import Message, Push, Update, encode

Parts = tuple[bytes, memoryview]


def entries(encoded: Sequence[EncodedBytes]) -> tuple[Entry, ...]:
    return tuple(Entry(i, part) for i, part in enumerate(encoded))


def parts_of(message: Message, worker: int) -> Parts:
    return pack(encode(message, run=1, epoch=1, worker=worker, step=1))


class Step:
    """The frames of one step, and the work that a server does for it without a log."""

    def __init__(self, numel: int, workers: int) -> None:
        self._pieces = cut([Key("net", (numel,))])
        self._server = ServerRole(tw.doublesqueeze(tw.OneBit()), workers=workers, seed=0)
        codec = tw.OneBit()
        push = [
            EncodedBytes(codec.wire_id, piece.numel, codec.encode(torch.randn(piece.numel), seed=0))
            for piece in self._pieces
        ]
        self._pushes = [push] * workers
        self.frames = [parts_of(Push(1, 0.1, entries(push)), worker) for worker in range(workers)]
        self.frames.append(parts_of(Update(1, entries(push)), SERVER))
        self.nbytes = sum(len(part) for parts in self.frames for part in parts)

    def answer(self) -> None:
        encoded = self._server.answer(self._pieces, self._pushes, StepInfo(1))
        parts_of(Update(1, entries(encoded)), SERVER)


class Memcpy:
    """Into the same memory again and again, as a page cache never is."""

    def __init__(self, step: Step) -> None:
        self._from = [np.frombuffer(part, "u1") for parts in step.frames for part in parts]
        self._to = [np.zeros_like(part) for part in self._from]

    def __call__(self) -> None:
        for to, from_ in zip(self._to, self._from, strict=True):
            np.copyto(to, from_)


class PlainWrite:
    """The least that a log can do: write(2) to a new place in a file."""

    def __init__(self, step: Step, path: Path) -> None:
        self._parts = [part for parts in step.frames for part in parts]
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT)

    def __call__(self) -> None:
        os.writev(self._fd, self._parts)


def logging(step: Step, folder: Path, fsync: str) -> Callable[[], None]:
    log, _ = Log.open(folder, LogSettings(fsync=fsync), new_run=1)

    def commit() -> None:
        for parts in step.frames:
            log.append(parts)
        log.commit()

    return commit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numel", type=int, default=25_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    step = Step(options.numel, options.workers)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        cases: dict[str, Callable[[], None]] = {
            "memcpy": Memcpy(step),
            "write(2)": PlainWrite(step, folder / "plain"),
            "log, off": logging(step, folder / "off", "off"),
            "log, step": logging(step, folder / "step", "step"),
            "answer, no log": step.answer,
        }
        samples = measure(cases, options.rounds)
    report(step, samples)


def measure(cases: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):  # the first warms up
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if number:
                samples[name].append(time.perf_counter() - start)
    return samples


def report(step: Step, samples: dict[str, list[float]]) -> None:
    print(f"{len(step.frames)} frames, {step.nbytes} bytes a step; best/median")
    for name, seconds in samples.items():
        ratios = [
            [s / base for s, base in zip(seconds, samples[other], strict=True)]
            for other in ("memcpy", "write(2)", "answer, no log")
        ]
        words = "  ".join(f"{min(r):6.2f}/{statistics.median(r):6.2f}" for r in ratios)
        times = f"{1e3 * min(seconds):7.2f}/{1e3 * statistics.median(seconds):7.2f} ms"
        print(f"{name:<15} {times}  of memcpy, write(2), answer: {words}")


if __name__ == "__main__":
    main()
