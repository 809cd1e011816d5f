"""``bench_links``: a whole run of the benchmark of links, from hosts and processes to a report."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from thinwire.watch.trace import merge_traces
from thinwire_lab.bench.hosts import Hosts, hosts
from thinwire_lab.bench.links.cases import (
    SERVERS,
    UNLIMITED,
    LinkCase,
    LinksBench,
    delay_seconds_of,
    rate_of,
)
from thinwire_lab.bench.links.report import Block, LinksReport, make_link_rows
from thinwire_lab.bench.machine import family_usage, free_memory_nbytes, this_machine
from thinwire_lab.bench.server.cells import place_on
from thinwire_lab.bench.workers.messages import Listen, Prepare, Record, Run
from thinwire_lab.bench.workers.pool import Cluster, ProcessPool

Watcher = Callable[[str, int, str], None]
"""Called with the rate, the round (0 is the warm-up) and what comes next."""

Measured = dict[tuple[str, LinkCase], list[Block]]

_WARM_UP_STEPS = 4
"""After these, PowerSGD compresses and DDP has its final buckets."""
_TRACED_STEPS = 2


def bench_links(bench: LinksBench, watch: Watcher) -> LinksReport:
    """Measure every case once per round. Ctrl-C ends it with what is measured until then."""
    free = free_memory_nbytes()
    if free is not None:
        bench.check_memory(free)
    before = family_usage()
    blocks: Measured = {(rate, case): [] for rate in bench.rates for case in bench.chosen()}
    interrupted = False
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        delay = delay_seconds_of(bench.delay)
        network = stack.enter_context(hosts(bench.hosts, delay_seconds=delay))
        prepared = _Cases(bench, stack.enter_context(ProcessPool(folder)), network, folder, watch)
        try:
            _measure(bench, prepared, blocks, watch)
        except KeyboardInterrupt:
            if not any(blocks.values()):
                raise
            interrupted = True
        prepared.write_trace()
    return LinksReport(
        machine=this_machine(),
        model=bench.model,
        hosts=bench.hosts,
        steps=bench.steps,
        delay=bench.delay,
        shards=bench.shards,
        others=family_usage().others_since(before),
        interrupted=interrupted,
        rows=make_link_rows(blocks),
    )


def _measure(bench: LinksBench, prepared: _Cases, blocks: Measured, watch: Watcher) -> None:
    cases = bench.chosen()
    for case in cases:
        watch(UNLIMITED, 0, case.label)
        prepared.run(UNLIMITED, case, _WARM_UP_STEPS)
    for rate in dict.fromkeys(bench.rates):
        prepared.limit(rate)
        ends = time.perf_counter() + bench.limits.seconds
        for round_ in range(1, bench.limits.rounds + 1):
            # Every other round goes backwards, so that no case always follows the same one.
            for case in cases if round_ % 2 else reversed(cases):
                watch(rate, round_, case.label)
                blocks[rate, case].append(prepared.run(rate, case, bench.steps))
            if time.perf_counter() >= ends:
                break
        for case in cases if bench.trace else ():
            prepared.record(rate, case)


class _Cases:
    """A trainer on each host, and a server if a case needs it, prepared for every case."""

    def __init__(
        self, bench: LinksBench, pool: ProcessPool, network: Hosts, folder: Path, watch: Watcher
    ) -> None:
        self._bench, self._network, self._folder = bench, network, folder
        self._traces: list[Path] = []
        watch(UNLIMITED, 0, "starting processes")
        places = [place_on(host) for host in network.hosts]
        self._cluster = Cluster(
            pool,
            servers=places[: bench.servers()],
            workers=[
                (f"host {i}", place) for i, place in enumerate(places) for _ in range(bench.shards)
            ],
            role="trainer",
            timeout_seconds=bench.deadline_seconds,
        )
        # A step may take as long as the slowest link needs.
        self._step_seconds = max(bench.seconds_for(rate, 1) for rate in bench.rates)
        self._cluster.join(folder / "store", [], deadline_seconds=self._step_seconds)
        self._cells = {case: number for number, case in enumerate(bench.chosen())}
        for case in self._cells:
            watch(UNLIMITED, 0, f"preparing {case.label}")
            self._prepare(case)

    def limit(self, rate: str) -> None:
        self._network.limit(rate_of(rate))

    def run(self, rate: str, case: LinkCase, least_steps: int) -> Block:
        """Some steps of a case, at the rate that links have now."""
        steps = case.turn(least_steps)
        used = self._cluster.server_cpu_seconds()
        seconds = self._bench.seconds_for(rate, steps + 1)
        run = Run(self._cells[case], steps)
        replies = self._cluster.ask(((worker, run) for worker in self._cluster.workers), seconds)
        all_seconds = [_means(reply.step_seconds, case.period) for reply in replies]
        count = steps * len(replies)
        used = self._cluster.server_cpu_seconds() - used
        return Block(
            seconds=tuple(max(of_hosts) for of_hosts in zip(*all_seconds, strict=True)),
            sent_nbytes=sum(reply.sent_nbytes for reply in replies) / count,
            received_nbytes=sum(reply.received_nbytes for reply in replies) / count,
            cpu_seconds=sum(reply.cpu_seconds for reply in replies) / count,
            server_cpu_seconds=used / (steps + 1) / len(replies),
        )

    def record(self, rate: str, case: LinkCase) -> None:
        """Keep the timeline of some steps."""
        workers, steps = self._cluster.workers, case.turn(_TRACED_STEPS)
        files = [self._folder / f"{rate}-{case.name}-{i}" for i in range(len(workers))]
        title = f"{case.label} at {rate}"
        requests = [
            (worker, Record(self._cells[case], steps, title, str(file)))
            for worker, file in zip(workers, files, strict=True)
        ]
        self._cluster.ask(requests, self._bench.seconds_for(rate, steps))
        self._traces += files

    def write_trace(self) -> None:
        """Write all timelines to one file, if the settings name one."""
        if self._bench.trace is not None:
            self._bench.trace.write_text(json.dumps(merge_traces(self._traces)))

    def _prepare(self, case: LinkCase) -> None:
        hosts = self._bench.hosts
        servers = []
        if case.exchange == SERVERS:
            servers = self._cluster.listen(
                lambda _, host: Listen(host, case.recipe, workers=hosts, log="off", folder="")
            )
        self._cluster.prepare(
            (worker, self._request(case, rank, servers))
            for rank, worker in enumerate(self._cluster.workers)
        )

    def _request(self, case: LinkCase, rank: int, servers: list[str]) -> Prepare:
        model = self._bench.model
        return Prepare(
            cell=self._cells[case],
            case=case.name,
            rank=rank,
            model=model.name,
            width=model.width,
            batch=model.batch,
            backward_ms=model.synthetic_ms,
            backward=model.backward,
            bucket_mb=model.bucket_mb,
            optimizer=model.optimizer,
            shards=self._bench.shards,
            deadline_seconds=self._step_seconds,
            servers=servers,
        )


def _means(seconds: Sequence[float], period: int) -> list[float]:
    """Of each ``period``, because the steps of a round differ."""
    return [sum(seconds[i : i + period]) / period for i in range(0, len(seconds), period)]
