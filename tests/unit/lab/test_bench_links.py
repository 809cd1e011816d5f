"""The benchmark of links runs, and measures what it says. No test here judges a time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from tests.unit.lab.commands import output_of
from thinwire.cli.main import main
from thinwire.errors import ConfigError, ThinwireError
from thinwire.recipe_text import read_recipe
from thinwire_lab.bench.links.cases import (
    CASES,
    DDP,
    DEFAULT_CASES,
    NONE,
    SERVERS,
    SHARDED_CASES,
    LinkModel,
    LinksBench,
    delay_seconds_of,
)
from thinwire_lab.bench.links.models import (
    BERT,
    LINEAR,
    RESNET50,
    Computed,
    Shape,
    Shaped,
    Workload,
    shapes_of,
)
from thinwire_lab.bench.links.report import Block, LinksReport, make_link_rows, plot_links
from thinwire_lab.bench.links.run import bench_links
from thinwire_lab.bench.links.trainer import traffic
from thinwire_lab.bench.machine import free_memory_nbytes, this_machine
from thinwire_lab.bench.report import Ratio
from thinwire_lab.bench.rounds import Limits
from thinwire_lab.cli.show.bench import RoundsProgress
from thinwire_lab.cli.show.bench_links import print_links_report

DEADLINE = 60.0
ONE_BIT = CASES["onebit"]
TINY = ("bench", "links", "--width", "32", "--steps", "1")
needs_rights = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and tc"
)


@pytest.mark.parametrize(
    ("model", "tensors", "numel"),
    [(LINEAR, 48, 25_190_400), (RESNET50, 161, 25_557_032), (BERT, 199, 109_482_240)],
)
def test_models_have_the_shapes_of_the_real_ones(model: str, tensors: int, numel: int) -> None:
    shapes = shapes_of(model, 1024)
    assert (len(shapes), sum(shape.numel for shape in shapes)) == (tensors, numel)
    assert LinkModel(model).numel == numel


def test_resnet50_has_its_multiplications() -> None:
    """4.09 G for an image of 224 x 224, as the authors count."""
    assert sum(shape.work for shape in shapes_of(RESNET50, 0)) == pytest.approx(4.09e9, rel=1e-3)


def test_given_gradients_come_again_last_first_in_their_time() -> None:
    shapes = [Shape((8, 4), 1.0), Shape((4,)), Shape((5, 5), 3.0)]
    workload = Shaped(shapes, 0.02, "sleep", rank=0)
    net = workload.network()
    order: list[int] = []
    for number, parameter in enumerate(net.parameters()):
        note = order.append
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _, number=number, note=note: note(number)
        )
    began = time.perf_counter()
    gradients = gradients_of(workload, net)
    assert time.perf_counter() - began >= 0.02
    assert order == [2, 1, 0]
    assert [tuple(g.shape) for g in gradients] == [shape.dims for shape in shapes]
    assert all(map(torch.equal, gradients, gradients_of(workload, net)))


def gradients_of(workload: Workload, net: torch.nn.Module) -> list[torch.Tensor]:
    net.zero_grad()
    workload.loss(net).backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    return [gradient.clone() for gradient in gradients]


@pytest.mark.parametrize(
    "workload",
    [Computed(8, 2, rank=0), Shaped([Shape((3, 2), 1.0)], 0.0, "compute", rank=1)],
    ids=["computed", "given"],
)
def test_networks_of_a_host_share_the_memory_of_weights(workload: Workload) -> None:
    first, second = workload.network(), workload.network()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert one is not other
        assert one.data_ptr() == other.data_ptr()
    gradients_of(workload, first)
    assert all(p.grad is None for p in second.parameters())


def test_every_recipe_can_be_read_and_servers_are_not_the_default() -> None:
    for case in CASES.values():
        assert bool(case.recipe) == bool(case.exchange)
        if case.recipe:
            read_recipe(case.recipe)
    assert {CASES[name].exchange for name in DEFAULT_CASES} == {"", "sharded", "allgather"}


def bench(**settings: Any) -> LinksBench:
    return LinksBench(**{"limits": Limits(1, 1.0), **settings})


def test_cases_come_once_and_in_order() -> None:
    chosen = bench(cases=("onebit", "ddp", "onebit", "none")).chosen()
    assert chosen == [NONE, DDP, ONE_BIT]


def test_servers_are_there_if_a_case_needs_them() -> None:
    assert bench(hosts=4).servers() == 0
    assert bench(hosts=4, cases=("ddp", "dgc-servers")).servers() == 4


def test_a_turn_is_whole_rounds() -> None:
    assert [ONE_BIT.turn(steps) for steps in (1, 3, 40)] == [1, 3, 40]
    assert [CASES["local"].turn(steps) for steps in (1, 32, 33)] == [32, 32, 64]


@pytest.mark.parametrize(("text", "seconds"), [("50ms", 0.05), ("0.5ms", 5e-4), ("250us", 2.5e-4)])
def test_delays_are_read(text: str, seconds: float) -> None:
    assert delay_seconds_of(text) == pytest.approx(seconds)


def test_deadlines_leave_time_for_the_link() -> None:
    dense_seconds = 8 * LinkModel().nbytes / 1e8
    assert bench().seconds_for("100mbit", 3) > 60 + 3 * 2 * dense_seconds
    assert bench().seconds_for("unlimited", 3) < 60 + dense_seconds


def test_what_does_not_fit_into_memory_is_refused() -> None:
    large = bench(model=LinkModel(BERT))
    large.check_memory(large.needed_nbytes())
    with pytest.raises(ConfigError, match=r"24 cases on 2 hosts need about .* choose fewer"):
        large.check_memory(large.needed_nbytes() - 1)
    assert bench(cases=("ddp",)).needed_nbytes() < large.needed_nbytes() / 4


def test_free_memory_is_read(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       24000000 kB\nMemAvailable:    1000 kB\n")
    assert free_memory_nbytes(file) == 1_024_000
    assert free_memory_nbytes(tmp_path / "none") is None


def test_traffic_is_what_the_interface_counts(tmp_path: Path) -> None:
    file = tmp_path / "dev"
    file.write_text(
        "Inter-|   Receive | Transmit\n face |bytes packets ...\n"
        "    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
        "  eth0: 500 5 0 0 0 0 0 0 700 7 0 0 0 0 0 0\n"
    )
    assert traffic(file, "eth0") == (700, 500)
    with pytest.raises(ConfigError, match="no interface eth1"):
        traffic(file, "eth1")


def block(*seconds: float) -> Block:
    return Block(seconds, 1000.0, 2000.0, 0.5, 0.25)


def make_report() -> LinksReport:
    blocks = {
        ("1gbit", NONE): [block(1.0, 2.0, 3.0)],
        ("1gbit", DDP): [block(10.0, 30.0), block(20.0)],
        ("1gbit", ONE_BIT): [block(4.0), block(2.0), block(3.0)],
        ("unlimited", DDP): [],
        ("unlimited", CASES["dgc-servers"]): [block(4.0)],
    }
    rows = make_link_rows(blocks)
    return LinksReport(this_machine(), LinkModel(width=32), 2, 3, 0.5, True, rows)


def test_ratios_are_to_the_same_rate() -> None:
    rows = {(row.rate, row.case): row for row in make_report().rows}
    assert len(rows) == 4
    one_bit = rows["1gbit", ONE_BIT]
    assert (one_bit.samples.best, one_bit.samples.median) == (2.0, 3.0)
    assert one_bit.ddp == Ratio(5.0, 20.0 / 3.0)
    assert one_bit.none == Ratio(2.0, 1.5)
    assert one_bit.computing == pytest.approx(2 / 3)
    assert one_bit.link == pytest.approx(8 * 2000 / 1e9 / 2.0)
    served = rows["unlimited", CASES["dgc-servers"]]
    assert (served.ddp, served.none, served.link, served.computing) == (None,) * 4


def test_table_and_json_have_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    report = make_report()
    print_links_report(report)
    shown = capsys.readouterr().out
    written: Any = json.loads(json.dumps(report.as_json()))
    assert len(written["rows"]) == 4
    assert written["burst_nbytes"] == {"1gbit": 62500, "unlimited": None}
    assert written["rows"][2]["times_faster_than_ddp"]["best"] == 5.0
    for row in written["rows"]:
        assert row["label"] in shown
    assert "interrupted" in shown
    assert "Other processes used 50%" in shown
    assert shown.count("500+250") == 1, "a server's processor time, where servers are used"


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file = tmp_path / "links.png"
    plot_links(make_report(), file)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(main, [*TINY, "--plot", str(tmp_path / "links.png")])
    check_refused(result)
    assert "pip install 'thinwire[plot]'" in result.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--rate", "fast"),
        ("--delay", "50"),
        ("--delay", "-5ms"),
        ("--hosts", "1"),
        ("--width", "0"),
        ("--batch", "0"),
        ("--backward-ms", "-1"),
        ("--backward-ms", "10"),
        ("--bucket-mb", "0"),
        ("--steps", "0"),
        ("--rounds", "0"),
        ("--hosts", "1000000"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(option: str, value: str) -> None:
    check_refused(CliRunner().invoke(main, ["bench", "links", option, value]))


@pytest.mark.parametrize("option", ["--plot", "--trace", "--json"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(option: str) -> None:
    result = CliRunner().invoke(main, [*TINY, option, "/none/such/file"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "/none/such/file" in result.stderr


def test_missing_rights_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check_refused(CliRunner().invoke(main, [*TINY]))


def check_refused(result: Result) -> None:
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1, result.stderr


@needs_rights
def test_command_measures_every_case_and_ctrl_c_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RoundsProgress, "show", interrupt_at("unlimited, round 2 of 2"))
    out, trace = tmp_path / "out.json", tmp_path / "trace.json"
    chosen = ("none", "silent", "ddp", "powersgd1", "onebit", "dgc-allgather", "onebit-servers")
    cases = [word for case in chosen for word in ("--case", case)]
    rates = ["--rate", "100mbit", "--rate", "unlimited"]
    files = ["--json", str(out), "--trace", str(trace)]
    result = CliRunner().invoke(main, [*TINY, *cases, *rates, "--rounds", "2", *files])
    assert result.exit_code == 130, result.output
    assert "100mbit, round 1 of 2" in result.stderr
    assert "interrupted" in result.stdout
    written = json.loads(out.read_text())
    found = [(row["rate"], row["case"]) for row in written["rows"]]
    assert found == [(rate, case) for rate in ("100mbit", "unlimited") for case in chosen]
    check_bytes(written)
    check_trace(json.loads(trace.read_text())["traceEvents"], chosen)
    assert f"twbench{os.getpid()}" not in output_of("ip", "netns", "list")


@needs_rights
def test_local_steps_are_measured_in_whole_rounds_also_over_a_delay(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    chosen = (
        "none",
        "ddp",
        "post-local",
        "local",
        "local-overlap",
        "local-sparse",
        "local-float32",
    )
    cases = [word for case in chosen for word in ("--case", case)]
    link = ["--rate", "100mbit", "--delay", "20ms"]
    result = CliRunner().invoke(main, [*TINY, *cases, *link, "--rounds", "2", "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "100mbit, 20ms round trip, 2 hosts" in result.stdout
    written = json.loads(out.read_text())
    rows = {row["case"]: row for row in written["rows"]}
    assert written["round_trip_ms"] == 20
    assert all(len(row["seconds"]) == 2 for row in rows.values()), "a round, or a step, in a turn"
    check_rounds(rows, written["dense_nbytes"])


def check_rounds(rows: dict[str, Any], dense: int) -> None:
    """One exchange in 32 steps: of all weights, or of a bit for each; and nothing is overlooked
    that is under way when a turn begins or ends."""
    for name in ("post-local", "local-float32"):
        assert dense < 32 * rows[name]["sent_nbytes"] < 1.5 * dense, name
    bits = [32 * rows[name]["sent_nbytes"] for name in ("local", "local-overlap")]
    assert dense / 32 < min(bits) <= max(bits) < dense / 4
    assert rows["ddp"]["best_ms"] > 20
    assert rows["local"]["best_ms"] > 20 / 32


def interrupt_at(text: str) -> Callable[..., None]:
    """Show progress, and then press Ctrl-C."""
    show = RoundsProgress.show

    def shown(self: RoundsProgress, round_: int, what: str, *, part: str = "") -> None:
        show(self, round_, what, part=part)
        if f"{part}round {round_} of 2" == text:
            raise KeyboardInterrupt

    return shown


def check_bytes(written: dict[str, Any]) -> None:
    """DDP sends what a ring of two sends, and TCP's headers; a bit for each number is far less."""
    dense = written["dense_nbytes"]
    sent = {row["case"]: row["sent_nbytes"] for row in written["rows"]}
    assert dense < sent["ddp"] < 1.5 * dense
    assert sent["onebit"] < dense / 4
    assert max(sent["none"], sent["silent"]) < dense / 20


