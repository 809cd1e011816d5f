"""Replaying the logs of all servers gives the weights that workers had, bit for bit."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.log_cases import flip, segments
from tests.server.servers import DEADLINE, RunningServer, loss_of, network, weights
from thinwire.cli.main import main
from thinwire.client.client import Client
from thinwire.errors import ConfigError, LogError
from thinwire.recipe import Recipe
from thinwire.replay.replay import KeptRun, replay_log
from thinwire.server.log.log import Log
from thinwire.server.log.recovery import recover
from thinwire.server.log.settings import LogSettings
from thinwire.server.log.snapshot import Snapshot
from thinwire.server.settings import Rules
from thinwire.wire.frame import pack
from thinwire.wire.messages import Describe

WORKERS, VERSIONS, MIDDLE = 3, 7, 3

Make = Callable[[nn.Module], Optimizer]


def of(name: str, **settings: Any) -> Make:
    """An optimizer of a network, made as replay's --optimizer names it."""
    cls = getattr(torch.optim if name.startswith("torch") else tw.optim, name.rpartition(".")[2])
    return lambda net: cls(net.parameters(), **settings)


def in_groups(net: nn.Module) -> Optimizer:
    named = list(net.named_parameters())
    groups = [
        {"params": [(n, p) for n, p in named if p.ndim > 1], "lr": 0.05, "weight_decay": 0.01},
        {"params": [(n, p) for n, p in named if p.ndim == 1], "lr": 0.01},
    ]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


@dataclass(frozen=True)
class Case:
    recipe: Recipe
    optimizer: str
    make: Make
    scheduled: bool = False


def case(recipe: Recipe, optimizer: str, *, scheduled: bool = False, **settings: Any) -> Case:
    return Case(recipe, optimizer, of(optimizer, **settings), scheduled)


ONE_BIT, DGC = tw.doublesqueeze(tw.OneBit()), tw.dgc(0.02, momentum=0.9)
CASES = {
    "1 bit, SGD": case(ONE_BIT, "torch.optim.SGD", scheduled=True, lr=0.05, momentum=0.9),
    "1 bit, Adam": case(ONE_BIT, "torch.optim.Adam", lr=1e-3),
    "1 bit, groups": Case(ONE_BIT, "torch.optim.SGD", in_groups, scheduled=True),
    "dgc, torch SGD": case(
        DGC, "torch.optim.SGD", scheduled=True, lr=0.05, momentum=0.9, weight_decay=0.01
    ),
    "dgc, own SGD": case(DGC, "thinwire.optim.SGD", lr=0.05, momentum=0.9, weight_decay=0.01),
    "dither, LANS": case(tw.clan(tw.Dither(4)), "thinwire.optim.LANS", scheduled=True, lr=0.01),
}


@dataclass
class Run:
    """What is left of a training: logs, and what worker 1 had at each version."""

    case: Case
    folders: list[Path]
    weights: dict[int, list[bytes]] = field(default_factory=dict)
    checkpoints: dict[int, Path] = field(default_factory=dict)

    def note(self, folder: Path, version: int, net: nn.Module, optimizer: Optimizer) -> None:
        self.weights[version] = weights(net)
        self.checkpoints[version] = folder / f"{version}.pt"
        save(self.checkpoints[version], net, optimizer, version)


def save(path: Path, net: nn.Module, optimizer: Optimizer, version: int) -> None:
    content = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**content, "version": version}, path)


def train(
    case: Case,
    folder: Path,
    *,
    rules: Rules = Rules.synchronous(WORKERS),  # noqa: B008 - it is frozen
    while_running: Callable[[Run], None] | None = None,
) -> Run:
    """Two servers with logs, and workers in threads."""
    run = Run(case, [folder / "ps0", folder / "ps1"])
    errors: list[BaseException] = []
    with ExitStack() as stack:
        servers = [
            stack.enter_context(RunningServer(case.recipe, rules, log_dir=log_dir))
            for log_dir in run.folders
        ]
        workers = [
            threading.Thread(target=work, args=(run, folder, servers, rank, net, errors))
            for rank, net in enumerate([network() for _ in range(WORKERS)])
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=DEADLINE)
        if while_running is not None:
            while_running(run)
    assert not errors
    return run


