"""A forward that begins early computes what one that waits computes, or says that it cannot."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.server.early import Training, backward, loss_of, sgd, zero_grad
from tests.server.early_networks import NETWORKS, Functional, Scale
from tests.server.servers import RunningServer, weights
from tests.slow import slow
from thinwire.client import early_forward as early, push
from thinwire.client.updates import Updates
from thinwire.recipe import Recipe
from thinwire.server.settings import Rules
from thinwire.wire.messages import Late, Update

ONE_BIT = tw.doublesqueeze(tw.OneBit())
ALONE = Rules.synchronous(1)


class Nobody:
    def wait(self) -> None:
        """CLAN wants to wait for somebody."""


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": sgd,
    "momentum": lambda net: torch.optim.SGD(
        net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01
    ),
    "adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.01),
    "adamw, foreach": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, foreach=True),
    "lans": lambda net: tw.optim.LANS(net.parameters(), lr=0.01),
    "clan": lambda net: tw.optim.CLAN(net.parameters(), lr=0.01, exchange=Nobody()),
}


@pytest.fixture(autouse=True)
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No version is ever there when a step ends; every parameter is pushed and applied alone."""
    monkeypatch.setattr(Updates, "has_next", lambda self: False)
    monkeypatch.setattr(early, "GROUP_NUMEL", 1)
    monkeypatch.setattr(push, "PUSH_NUMEL", 1)


@pytest.mark.parametrize(
    ("optimizer", "workers"),
    [
        slow("sgd", 1),
        ("momentum", 2),
        ("adam", 3),
        ("adamw, foreach", 1),
        slow("lans", 2),
        ("clan", 3),
    ],
)
def test_every_optimizer_gets_where_it_would(optimizer: str, workers: int) -> None:
    training = Training(optimizer=OPTIMIZERS[optimizer], workers=workers)
    found, waiting = training.both()
    assert [training.virtual()] * workers == found == waiting


@pytest.mark.parametrize(
    "recipe",
    [tw.dense(), tw.clan(tw.Dither(4)), tw.dgc(0.05, momentum=0.9), tw.dgc(0.05, clip_norm=0.5)],
    ids=["dense", "dither", "dgc", "clipped dgc"],
)
def test_every_recipe_gets_where_it_would(recipe: Recipe) -> None:
    training = Training(recipe, optimizer=OPTIMIZERS["momentum"], workers=2)
    found, waiting = training.both()
    assert [training.virtual()] * 2 == found == waiting


@pytest.mark.parametrize("numel", [slow(100), 3000, slow(1 << 20)])
def test_groups_change_nothing(numel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "GROUP_NUMEL", numel)
    training = Training(optimizer=OPTIMIZERS["adam"])
    with RunningServer(ONE_BIT, ALONE) as server:
        assert training.run(server, early={0}) == [training.virtual()]


def test_versions_that_are_there_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    awaited = [1]

    def once_it_is_there(self: Updates) -> bool:
        if self.version >= awaited[-1]:
            return False
        self.wait_for(awaited[-1], range(len(self._pieces)), step=0, deadline_seconds=20.0)
        return True

    def all_is_there(client: tw.Client, net: nn.Module, step: int) -> None:
        assert client._joined().applying.is_settled
        awaited.append(awaited[-1] + 1)
        net.zero_grad()

    monkeypatch.setattr(Updates, "has_next", once_it_is_there)
    training = Training(after_step=all_is_there)
    with RunningServer(ONE_BIT, ALONE) as server:
        assert training.run(server, early={0}) == [training.virtual()]


def test_workers_need_not_all_begin_early() -> None:
    training = Training(workers=2, optimizer=OPTIMIZERS["lans"])
    with RunningServer(ONE_BIT, Rules.synchronous(2)) as server:
        assert training.run(server, early={1}) == [training.virtual()] * 2


def accumulate(client: tw.Client, net: nn.Module, step: int, rank: int) -> None:
    with client.no_sync():
        backward(net, 100 + step, rank)
    backward(net, step, rank)


