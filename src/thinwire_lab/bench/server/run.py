"""``bench_server``: a whole run of the server benchmark, from processes to a report."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from thinwire_lab.bench.machine import family_usage, this_machine
from thinwire_lab.bench.server.cells import Cell, ServerBench, places_on
from thinwire_lab.bench.server.report import Block, ServerReport, make_server_rows
from thinwire_lab.bench.workers.keys import make_keys
from thinwire_lab.bench.workers.messages import Attach, Listen, Run
from thinwire_lab.bench.workers.pool import Cluster, Place, PoolProcess, ProcessPool

Watcher = Callable[[int, str], None]
"""Called with the round (0 is the warm-up) and what comes next."""


def bench_server(bench: ServerBench, watch: Watcher) -> ServerReport:
    """Measure every cell once per round. Ctrl-C ends it with what was measured until then."""
    before = family_usage()
    blocks: dict[Cell, list[Block]] = {cell: [] for cell in bench.cells()}
    interrupted = False
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=bench.folder)))
        count = bench.servers + max(bench.workers)
        places = stack.enter_context(places_on(bench.link, count))
        prepared = _Cells(bench, stack.enter_context(ProcessPool(folder)), places, folder, watch)
        try:
            _measure(bench, prepared, blocks, watch)
        except KeyboardInterrupt:
            if not any(blocks.values()):
                raise
            interrupted = True
    return ServerReport(
        machine=this_machine(),
        link=bench.link,
        model=bench.model,
        servers=bench.servers,
        steps=bench.steps,
        optimizer=bench.optimizer,
        keys=bench.keys,
        others=family_usage().others_since(before),
        interrupted=interrupted,
        rows=make_server_rows(blocks),
    )


def _measure(
    bench: ServerBench, prepared: _Cells, blocks: dict[Cell, list[Block]], watch: Watcher
) -> None:
    cells = list(blocks)
    ends = time.perf_counter() + bench.limits.seconds
    for cell in cells:
        watch(0, str(cell))
        prepared.run(cell)
    for round_ in range(1, bench.limits.rounds + 1):
        # Every other round goes backwards, so that no cell always follows the same one.
        for cell in cells if round_ % 2 else reversed(cells):
            watch(round_, str(cell))
            blocks[cell].append(prepared.run(cell))
        if time.perf_counter() >= ends:
            break


class _Cells:
    """Servers and workers, prepared for every cell."""

    def __init__(
        self,
        bench: ServerBench,
        pool: ProcessPool,
        places: Sequence[Place],
        folder: Path,
        watch: Watcher,
    ) -> None:
        """One process in each of ``places``, servers first."""
        self._bench, self._folder = bench, folder
        self._keys = str(folder) if bench.keys else ""
        if bench.keys:
            make_keys(folder)
        watch(0, "starting processes")
        self._cluster = Cluster(
            pool,
            servers=places[: bench.servers],
            workers=[(f"worker {i}", p) for i, p in enumerate(places[bench.servers :])],
            role="worker",
            timeout_seconds=bench.deadline_seconds,
        )
        sizes, deadline_seconds = sorted(set(bench.workers)), bench.deadline_seconds
        self._cluster.join(folder / "store", sizes, deadline_seconds=deadline_seconds)
        self._numbers: dict[Cell, int] = {}
        for number, cell in enumerate(bench.cells()):
            watch(0, f"preparing {cell}")
            self._numbers[cell] = number
            self._attach(number, cell)

    def run(self, cell: Cell) -> Block:
        """Some steps of a cell."""
        steps, number = self._bench.steps, self._numbers[cell]
        seconds = self._bench.deadline_seconds + self._bench.model.seconds(steps + 1)
        used = self._cluster.server_cpu_seconds()
        replies = self._cluster.ask(((w, Run(number, steps)) for w in self._of(cell)), seconds)
        used = self._cluster.server_cpu_seconds() - used
        return Block(
            seconds=max(reply.seconds for reply in replies) / steps,
            sent_nbytes=_mean(reply.sent_nbytes for reply in replies) / steps,
            received_nbytes=_mean(reply.received_nbytes for reply in replies) / steps,
            worker_cpu_seconds=_mean(reply.cpu_seconds for reply in replies) / steps,
            server_cpu_seconds=used / (steps + 1),
        )

    def _of(self, cell: Cell) -> list[PoolProcess]:
        return self._cluster.workers[: cell.workers]

    def _attach(self, number: int, cell: Cell) -> None:
        servers = self._listen(number, cell) if cell.log else []
        self._cluster.prepare(
            (worker, self._request(number, cell, rank, servers))
            for rank, worker in enumerate(self._of(cell))
        )

    def _request(self, number: int, cell: Cell, rank: int, servers: list[str]) -> Attach:
        bench, model = self._bench, self._bench.model
        return Attach(
            cell=number,
            way=cell.way,
            rank=rank,
            workers=cell.workers,
            numel=model.numel,
            backward_ms=model.backward_ms,
            backward=model.backward,
            optimizer=bench.optimizer,
            deadline_seconds=bench.deadline_seconds,
            servers=servers,
            keys=self._keys,
        )

    def _listen(self, number: int, cell: Cell) -> list[str]:
        return self._cluster.listen(
            lambda i, host: Listen(
                host=host,
                recipe=cell.way,
                workers=cell.workers,
                log=cell.log,
                folder=str(self._folder / f"log-{number}-{i}"),
                keys=self._keys,
            )
        )


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)