def work(
    run: Run,
    folder: Path,
    servers: Sequence[RunningServer],
    rank: int,
    net: nn.Module,
    errors: list[BaseException],
) -> None:
    try:
        optimizer = run.case.make(net)
        factor = 0.7 if run.case.scheduled else 1.0
        schedule = LambdaLR(optimizer, lambda step: factor**step)
        if rank == 1:
            run.note(folder, 0, net, optimizer)
        addresses = [server.address for server in servers]
        client = Client(
            addresses,
            run.case.recipe,
            rank=rank,
            workers=WORKERS,
            deadline_seconds=DEADLINE,
            force=True,  # what loses is replayed, too
        )
        with client:
            client.attach(net, optimizer)
            for step in range(VERSIONS):
                net.zero_grad()
                loss_of(net, step, rank).backward()  # type: ignore[no-untyped-call]
                client.step()
                if rank == 1:
                    run.note(folder, client.version, net, optimizer)
                schedule.step()
    except BaseException as error:
        errors.append(error)


@pytest.fixture(scope="module", params=list(CASES))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(CASES[request.param], tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(CASES["dgc, torch SGD"], tmp_path_factory.mktemp("run"))


def fresh(run: Run, *, start: int = 0) -> tuple[nn.Module, Optimizer]:
    """Network and optimizer as a worker would load them from a checkpoint."""
    net = network()
    optimizer = run.case.make(net)
    found = torch.load(run.checkpoints[start], weights_only=True)
    net.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return net, optimizer


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("version", [2, MIDDLE, VERSIONS])
def test_weights_are_those_of_the_workers(run: Run, start: int, version: int) -> None:
    net, optimizer = fresh(run, start=start)
    assert replay_log(net, optimizer, run.folders, start=start, version=version) == version
    assert weights(net) == run.weights[version]


def test_without_a_version_it_goes_to_the_newest(one_run: Run) -> None:
    net, optimizer = fresh(one_run)
    assert replay_log(net, optimizer, one_run.folders[::-1]) == VERSIONS
    assert weights(net) == one_run.weights[VERSIONS]


def test_a_fresh_optimizer_gives_up_its_momentum_as_the_workers_did(one_run: Run) -> None:
    net = network()
    replay_log(net, one_run.case.make(net), one_run.folders, version=MIDDLE)
    assert weights(net) == one_run.weights[MIDDLE]


def test_servers_may_be_running_and_a_torn_tail_is_the_end(tmp_path: Path) -> None:
    def look(run: Run) -> None:
        net, optimizer = fresh(run)
        assert replay_log(net, optimizer, run.folders) == VERSIONS
        assert weights(net) == run.weights[VERSIONS]

    run = train(CASES["1 bit, Adam"], tmp_path, while_running=look)
    found = recover(run.folders[1]).segments[-1]
    os.truncate(found.path, found.updates[-1].offset + 50)
    assert KeptRun(run.folders).last == VERSIONS - 1
    net, optimizer = fresh(run)
    assert replay_log(net, optimizer, run.folders) == VERSIONS - 1
    assert weights(net) == run.weights[VERSIONS - 1]


def test_asynchronous_workers_had_the_same_weights_at_the_same_version(tmp_path: Path) -> None:
    run = train(CASES["1 bit, Adam"], tmp_path, rules=Rules(WORKERS, 1, 100))
    assert max(run.weights) >= VERSIONS
    for version, noted in run.weights.items():
        net, optimizer = fresh(run)
        replay_log(net, optimizer, run.folders, version=version)
        assert weights(net) == noted


def test_a_rate_is_for_every_version(tmp_path: Path) -> None:
    run = train(CASES["1 bit, Adam"], tmp_path)
    net, optimizer = fresh(run)
    replay_log(net, optimizer, run.folders, rate=2e-3)
    assert optimizer.param_groups[0]["lr"] == 2e-3
    assert weights(net) != run.weights[VERSIONS]


def test_a_scheduler_may_set_the_rates(one_run: Run) -> None:
    net, optimizer = fresh(one_run)
    for group in optimizer.param_groups:
        del group["initial_lr"]
    scheduler = LambdaLR(optimizer, lambda step: 0.7**step)
    replay_log(net, optimizer, one_run.folders, scheduler=scheduler)
    assert weights(net) == one_run.weights[VERSIONS]


# What cannot be replayed is refused, and nothing is changed.


def refusal(run: Run, folders: Sequence[Path], **arguments: Any) -> str:
    net, optimizer = fresh(run)
    before = weights(net)
    with pytest.raises((ConfigError, LogError)) as error:
        replay_log(net, optimizer, folders, **arguments)
    assert weights(net) == before
    return str(error.value)


def test_a_missing_server_is_named(one_run: Run) -> None:
    assert "2 servers, and the log of server 0 is missing" in refusal(one_run, one_run.folders[1:])


def test_a_folder_that_is_given_twice_is_refused(one_run: Run) -> None:
    assert "are both of server 0" in refusal(one_run, one_run.folders[:1] * 2)


def test_a_version_that_is_not_there_is_refused(one_run: Run) -> None:
    text = refusal(one_run, one_run.folders, version=VERSIONS + 1)
    assert f"the logs keep versions 1 to {VERSIONS}" in text


def test_the_past_of_a_checkpoint_is_refused(one_run: Run) -> None:
    text = refusal(one_run, one_run.folders, start=MIDDLE, version=1)
    assert f"version 1 is wanted, but the checkpoint is of version {MIDDLE}" in text


def test_another_model_is_refused(one_run: Run) -> None:
    net = nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 9))
    with pytest.raises(ConfigError, match=r"2.weight is \[9, 300\], but the servers had \[300, 30"):
        replay_log(net, torch.optim.SGD(net.parameters(), lr=0.1), one_run.folders)