def zero_before(set_to_none: bool, client: tw.Client, net: nn.Module, step: int, rank: int) -> None:
    net.zero_grad(set_to_none=set_to_none)
    backward(net, step, rank)


def zero_between(
    set_to_none: bool, client: tw.Client, net: nn.Module, step: int, rank: int
) -> None:
    """After the forward has applied the update."""
    loss = loss_of(net, step, rank)
    net.zero_grad(set_to_none=set_to_none)
    loss.backward()  # type: ignore[no-untyped-call]


def nothing(client: tw.Client, net: nn.Module, step: int) -> None:
    """The next step does it."""


LOOPS = {
    "zeros": Training(after_step=lambda client, net, step: net.zero_grad(set_to_none=False)),
    "none before": Training(backward=partial(zero_before, True), after_step=nothing),
    "zeros before": Training(backward=partial(zero_before, False), after_step=nothing),
    "none between": Training(backward=partial(zero_between, True), after_step=nothing),
    "zeros between": Training(backward=partial(zero_between, False), after_step=nothing),
    "no overlap": Training(options={"overlap": False}),
    "accumulation": Training(backward=accumulate),
    "accumulation, no overlap": Training(backward=accumulate, options={"overlap": False}),
}
SELDOM = {"zeros", "zeros before", "none between", "accumulation, no overlap"}
"""Between two others that are always tested."""


@pytest.mark.parametrize("loop", [slow(one) if one in SELDOM else one for one in LOOPS])
def test_every_loop_gets_where_it_would(loop: str) -> None:
    found, expected = replace(LOOPS[loop], workers=2).both()
    assert found == expected


# torch.compile asks inputs that are no leaves for gradients.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_gets_where_it_would(name: str) -> None:
    found, expected = Training(make=NETWORKS[name], optimizer=OPTIMIZERS["adam"]).both()
    assert found == expected


def test_a_network_that_is_compiled_around_the_hooks_is_an_error() -> None:
    with (
        RunningServer(ONE_BIT, ALONE) as server,
        pytest.raises(tw.ConfigError, match="attach a compiled network itself"),
        attached(server) as (net, _),
    ):
        backward(torch.compile(net, backend="eager"), 0)  # type: ignore[arg-type]


def test_modes_of_a_forward_do_not_reach_the_optimizer() -> None:
    modes = set()

    def noting(net: nn.Module) -> Optimizer:
        optimizer = sgd(net)
        optimizer.register_step_pre_hook(
            lambda *_: modes.add(
                (torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled())
            )
        )
        return optimizer

    def in_modes(client: tw.Client, net: nn.Module, step: int) -> None:
        with torch.autocast("cpu"), torch.inference_mode():
            net(torch.ones(20))

    with RunningServer(ONE_BIT, ALONE) as server:
        Training(make=Scale, optimizer=noting, after_step=in_modes).run(server, early={0})
    assert modes == {(False, False)}


@pytest.mark.parametrize(
    ("mode", "inner"),
    [
        (torch.no_grad, True),
        slow(torch.no_grad, False),
        slow(torch.inference_mode, True),
        (torch.inference_mode, False),
    ],
)
def test_an_evaluation_sees_whole_versions(mode: Callable[[], Any], inner: bool) -> None:
    seen: list[bytes] = []

    def evaluate(client: tw.Client, net: nn.Module, step: int) -> None:
        with mode():
            (net[0](torch.ones(20)) if inner else loss_of(net, 50, 0))  # type: ignore[index]
        seen.extend(weights(net))
        net.zero_grad()

    training = Training(after_step=evaluate, optimizer=OPTIMIZERS["adam"])
    found, expected = training.both()
    assert found == expected
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


@contextmanager
def attached(
    server: RunningServer, net: nn.Module | None = None, **options: Any
) -> Iterator[tuple[nn.Module, tw.Client]]:
    net = net or Training().network()
    options = {"rank": 0, "workers": 1, "deadline_seconds": 20.0, "force": True} | options
    with tw.Client([server.address], ONE_BIT, early_forward=True, **options) as client:
        client.attach(net, sgd(net))
        yield net, client


