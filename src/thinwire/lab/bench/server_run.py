"""A whole run of the server benchmark: processes, cells, rounds, report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from thinwire.lab.bench.machine import family_usage, this_machine
from thinwire.lab.bench.server_cells import Cell, ServerBench
from thinwire.lab.bench.server_crew import Crew, Member, Place
from thinwire.lab.bench.server_link import places_on
from thinwire.lab.bench.server_orders import Answer, Attach, Listen, Meet, Order, Run, Used
from thinwire.lab.bench.server_report import Block, ServerReport, make_server_rows

Watcher = Callable[[int, str], None]
"""Is told the round (0 is the warm-up) and what comes next."""

_START_SECONDS = 60.0


def bench_server(bench: ServerBench, watch: Watcher) -> ServerReport:
    """Measure every cell once per round. Ctrl-C ends it with what was measured until then."""
    before = family_usage()
    blocks: dict[Cell, list[Block]] = {cell: [] for cell in bench.cells()}
    interrupted = False
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=bench.folder)))
        count = bench.servers + max(bench.workers)
        places = stack.enter_context(places_on(bench.link, count))
        team = _Team(bench, stack.enter_context(Crew(folder)), places, folder, watch)
        try:
            _measure(bench, team, blocks, watch)
        except KeyboardInterrupt:
            if not any(blocks.values()):
                raise
            interrupted = True
    return ServerReport(
        machine=this_machine(),
        link=bench.link,
        given=bench.given,
        servers=bench.servers,
        steps=bench.steps,
        optimizer=bench.optimizer,
        others=family_usage().others_since(before),
        interrupted=interrupted,
        rows=make_server_rows(blocks),
    )


def _measure(
    bench: ServerBench, team: _Team, blocks: dict[Cell, list[Block]], watch: Watcher
) -> None:
    cells = list(blocks)
    ends = time.perf_counter() + bench.limits.seconds
    for cell in cells:
        watch(0, str(cell))
        team.run(cell)
    for round_ in range(1, bench.limits.rounds + 1):
        # Every other round goes backwards, so that no cell always follows the same one.
        for cell in cells if round_ % 2 else reversed(cells):
            watch(round_, str(cell))
            blocks[cell].append(team.run(cell))
        if time.perf_counter() >= ends:
            break


class _Team:
    """Servers and workers that are ready for every cell."""

    def __init__(
        self,
        bench: ServerBench,
        crew: Crew,
        places: Sequence[Place],
        folder: Path,
        watch: Watcher,
    ) -> None:
        """One process in each of ``places``, servers first."""
        self._bench, self._crew, self._folder = bench, crew, folder
        watch(0, "starting processes")
        of_servers, of_workers = places[: bench.servers], places[bench.servers :]
        self._servers = [crew.start(f"server {i}", "server", p) for i, p in enumerate(of_servers)]
        self._workers = [crew.start(f"worker {i}", "worker", p) for i, p in enumerate(of_workers)]
        self._meet()
        self._cells: dict[Cell, int] = {}
        for number, cell in enumerate(bench.cells()):
            watch(0, f"preparing {cell}")
            self._cells[cell] = number
            self._attach(number, cell)

    def run(self, cell: Cell) -> Block:
        """Some steps of a cell."""
        steps, number = self._bench.steps, self._cells[cell]
        seconds = self._bench.deadline_seconds + self._bench.given.seconds(steps + 1)
        used = self._used()
        answers = self._ask(((w, Run(number, steps)) for w in self._of(cell)), seconds)
        return Block(
            seconds=max(answer.seconds for answer in answers) / steps,
            sent_nbytes=_mean(answer.sent_nbytes for answer in answers) / steps,
            received_nbytes=_mean(answer.received_nbytes for answer in answers) / steps,
            worker_cpu_seconds=_mean(answer.cpu_seconds for answer in answers) / steps,
            server_cpu_seconds=(self._used() - used) / (steps + 1),
        )

    def _of(self, cell: Cell) -> list[Member]:
        return self._workers[: cell.workers]

    def _meet(self) -> None:
        bench, store = self._bench, str(self._folder / "store")
        ranks, sizes = len(self._workers), sorted(set(bench.workers))
        orders = (
            (worker, Meet(rank, ranks, store, sizes, bench.deadline_seconds))
            for rank, worker in enumerate(self._workers)
        )
        self._ask(orders, _START_SECONDS + bench.deadline_seconds)

    def _attach(self, number: int, cell: Cell) -> None:
        bench, given = self._bench, self._bench.given
        servers = self._listen(number, cell) if cell.log else []
        orders = (
            (
                worker,
                Attach(
                    cell=number,
                    way=cell.way,
                    rank=rank,
                    workers=cell.workers,
                    numel=given.numel,
                    backward_ms=given.backward_ms,
                    backward=given.backward,
                    optimizer=bench.optimizer,
                    deadline_seconds=bench.deadline_seconds,
                    servers=servers,
                ),
            )
            for rank, worker in enumerate(self._of(cell))
        )
        self._ask(orders, _START_SECONDS + bench.deadline_seconds)

    def _listen(self, number: int, cell: Cell) -> list[str]:
        orders = (
            (
                server,
                Listen(
                    host=server.place.address,
                    recipe=cell.way,
                    workers=cell.workers,
                    log=cell.log,
                    folder=str(self._folder / f"log-{number}-{i}"),
                ),
            )
            for i, server in enumerate(self._servers)
        )
        answers = self._ask(orders, _START_SECONDS + self._bench.deadline_seconds)
        return [answer.address for answer in answers]

    def _used(self) -> float:
        answers = self._ask(((s, Used()) for s in self._servers), self._bench.deadline_seconds)
        return sum(answer.cpu_seconds for answer in answers)

    def _ask(self, orders: Iterable[tuple[Member, Order]], seconds: float) -> list[Answer]:
        return self._crew.ask(orders, deadline_seconds=seconds)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
