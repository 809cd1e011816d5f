"""What a run was begun with is what it is served with, for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from tests.server.servers import RunningServer, loss_of, network, plain_sgd
from thinwire.model import describe, digest_of
from thinwire.server.admission import RunState, refusal_for
from thinwire.server.log.log import Log
from thinwire.server.run_settings import FILE, RunSettings, check_run_settings
from thinwire.server.settings import Rules
from thinwire.wire.messages import Describe, Join

RECIPE = tw.doublesqueeze(tw.OneBit())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 5}, "begun with seed 0, not 5"),
        ({"workers": 3}, "begun with workers 1, not 3"),
        ({"recipe": tw.dense()}, r"begun with recipe .*, not dense\(\): start"),
    ],
)
def test_a_log_is_not_served_with_other_settings(
    changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"recipe": RECIPE, "workers": 1, "seed": 0, "log_dir": tmp_path}
    tw.Server("tcp://127.0.0.1:0", **settings).close()
    tw.Server("tcp://127.0.0.1:0", **settings).close()
    with pytest.raises(tw.ConfigError, match=words):
        tw.Server("tcp://127.0.0.1:0", **(settings | changed))


def begin_run(log_dir: Path) -> None:
    """A log with the pushes of one worker."""
    with RunningServer(RECIPE, Rules.synchronous(1), log_dir=log_dir) as server:
        net = network()
        with tw.Client([server.address], RECIPE, rank=0, workers=1) as client:
            client.attach(net, plain_sgd(net))
            for step in range(2):
                net.zero_grad()
                loss_of(net, step, 0).backward()  # type: ignore[no-untyped-call]
                client.step()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"workers": 3}, "begun with workers 1, not 3"),
        ({"recipe": tw.dense()}, r"begun with recipe .*, not dense\(\): start"),
    ],
)
def test_a_start_that_is_refused_does_not_decide_what_is_right(
    changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    begin_run(tmp_path)
    assert not (tmp_path / FILE).exists()
    settings: dict[str, Any] = {"recipe": RECIPE, "workers": 1, "log_dir": tmp_path}
    with pytest.raises(tw.ConfigError, match=words):
        tw.Server("tcp://127.0.0.1:0", **(settings | changed))
    tw.Server("tcp://127.0.0.1:0", **settings).close()
    with pytest.raises(tw.ConfigError, match=words):
        tw.Server("tcp://127.0.0.1:0", **(settings | changed))


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "not an object": lambda whole: b"[]",
    "empty": lambda whole: b"",
    "nested without end": lambda whole: b"[" * 100_000,
    "not UTF-8": lambda whole: bytes([whole[0] ^ 0x80]) + whole[1:],
    "cut": lambda whole: whole[:-9],
    "a number is text": lambda whole: whole.replace(b'"seed": 0', b'"seed": "0"'),
    "a word is misspelt": lambda whole: whole.replace(b'"quorum"', b'"qoorum"'),
    "no recipe": lambda whole: whole.replace(b'"recipe"', b'"redipe"'),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_run_settings_are_one_sentence(damage: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"recipe": RECIPE, "workers": 1, "log_dir": tmp_path}
    tw.Server("tcp://127.0.0.1:0", **settings).close()
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(DAMAGED[damage](whole))
    with pytest.raises(tw.LogError, match=r"terms.json is damaged: .*; restore it from a copy"):
        tw.Server("tcp://127.0.0.1:0", **settings)


def test_a_bit_that_flips_anywhere_in_the_run_settings_is_one_sentence(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"recipe": RECIPE, "workers": 1, "log_dir": tmp_path}
    tw.Server("tcp://127.0.0.1:0", **settings).close()
    whole = (tmp_path / FILE).read_bytes()
    run = RunSettings(RECIPE, Rules.synchronous(1))
    _, recovery = Log.open(tmp_path / "none", new_run=1)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / FILE).write_bytes(data)
        with contextlib.suppress(tw.LogError, tw.ConfigError):
            check_run_settings(tmp_path, recovery, run)


@pytest.mark.parametrize("stored", [None, repr(RECIPE)], ids=["as now", "as its repr, as before"])
def test_a_worker_of_another_version_with_the_same_recipe_may_join(stored: str | None) -> None:
    now = describe([tw.Key("w", (3,))], RECIPE, server=0, servers=1)
    description = Describe(0, 1, stored or now.recipe, now.tensors)
    join = Join(1, 1, digest_of(description, 1), 0)
    refusal = refusal_for(0, join, description, RunState(RECIPE, Rules.synchronous(1)))
    assert refusal is None