def step_once(net: nn.Module, client: tw.Client, step: int = 0) -> None:
    net.zero_grad()
    backward(net, step)
    client.step()


WHOLE: dict[str, Callable[[nn.Module, tw.Client], object]] = {
    "settle": lambda net, client: client.settle(),
    "version": lambda net, client: client.version,
    "stats": lambda net, client: client.stats(),
    "state": lambda net, client: client.state_dict(),
    "network's state": lambda net, client: net.state_dict(),
    "a child's state": lambda net, client: next(net.children()).state_dict(),
    "loading": lambda net, client: net.load_state_dict(net.state_dict()),
    "optimizer's state": lambda net, client: client._joined().target.optimizer.state_dict(),
    "closing": lambda net, client: client.close(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_who_needs_whole_weights_gets_them(name: str) -> None:
    with RunningServer(ONE_BIT, ALONE) as server, attached(server) as (net, client):
        before = weights(net)
        step_once(net, client)
        grads = _grads(net)
        assert weights(net) == before
        WHOLE[name](net, client)
        assert all(now != then for now, then in zip(weights(net), before, strict=True))
        assert all(now is then for now, then in zip(_grads(net), grads, strict=True))
        assert client.version == 1


def _grads(net: nn.Module) -> list[Tensor | None]:
    return [p.grad for p in net.parameters()]


def save_and_fail(server: RunningServer, saved: list[Any]) -> None:
    with attached(server) as (net, client):
        step_once(net, client, 0)
        step_once(net, client, 1)
        saved += copy.deepcopy((net.state_dict(), client.state_dict()))
        raise KeyError


def test_a_checkpoint_in_between_goes_on_bit_for_bit() -> None:
    saved: list[Any] = []
    with RunningServer(ONE_BIT, ALONE) as server:
        with pytest.raises(KeyError):
            save_and_fail(server, saved)
        net = Training().network()
        net.load_state_dict(saved[0])
        client = tw.Client(
            [server.address], ONE_BIT, rank=0, workers=1, early_forward=True, force=True
        )
        client.load_state_dict(saved[1])
        with client:
            client.attach(net, sgd(net))
            assert client.version == 2
            step_once(net, client, 2)
            step_once(net, client, 3)
    with RunningServer(ONE_BIT, ALONE) as server, attached(server) as (expected, client):
        for step in range(4):
            step_once(expected, client, step)
    assert weights(net) == weights(expected)


def test_the_forward_begins_before_the_last_layers_have_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They come because it has begun: if it waited for them, nothing would ever come."""
    events: list[str] = []
    held: list[Update] = []
    add = Updates.add

    def first_layers_only(self: Updates, update: Update) -> None:
        events.append("first layer came")
        held.append(replace(update, entries=tuple(e for e in update.entries if e.piece >= 2)))
        add(self, replace(update, entries=tuple(e for e in update.entries if e.piece < 2)))

    def release(updates: Updates) -> None:
        events.append("last layers came")
        for update in held:
            add(updates, update)
        monkeypatch.setattr(Updates, "add", add)

    with RunningServer(ONE_BIT, ALONE) as server, attached(server) as (net, client):
        monkeypatch.setattr(Updates, "add", first_layers_only)
        step_once(net, client)
        updates, [first, *_, last] = client._joined().servers.updates, net.children()
        first.register_forward_hook(lambda *_: events.append("first layer done"))
        first.register_forward_hook(lambda *_: release(updates))
        last.register_forward_hook(lambda *_: events.append("last layer done"))
        step_once(net, client, 1)
        client.settle()
    assert list(dict.fromkeys(events)) == [
        "first layer came",
        "first layer done",
        "last layers came",
        "last layer done",
    ]


@pytest.mark.parametrize("overlap", [True, False])
def test_weights_that_no_module_brings_are_an_error(overlap: bool) -> None:
    message = "hidden.weight has a gradient, but the module .* early_forward=False"
    with (
        RunningServer(ONE_BIT, ALONE) as server,
        pytest.raises(tw.ConfigError, match=message),
        attached(server, Functional(), overlap=overlap) as (net, client),
    ):
        step_once(net, client)


def test_such_weights_can_be_settled_by_hand() -> None:
    def settled(client: tw.Client, net: nn.Module, step: int, rank: int) -> None:
        client.settle()
        backward(net, step, rank)

    found, expected = Training(make=Functional, backward=settled).both()
    assert found == expected


def test_gradients_by_hand_are_an_error_unless_weights_are_settled() -> None:
    net = nn.Linear(3, 3)
    with RunningServer(ONE_BIT, ALONE) as server, attached(server, net) as (_, client):
        client.settle()
        net.weight.grad = torch.ones(3, 3)
        client.step()
        net.weight.grad = torch.ones(3, 3)
        with pytest.raises(tw.ConfigError, match="weight has a gradient"):
            client.step()


def test_gradients_that_are_left_from_the_step_before_are_no_error() -> None:
    def only_once(client: tw.Client, net: nn.Module, step: int, rank: int) -> None:
        if step == 0:
            backward(net, step, rank)

    with RunningServer(tw.dense(), ALONE) as server:
        training = Training(tw.dense(), backward=only_once, after_step=nothing)
        training.run(server, early={0})


def halve_rate(net: nn.Module, client: tw.Client) -> None:
    client._joined().target.optimizer.param_groups[0]["lr"] /= 2


def clamp(net: nn.Module, client: tw.Client) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.clamp_(-0.1, 0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [(halve_rate, "settings of the optimizer changed"), (clamp, "0.weight was changed before")],
)
def test_what_changes_under_a_version_is_an_error(
    change: Callable[[nn.Module, tw.Client], None], message: str
) -> None:
    def settle_and_change(client: tw.Client, net: nn.Module, step: int) -> None:
        client.settle()
        change(net, client)
        net.zero_grad()

    def only_change(client: tw.Client, net: nn.Module, step: int) -> None:
        change(net, client)

    with RunningServer(ONE_BIT, ALONE) as server:
        Training(after_step=settle_and_change).run(server, early={0})
    with RunningServer(ONE_BIT, ALONE) as server, pytest.raises(tw.ConfigError, match=message):
        Training(after_step=only_change).run(server, early={0})


class Counting(torch.optim.SGD):
    """Counts its steps in its groups, as optimizers do that look at all parameters together."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
        return super().step(closure)


def test_an_optimizer_that_is_more_than_its_parameters_is_an_error() -> None:
    training = Training(optimizer=lambda net: Counting(net.parameters(), lr=0.1))
    with (
        RunningServer(ONE_BIT, ALONE) as server,
        pytest.raises(tw.ConfigError, match="settings of the optimizer changed"),
    ):
        training.run(server, early={0})


def step_alone(server: RunningServer, *, forward: bool) -> None:
    with attached(server, workers=2, deadline_seconds=1.0) as (net, client):
        step_once(net, client)
        if forward:
            net(torch.ones(20))
            raise AssertionError("a forward with weights that have not come")


def test_what_cannot_tell_when_it_is_called_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is old, and yet in use
        net = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)))
    with (
        RunningServer(ONE_BIT, ALONE) as server,
        pytest.raises(tw.ConfigError, match="ScriptModule has no hooks"),
        attached(server, net),
    ):
        raise AssertionError
    assert not any(module._forward_pre_hooks for module in net.modules())