def test_another_recipe_is_refused(one_run: Run, tmp_path: Path) -> None:
    other = train(CASES["1 bit, Adam"], tmp_path)
    text = refusal(one_run, [one_run.folders[0], other.folders[1]])
    assert "another model, recipe or number of servers" in text


def test_an_optimizer_that_cannot_give_up_its_momentum_is_refused(one_run: Run) -> None:
    net = network()
    with pytest.raises(ConfigError, match="Adam cannot give up"):
        replay_log(net, torch.optim.Adam(net.parameters()), one_run.folders)


def copied(
    run: Run,
    folder: Path,
    *,
    new_run: int | None = None,
    keep_steps: int | None = None,
    described: bool = True,
) -> list[Path]:
    """The same logs, of another run, or compacted: every record is then a segment of its own.

    Snapshots have the description if they are to be ``described``.
    """
    settings = LogSettings(fsync="off", segment_nbytes=1, keep_steps=keep_steps)
    folders = [folder / one.name for one in run.folders]
    for source, target in zip(run.folders, folders, strict=True):
        found = recover(source)
        frames = list(found.frames())
        with Log.open(target, settings, new_run=new_run or found.segments[0].run)[0] as log:
            for frame in frames:
                log.append(pack(frame))
                log.commit()
            pending = tuple(frame for frame in frames if described and frame.kind == Describe.kind)
            log.snapshot(Snapshot(log.run, log.epoch, pending=pending))
            log.append(pack(frames[-1]))
            log.commit()
            log.snapshot(Snapshot(log.run, log.epoch, pending=pending))
    return folders