def check_trace(events: list[dict[str, Any]], chosen: tuple[str, ...]) -> None:
    """Two steps of every case at the rate that was not interrupted, on two hosts."""
    names = [event["name"] for event in events if event["ph"] == "X"]
    for case in chosen:
        assert names.count(f"{CASES[case].label} at 100mbit") == 2, "one for each host"
    ours = [case for case in chosen if CASES[case].exchange not in ("", SERVERS)]
    assert names.count("backward") == 2 * 2 * len(chosen)
    assert names.count("serve") >= 2 * 2 * len(ours)
    assert {event["pid"] for event in events} == {0, 1}


@needs_rights
def test_sharded_networks_send_their_parts_between_hosts(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    small = ("bench", "links", "--width", "256", "--steps", "1", "--shards", "2", "--rounds", "1")
    result = CliRunner().invoke(main, [*small, "--rate", "unlimited", "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "2 hosts of 2 parts each" in result.stdout
    rows = {row["case"]: row for row in json.loads(out.read_text())["rows"]}
    assert tuple(rows) == SHARDED_CASES
    dense = rows["fsdp-dense"]["sent_nbytes"]
    assert rows["fsdp"]["sent_nbytes"] < 0.02 * dense
    assert rows["fsdp-onebit"]["sent_nbytes"] < 0.06 * dense


@pytest.mark.parametrize(("case", "shards"), [("ddp", 2), ("hsdp", 1)])
def test_cases_of_sharded_networks_are_for_those(case: str, shards: int) -> None:
    with pytest.raises(ConfigError, match="--shards"):
        bench(cases=(case,), shards=shards)


@needs_rights
def test_a_killed_host_is_named_and_nothing_is_left() -> None:
    tiny = bench(model=LinkModel(width=32), cases=("ddp",), rates=("unlimited",), steps=1)
    pids: list[str] = []

    def kill_in_round_1(rate: str, round_: int, what: str) -> None:
        if round_ == 1:
            names = [line.split()[0] for line in output_of("ip", "netns", "list").splitlines()]
            (host,) = (n for n in names if n.startswith(own) and n.endswith("-0"))
            pids.extend(output_of("ip", "netns", "pids", host).split())
            os.kill(int(pids[0]), signal.SIGKILL)

    own = f"twbench{os.getpid()}x"
    with pytest.raises(ThinwireError, match=r"^bench: host 0 ended with exit code -9: "):
        bench_links(tiny, kill_in_round_1)
    assert own not in output_of("ip", "netns", "list")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