class Closed(torch.optim.SGD):
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


def test_an_optimizer_that_wants_a_closure_is_refused() -> None:
    training = Training(optimizer=lambda net: Closed(net.parameters(), lr=0.1))
    with (
        RunningServer(ONE_BIT, ALONE) as server,
        pytest.raises(tw.ConfigError, match="Closed evaluates the loss in its step"),
    ):
        training.run(server, early={0})


def note_version(net: nn.Module) -> Optimizer:
    """Asks for whole weights in the middle of applying them."""

    def ask(*_: object) -> None:
        net.state_dict()

    optimizer = sgd(net)
    optimizer.register_step_post_hook(ask)
    return optimizer


def test_hooks_of_the_optimizer_may_ask_for_whole_weights_but_get_what_is_there() -> None:
    found, waiting = Training(optimizer=note_version).both()
    assert found == waiting


@pytest.mark.parametrize("forward", [True, False])
def test_a_version_that_does_not_come_is_the_error_of_who_waits_for_it(forward: bool) -> None:
    message = r"step 0: version 1 of 0\.weight did not come within 1 s"
    with (
        RunningServer(ONE_BIT, Rules.synchronous(2)) as server,
        pytest.raises(tw.TransportTimeout, match=message),
    ):
        step_alone(server, forward=forward)