def test_another_run_is_refused(one_run: Run, tmp_path: Path) -> None:
    others = copied(one_run, tmp_path, new_run=999)
    run = recover(one_run.folders[0]).segments[0].run
    text = refusal(one_run, [others[0], one_run.folders[1]])
    assert f"{one_run.folders[1]} is of run {run}, but {others[0]} of 999" in text


def test_a_compacted_log_says_what_it_keeps(one_run: Run, tmp_path: Path) -> None:
    folders = copied(one_run, tmp_path, keep_steps=VERSIONS - MIDDLE)
    text = refusal(one_run, folders)
    assert f"the logs keep versions {MIDDLE + 1} to {VERSIONS}" in text
    assert f"a checkpoint must be of version {MIDDLE} or later" in text
    net, optimizer = fresh(one_run, start=MIDDLE + 1)
    replay_log(net, optimizer, folders, start=MIDDLE + 1)
    assert weights(net) == one_run.weights[VERSIONS]


def test_a_rate_whose_pushes_are_deleted_must_be_given(one_run: Run, tmp_path: Path) -> None:
    folders = copied(one_run, tmp_path, keep_steps=VERSIONS - MIDDLE)
    net, optimizer = fresh(one_run, start=MIDDLE)
    with pytest.raises(LogError, match=f"pushes of version {MIDDLE + 1} are deleted, and with th"):
        replay_log(net, optimizer, folders, start=MIDDLE)
    rate = 0.05 * 0.7**MIDDLE
    replay_log(net, optimizer, folders, start=MIDDLE, version=MIDDLE + 1, rate=rate)
    assert weights(net) == one_run.weights[MIDDLE + 1]


def test_without_a_description_it_is_refused(one_run: Run, tmp_path: Path) -> None:
    folders = copied(one_run, tmp_path, keep_steps=2, described=False)
    assert "does not say what was trained" in refusal(one_run, folders)


def test_damage_is_refused_with_its_place(one_run: Run, tmp_path: Path) -> None:
    folders = copied(one_run, tmp_path)
    flip(segments(folders[0])[3], 90)
    assert f"{segments(folders[0])[3]}, byte " in refusal(one_run, folders)


def test_an_empty_folder_is_refused(one_run: Run, tmp_path: Path) -> None:
    assert "is it the folder of a server's log?" in refusal(one_run, [tmp_path])


# The command.


def command(run: Run, out: Path, *more: str | Path, start: int = 0) -> Result:
    logs = [word for folder in run.folders for word in ("--log-dir", str(folder))]
    files = ["--checkpoint", str(run.checkpoints[start]), "--out", str(out)]
    chosen = [] if "--optimizer" in more else ["--optimizer", run.case.optimizer]
    return CliRunner().invoke(main, ["replay", *files, *logs, *chosen, *map(str, more)])


def loaded(path: Path) -> tuple[list[bytes], int]:
    found = torch.load(path, weights_only=True)
    net = network()
    net.load_state_dict(found["model"])
    return weights(net), found["version"]


@pytest.mark.parametrize("start", [0, 2])
def test_the_command_writes_the_weights_of_the_workers(
    run: Run, start: int, tmp_path: Path
) -> None:
    out = tmp_path / "weights.pt"
    result = command(run, out, "--version", str(MIDDLE), start=start)
    assert (result.exit_code, result.stderr) == (0, "")
    assert loaded(out) == (run.weights[MIDDLE], MIDDLE)


def test_its_checkpoint_is_one_to_go_on_from(run: Run, tmp_path: Path) -> None:
    middle, last = tmp_path / "middle.pt", tmp_path / "last.pt"
    assert command(run, middle, "--version", str(MIDDLE)).exit_code == 0
    run.checkpoints[-1] = middle
    assert command(run, last, start=-1).exit_code == 0
    assert loaded(last) == (run.weights[VERSIONS], VERSIONS)


