"""A whole run of the benchmark of links: hosts, processes, cases, rates, rounds, report."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from thinwire.lab.bench.hosts import Hosts, hosts
from thinwire.lab.bench.links_cases import (
    SERVERS,
    UNLIMITED,
    LinkCase,
    LinksBench,
    rate_of,
)
from thinwire.lab.bench.links_report import Block, LinksReport, make_link_rows
from thinwire.lab.bench.machine import family_usage, free_memory_nbytes, this_machine
from thinwire.lab.bench.server_crew import Crew, Member
from thinwire.lab.bench.server_link import place_on
from thinwire.lab.bench.server_orders import (
    Answer,
    Listen,
    Meet,
    Order,
    Prepare,
    Record,
    Run,
    Used,
)
from thinwire.watch.trace import merge_traces

Watcher = Callable[[str, int, str], None]
"""Is told the rate, the round (0 is the warm-up) and what comes next."""

Measured = dict[tuple[str, LinkCase], list[Block]]

_START_SECONDS = 60.0
_WARM_UP_STEPS = 4
"""After these PowerSGD compresses, and DDP has its final buckets."""
_TRACED_STEPS = 2


def bench_links(bench: LinksBench, watch: Watcher) -> LinksReport:
    """Measure every case once per round. Ctrl-C ends it with what was measured until then."""
    free = free_memory_nbytes()
    if free is not None:
        bench.check_memory(free)
    before = family_usage()
    blocks: Measured = {(rate, case): [] for rate in bench.rates for case in bench.chosen()}
    interrupted = False
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = stack.enter_context(hosts(bench.hosts))
        team = _Team(bench, stack.enter_context(Crew(folder)), made, folder, watch)
        try:
            _measure(bench, team, blocks, watch)
        except KeyboardInterrupt:
            if not any(blocks.values()):
                raise
            interrupted = True
        team.write_trace()
    return LinksReport(
        machine=this_machine(),
        model=bench.model,
        hosts=bench.hosts,
        steps=bench.steps,
        others=family_usage().others_since(before),
        interrupted=interrupted,
        rows=make_link_rows(blocks),
    )


def _measure(bench: LinksBench, team: _Team, blocks: Measured, watch: Watcher) -> None:
    cases = bench.chosen()
    for case in cases:
        watch(UNLIMITED, 0, case.label)
        team.run(UNLIMITED, case, _WARM_UP_STEPS)
    for rate in dict.fromkeys(bench.rates):
        team.limit(rate)
        ends = time.perf_counter() + bench.limits.seconds
        for round_ in range(1, bench.limits.rounds + 1):
            # Every other round goes backwards, so that no case always follows the same one.
            for case in cases if round_ % 2 else reversed(cases):
                watch(rate, round_, case.label)
                blocks[rate, case].append(team.run(rate, case, bench.steps))
            if time.perf_counter() >= ends:
                break
        for case in cases if bench.trace else ():
            team.record(rate, case)


class _Team:
    """A trainer on each host, and a server if a case needs it, that are ready for every case."""

    def __init__(
        self, bench: LinksBench, crew: Crew, made: Hosts, folder: Path, watch: Watcher
    ) -> None:
        self._bench, self._crew, self._made, self._folder = bench, crew, made, folder
        self._traces: list[Path] = []
        watch(UNLIMITED, 0, "starting processes")
        places = [place_on(host) for host in made.hosts]
        of_servers = places[: bench.servers()]
        self._servers = [crew.start(f"server {i}", "server", p) for i, p in enumerate(of_servers)]
        self._trainers = [crew.start(f"host {i}", "trainer", p) for i, p in enumerate(places)]
        # A step may wait as long as the slowest link needs.
        self._patience = max(bench.seconds_for(rate, 1) for rate in bench.rates)
        self._meet()
        self._cells = {case: number for number, case in enumerate(bench.chosen())}
        for case in self._cells:
            watch(UNLIMITED, 0, f"preparing {case.label}")
            self._prepare(case)

    def limit(self, rate: str) -> None:
        self._made.limit(rate_of(rate))

    def run(self, rate: str, case: LinkCase, steps: int) -> Block:
        """Some steps of a case, at the rate that links have now."""
        used = self._used()
        seconds = self._bench.seconds_for(rate, steps + 1)
        run = Run(self._cells[case], steps)
        answers = self._ask(((trainer, run) for trainer in self._trainers), seconds)
        all_seconds = zip(*(answer.step_seconds for answer in answers), strict=True)
        count = steps * len(answers)
        return Block(
            seconds=tuple(max(of_hosts) for of_hosts in all_seconds),
            sent_nbytes=sum(answer.sent_nbytes for answer in answers) / count,
            received_nbytes=sum(answer.received_nbytes for answer in answers) / count,
            cpu_seconds=sum(answer.cpu_seconds for answer in answers) / count,
            server_cpu_seconds=(self._used() - used) / (steps + 1) / len(answers),
        )

    def record(self, rate: str, case: LinkCase) -> None:
        """Keep the timeline of some steps."""
        files = [self._folder / f"{rate}-{case.name}-{i}" for i in range(len(self._trainers))]
        title = f"{case.label} at {rate}"
        orders = [
            (trainer, Record(self._cells[case], _TRACED_STEPS, title, str(file)))
            for trainer, file in zip(self._trainers, files, strict=True)
        ]
        self._ask(orders, self._bench.seconds_for(rate, _TRACED_STEPS))
        self._traces += files

    def write_trace(self) -> None:
        """All timelines in one file, if there shall be one."""
        if self._bench.trace is not None:
            self._bench.trace.write_text(json.dumps(merge_traces(self._traces)))

    def _meet(self) -> None:
        store, ranks = str(self._folder / "store"), len(self._trainers)
        orders = (
            (trainer, Meet(rank, ranks, store, [], self._patience))
            for rank, trainer in enumerate(self._trainers)
        )
        self._ask(orders, _START_SECONDS + self._bench.deadline_seconds)

    def _prepare(self, case: LinkCase) -> None:
        servers = self._listen(case) if case.exchange == SERVERS else []
        orders = (
            (trainer, self._order(case, rank, servers))
            for rank, trainer in enumerate(self._trainers)
        )
        self._ask(orders, _START_SECONDS + self._bench.deadline_seconds)

    def _order(self, case: LinkCase, rank: int, servers: list[str]) -> Prepare:
        model = self._bench.model
        return Prepare(
            cell=self._cells[case],
            case=case.name,
            rank=rank,
            model=model.name,
            width=model.width,
            batch=model.batch,
            backward_ms=model.given_ms,
            backward=model.backward,
            bucket_mb=model.bucket_mb,
            optimizer=model.optimizer,
            deadline_seconds=self._patience,
            servers=servers,
        )

    def _listen(self, case: LinkCase) -> list[str]:
        orders = (
            (server, Listen(server.place.address, case.recipe, self._bench.hosts, "off", ""))
            for server in self._servers
        )
        answers = self._ask(orders, _START_SECONDS + self._bench.deadline_seconds)
        return [answer.address for answer in answers]

    def _used(self) -> float:
        answers = self._ask(((s, Used()) for s in self._servers), self._bench.deadline_seconds)
        return sum(answer.cpu_seconds for answer in answers)

    def _ask(self, orders: Iterable[tuple[Member, Order]], seconds: float) -> list[Answer]:
        return self._crew.ask(orders, deadline_seconds=seconds)