def test_servers_name_who_is_late_to_the_forward() -> None:
    """A worker that waits hears which one the servers wait for."""
    late = Late(1, (1,))
    with RunningServer(ONE_BIT, Rules.synchronous(2)) as server:
        net = Training().network()
        client = tw.Client(
            [server.address],
            ONE_BIT,
            rank=0,
            workers=2,
            deadline_seconds=1.0,
            early_forward=True,
            force=True,
        )
        client.attach(net, sgd(net))
        step_once(net, client)
        client._joined().servers.updates.late(late)
        with pytest.raises(tw.WorkerLost, match="the servers wait for workers 1"):
            net(torch.ones(20))
        with pytest.raises(tw.WorkerLost):
            client.close()


def test_a_server_may_be_restarted_while_a_version_is_awaited(tmp_path: Path) -> None:
    """Once with a part of it applied, and once before it is closed."""
    restarted = threading.Event()
    with RunningServer(ONE_BIT, Rules.synchronous(2), log_dir=tmp_path) as server:

        def late(client: tw.Client, net: nn.Module, step: int, rank: int) -> None:
            if (step, rank) == (3, 1):
                assert restarted.wait(20.0)
            backward(net, step, rank)

        def restart(client: tw.Client, net: nn.Module, step: int) -> None:
            net.zero_grad()
            if client._settings.rank == 0 and step in (1, 3):
                if step == 1:
                    net[0](torch.ones(20))  # type: ignore[index]
                server.stop()
                server.start()
                restarted.set() if step == 3 else None

        training = Training(workers=2, backward=late, after_step=restart)
        found = training.run(server, early={0, 1})
    assert found == [training.virtual()] * 2


def test_asynchronous_replicas_agree_at_equal_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(early, "GROUP_NUMEL", 1)
    seen: list[tuple[int, list[bytes]]] = []

    def note(client: tw.Client, net: nn.Module, step: int) -> None:
        if step % 2:
            seen.append((client.version, weights(net)))
        net.zero_grad()

    training = Training(workers=3, steps=12, after_step=note, optimizer=OPTIMIZERS["adam"])
    with RunningServer(ONE_BIT, Rules(3, 1, 100)) as server:
        training.run(server, early={0, 1, 2})
        assert server.error is None
    by_version: dict[int, list[bytes]] = {}
    assert all(by_version.setdefault(version, found) == found for version, found in seen)
    assert len(by_version) < len(seen)


def test_a_copy_of_the_network_is_one() -> None:
    with RunningServer(ONE_BIT, ALONE) as server, attached(server) as (net, client):
        step_once(net, client)
        client.settle()
        assert weights(copy.deepcopy(net)) == weights(net)


def test_hooks_are_gone_with_the_client() -> None:
    with RunningServer(ONE_BIT, ALONE) as server, attached(server) as (net, client):
        step_once(net, client)
    for module in net.modules():
        assert not module._forward_pre_hooks
        assert not module._state_dict_pre_hooks
        assert not module._load_state_dict_pre_hooks
    zero_grad(client, net, 0)
    backward(net, 1)