def test_it_shows_progress_and_writes_a_summary(one_run: Run, tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    result = command(one_run, tmp_path / "out.pt", "--json", summary)
    assert f"version {VERSIONS} of {VERSIONS}\n" in result.stdout
    assert f"keep versions 1 to {VERSIONS}" in result.stdout
    found = json.loads(summary.read_text())
    assert (found["start"], found["version"]) == (0, VERSIONS)
    assert found["kept"] == {"since": 0, "last": VERSIONS}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--optimizer", "os.system"], "expected torch.optim.NAME or thinwire.optim.NAME"),
        (["--optimizer", "torch.optim.lr_scheduler.StepLR"], "expected torch.optim.NAME"),
        (["--optimizer", "torch.optim.LBFGS"], "expected torch.optim.NAME"),
        (["--optimizer", "torch.optim.Adam"], "is not the optimizer of the checkpoint"),
        (["--optimizer", "thinwire.optim.SGD"], "is not the optimizer of the checkpoint"),
        (["--version", "99"], f"the logs keep versions 1 to {VERSIONS}"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    one_run: Run, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    result = command(one_run, tmp_path / "out.pt", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert sentence in result.stderr
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("/proc/out.pt", "'--out': /proc/out.pt: no file can be made in /proc: "),
        ("/none/out.pt", "'--out': /none/out.pt: there is no folder /none"),
    ],
)
def test_a_checkpoint_that_cannot_be_written_is_refused_first(
    one_run: Run, out: str, sentence: str
) -> None:
    result = command(one_run, Path(out))
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"no checkpoint", "cannot be loaded with weights_only=True"),
        ({"model": {}}, "is no checkpoint for replay; make one with torch.save"),
        ({"model": {}, "optimizer": {}, "version": 0}, '"optimizer" is no state dict'),
        ({"model": {}, "optimizer": {}, "version": -1}, "version -1, expected a whole number"),
    ],
)
def test_a_wrong_checkpoint_is_one_sentence(
    one_run: Run, tmp_path: Path, content: object, sentence: str
) -> None:
    path = tmp_path / "start.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    wrong = Run(one_run.case, one_run.folders, {}, {0: path})
    result = command(wrong, tmp_path / "out.pt")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert sentence in result.stderr


def test_a_checkpoint_that_would_run_code_is_refused(one_run: Run, tmp_path: Path) -> None:
    path = tmp_path / "start.pt"
    torch.save({"model": {}, "optimizer": print, "version": 0}, path)
    result = command(Run(one_run.case, one_run.folders, {}, {0: path}), tmp_path / "out.pt")
    assert result.exit_code == 1
    assert "cannot be loaded with weights_only=True" in result.stderr


def test_groups_without_names_are_refused(tmp_path: Path, one_run: Run) -> None:
    net = network()
    groups = [{"params": [p]} for p in net.parameters()]
    save(tmp_path / "0.pt", net, torch.optim.SGD(groups, lr=0.05), 0)
    run = Run(one_run.case, one_run.folders, {}, {0: tmp_path / "0.pt"})
    result = command(run, tmp_path / "out.pt")
    assert result.exit_code == 1
    assert "make it from net.named_parameters()" in result.stderr


def test_buffers_and_tied_weights(one_run: Run, tmp_path: Path) -> None:
    """Buffers stay as they were, and the command says so; a second name follows the first."""
    net, optimizer = fresh(one_run)
    model = net.state_dict()
    model |= {"tied": model["0.weight"], "running_mean": torch.ones(3)}
    content = {"model": model, "optimizer": optimizer.state_dict(), "version": 0}
    torch.save(content, tmp_path / "0.pt")
    run = Run(one_run.case, one_run.folders, {}, {0: tmp_path / "0.pt"})
    result = command(run, tmp_path / "out.pt")
    assert "as in the first checkpoint: running_mean (" in result.stdout
    found = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
    assert torch.equal(found["tied"], found["0.weight"])
    assert not torch.equal(found["tied"], network().state_dict()["0.weight"])
    assert torch.equal(found["running_mean"], torch.ones(3))
