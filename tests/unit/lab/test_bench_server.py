"""The server benchmark runs, and measures what it says. No test here judges a time."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tests.unit.lab.commands import output_of
from thinwire.cli.main import main
from thinwire.errors import ThinwireError, TransportTimeout
from thinwire_lab.bench.report import Ratio
from thinwire_lab.bench.rounds import Limits
from thinwire_lab.bench.server.cells import (
    ALLREDUCE,
    ALONE,
    Cell,
    ServerBench,
    bits_per_second,
    places_on,
)
from thinwire_lab.bench.server.report import Block, make_server_rows
from thinwire_lab.bench.server.synthetic import LAYERS, SyntheticModel, SyntheticNetwork
from thinwire_lab.bench.workers.messages import Listen, Run, Used
from thinwire_lab.bench.workers.pool import ProcessPool
from thinwire_lab.bench.workers.worker import make_optimizer

DEADLINE = 60.0
COMMAND = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);" + (
    "from thinwire.cli.main import main; main()"
)
"""Ctrl-C works, even if the tests were started by a shell that ignores it."""
TINY = ("bench", "server", "--numel", "5000", "--steps", "2")


def test_command_measures_every_cell(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    recipes = ("--recipe", "doublesqueeze(OneBit())", "--log", "off", "--log", "fsync")
    arguments = [*TINY, *recipes, "--workers", "1,2", "--rounds", "1", "--folder", str(tmp_path)]
    result = CliRunner().invoke(main, [*arguments, "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "round 1 of 1" in result.stderr
    written = json.loads(out.read_text())
    found = [(row["workers"], row["way"], row["log"]) for row in written["rows"]]
    assert found == [
        (workers, way, log)
        for workers in (1, 2)
        for way, log in (
            (ALONE, ""),
            (ALLREDUCE, ""),
            ("doublesqueeze(OneBit())", "off"),
            ("doublesqueeze(OneBit())", "fsync"),
        )
    ]
    assert all(way in result.stdout for _, way, _ in found)
    assert all(math.isfinite(s) and s > 0 for row in written["rows"] for s in row["seconds"])
    assert not list(tmp_path.glob("tmp*")), "logs are left behind"
    check_bytes(written)


def check_bytes(written: dict[str, object]) -> None:
    """A gradient of one bit is about a thirtieth; that of the allreduce goes around in full."""
    rows = written["rows"]
    dense = written["dense_nbytes"]
    assert isinstance(rows, list)
    assert isinstance(dense, int)
    one_bit = [row for row in rows if row["log"]]
    assert all(dense / 32 < row["sent_nbytes"] < dense / 4 for row in one_bit)
    assert [row["sent_nbytes"] for row in rows if row["way"] == ALLREDUCE] == [0, dense]


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["--recipe", "dense", "--log", "off", "--workers", "1", "--rounds", "1000000"]
    arguments += ["--folder", str(tmp_path), "--json", str(out)]
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            COMMAND,
            *TINY,
            *arguments,
            "--folder",
            str(tmp_path),
            "--json",
            str(out),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 2 "):
            break
    children = children_of(process.pid)
    assert len(children) == 2
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "interrupted" in stdout
    assert json.loads(out.read_text())["interrupted"]
    assert not any(map(is_alive, children))
    assert not list(tmp_path.glob("tmp*")), "logs are left behind"


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_who_fails_or_ends_is_named_in_one_sentence(tmp_path: Path) -> None:
    impossible = Listen("127.0.0.1", "dgc(7)", workers=1, log="off", folder="")
    with ProcessPool(tmp_path) as pool:
        server = pool.start("server 0", "server")
        with pytest.raises(ThinwireError, match=r"^bench: server 0 failed: .*ratio.*7.*$"):
            pool.ask([(server, impossible)], timeout_seconds=DEADLINE)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ThinwireError, match=r"^bench: server 0 ended with exit code -9: .*$"):
            pool.ask([(server, Used())], timeout_seconds=DEADLINE)


def test_waiting_has_an_end(tmp_path: Path) -> None:
    with ProcessPool(tmp_path) as pool, pytest.raises(TransportTimeout, match="did not run within"):
        pool.ask([(pool.start("worker 0", "worker"), Run(0, 1))], timeout_seconds=0.01)
    assert not is_alive(pool.processes[0].pid)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--workers", "1,two"),
        ("--workers", "0"),
        ("--recipe", "dgc(7)"),
        ("--servers", "0"),
        ("--numel", "3"),
        ("--backward-ms", "-1"),
        ("--rounds", "0"),
        ("--link", "fast"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(option: str, value: str) -> None:
    result = CliRunner().invoke(main, ["bench", "server", option, value])
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1


def test_ratios_are_to_cells_of_as_many_workers() -> None:
    blocks = {
        Cell(workers, way, log): [block(seconds), block(2 * seconds), block(3 * seconds)]
        for workers, way, log, seconds in (
            (1, ALLREDUCE, "", 1.0),
            (2, ALLREDUCE, "", 10.0),
            (2, "dense", "off", 20.0),
            (2, "dense", "on", 30.0),
        )
    }
    rows = make_server_rows({**blocks, Cell(4, ALONE): []})
    assert [row.cell for row in rows] == list(blocks)
    assert rows[-1].allreduce == Ratio(3.0, 3.0)
    assert rows[-1].log_off == Ratio(1.5, 1.5)
    assert rows[0].log_off is None
    assert rows[0].mean == pytest.approx(2.0)


def block(seconds: float) -> Block:
    return Block(seconds, 0, 0, seconds, seconds)


def test_cells_come_once_and_in_order() -> None:
    bench = ServerBench(
        workers=(2, 1, 2),
        recipes=("dense", "dense"),
        logs=("on", "off"),
        model=SyntheticModel(),
        limits=Limits(1, 1.0),
    )
    assert [(cell.workers, cell.way, cell.log) for cell in bench.cells()] == [
        (workers, way, log)
        for workers in (1, 2)
        for way, log in ((ALONE, ""), (ALLREDUCE, ""), ("dense", "off"), ("dense", "on"))
    ]


@pytest.mark.parametrize("optimizer", [False, True])
def test_weights_change_only_where_the_optimizer_counts(optimizer: bool) -> None:
    net = SyntheticNetwork(SyntheticModel(5000), rank=0)
    before = [parameter.clone() for parameter in net.parameters()]
    net.backward()
    make_optimizer(net, counts=optimizer).step()
    assert all(map(torch.equal, before, net.parameters())) is not optimizer


@pytest.mark.parametrize("backward", ["sleep", "compute"])
def test_backward_gives_the_same_gradients_again_and_takes_its_time(backward: str) -> None:
    net = SyntheticNetwork(SyntheticModel(5000, backward_ms=24.0, backward=backward), rank=0)
    clock = {"sleep": time.perf_counter, "compute": time.thread_time}[backward]
    net.backward()
    first = [_gradient(p).clone() for p in net.parameters()]
    assert all(bool(gradient.any()) for gradient in first)
    began = clock()
    net.backward()
    assert clock() - began >= 0.024
    assert all(map(torch.equal, first, map(_gradient, net.parameters())))


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and tc")
def test_hosts_of_a_link_are_limited_and_gone_afterwards() -> None:
    with places_on("100mbit", 2) as places:
        assert len({place.address for place in places}) == 2
        for place in places:
            shown = output_of(*place.prefix, "tc", "qdisc", "show", "dev", place.interface)
            assert "tbf" in shown
            assert "rate 100Mbit" in shown
    assert f"twbench{os.getpid()}" not in output_of("ip", "netns", "list")


@pytest.mark.parametrize(
    ("link", "bits"), [("loopback", None), ("100mbit", 10**8), ("10gbit", 10**10)]
)
def test_links_are_read(link: str, bits: int | None) -> None:
    assert bits_per_second(link) == bits


@pytest.mark.parametrize("numel", [48, 5000, 1_000_000, 25_190_400])
def test_a_network_has_about_as_many_parameters_as_asked_for(numel: int) -> None:
    model = SyntheticModel(numel)
    wider = LAYERS * (model.width + 1) * (model.width + 2)
    assert model.nbytes // 4 <= numel < wider
