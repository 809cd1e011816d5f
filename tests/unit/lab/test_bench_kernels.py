"""The kernel benchmark runs, and measures what it says. No test here judges a time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import thinwire as tw
from thinwire import _native
from thinwire.cli.main import main
from thinwire_lab.bench.kernels import targets, torch_ops
from thinwire_lab.bench.kernels.buffers import ADAM, MOMENTUM, RATIO, Buffers, make_buffers
from thinwire_lab.bench.kernels.cases import MEMCPY, kernel_cases
from thinwire_lab.bench.kernels.targets import Kind, Target, Verdict
from thinwire_lab.bench.machine import Usage

NUMEL = 10_000
TINY = ("bench", "kernels", "--numel", str(NUMEL), "--rounds", "2")
COMMAND = Path(sys.executable).with_name("thinwire")


@pytest.fixture(scope="module")
def buffers() -> Buffers:
    return make_buffers(NUMEL)


def case_names(buffers: Buffers) -> list[str]:
    with ThreadPoolExecutor(1) as helper:
        return [case.name for case in kernel_cases(buffers, helper)]


def numbers_in(value: object) -> list[float]:
    """All numbers of a json value."""
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers_in(part)]
    if isinstance(value, list):
        return [number for part in value for number in numbers_in(part)]
    return [value] if isinstance(value, (int, float)) else []


def check_json(path: Path, buffers: Buffers) -> None:
    written = json.loads(path.read_text())
    assert [row["case"] for row in written["rows"]] == case_names(buffers)
    assert all(math.isfinite(x) and x > 0 for x in numbers_in(written["rows"]))
    assert 0 <= written["others"] <= 1
    assert all(len(s) == 2 for row in written["rows"] for s in row["seconds"].values())
    assert written["machine"]["isa"] == _native.isa()


def test_command_measures_every_case(tmp_path: Path, buffers: Buffers) -> None:
    result = CliRunner().invoke(main, [*TINY, "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 0, result.output
    assert all(name in result.stdout for name in case_names(buffers))
    assert "round 2 of 2" in result.stderr
    check_json(tmp_path / "out.json", buffers)


def test_installed_command_measures_every_case(tmp_path: Path, buffers: Buffers) -> None:
    command = [str(COMMAND), *TINY, "--json", str(tmp_path / "out.json")]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    check_json(tmp_path / "out.json", buffers)


def test_settings_are_given_back() -> None:
    before = _native.isa(), _native.threads(), torch.get_num_threads()
    assert CliRunner().invoke(main, [*TINY, "--isa", "scalar"]).exit_code == 0
    assert (_native.isa(), _native.threads(), torch.get_num_threads()) == before


@pytest.mark.parametrize("numel", ["999", "1001"])
def test_unusable_size_is_refused_in_one_line(numel: str) -> None:
    result = CliRunner().invoke(main, ["bench", "kernels", "--numel", numel])
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert numel in result.stderr


def test_strict_fails_where_a_target_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    never = (Target(Kind.MEMCPY, 0.0),)
    monkeypatch.setattr("thinwire_lab.bench.report.targets_for", lambda *_: never)
    assert CliRunner().invoke(main, TINY).exit_code == 0
    strict = CliRunner().invoke(main, [*TINY, "--strict"])
    assert strict.exit_code == 1
    assert "Missed: memcpy" in strict.stdout


def test_verdicts() -> None:
    ceiling, floor = Target(Kind.MEMCPY, 1.0), Target(Kind.TORCH, 10.0)
    assert ceiling.judge(0.9, 1.0) is floor.judge(10.0, 11.0) is Verdict.HOLDS
    assert ceiling.judge(0.9, 1.1) is floor.judge(10.0, 9.0) is Verdict.UNSETTLED
    assert ceiling.judge(1.1, 1.2) is floor.judge(9.0, 9.0) is Verdict.MISSED


def test_every_target_belongs_to_a_case(buffers: Buffers) -> None:
    named = set(targets._LARGE) | set(targets._MEDIUM)
    assert named <= set(case_names(buffers))
    assert MEMCPY in case_names(buffers)


def test_residuals_are_in_the_steady_state(buffers: Buffers) -> None:
    """About RATIO of all elements pass the threshold in a step, as many as top-k takes."""
    limit = float(buffers.topk_residual.abs().max())
    passing = (buffers.topk_residual + buffers.gradient).abs() >= limit
    assert int(passing.sum()) == pytest.approx(RATIO * NUMEL, abs=3 * (RATIO * NUMEL) ** 0.5)


def test_share_of_other_processes() -> None:
    before, now = Usage(100.0, 50.0, 1.0), Usage(110.0, 53.0, 5.0)
    assert now.others_since(before) == pytest.approx(0.3)
    assert before.others_since(before) == 0.0


class TestTorchDoesTheSame:
    """A comparison is fair only if both sides do the same work."""

    def test_onebit(self, buffers: Buffers) -> None:
        g, scratch = buffers.gradient, torch.empty(NUMEL)
        plain, tuned = torch.zeros(NUMEL), torch.zeros(NUMEL)
        payload = tw.OneBit().encode(g, seed=0)
        for scale, packed in (
            torch_ops.plain_onebit_step(g, plain),
            torch_ops.tuned_onebit_step(g, tuned, scratch),
        ):
            assert bytes(packed.numpy()) == payload[12:]
            assert float(scale) == pytest.approx(float(g.abs().mean()))
        sent = torch.empty(NUMEL)
        _native.onebit_decode(payload, sent)
        torch.testing.assert_close(plain, g - sent)
        torch.testing.assert_close(tuned, g - sent)

    def test_onebit_with_momentum(self, buffers: Buffers) -> None:
        g, momentum, scratch = buffers.gradient, buffers.momentum, torch.empty(NUMEL)
        ours, plain, tuned = (torch.zeros(NUMEL) for _ in range(3))
        scales = torch.zeros(1)
        lazy = (ours, ours, scales, scales, _native.SignScale.L1, 0, 1 - MOMENTUM, 1.0)
        nbytes, _ = _native.onebit_step(g, *lazy, buffers.room, momentum, MOMENTUM)
        payload = bytes(buffers.room[:nbytes])
        _native.onebit_settle(ours, scales, 0)
        for residual, (_, packed) in (
            (plain, torch_ops.plain_onebit_momentum_step(g, momentum, plain, MOMENTUM)),
            (tuned, torch_ops.tuned_onebit_momentum_step(g, momentum, tuned, MOMENTUM, scratch)),
        ):
            assert bytes(packed.numpy()) == payload[12:]
            torch.testing.assert_close(residual, ours)

    def test_onebit_with_sign_runs(self, buffers: Buffers) -> None:
        payloads = []
        for carried in ((buffers.answer, MOMENTUM), (None, MOMENTUM, 1.0, buffers.runs)):
            wanted, scales = torch.zeros(NUMEL), torch.zeros(1)
            lazy = (wanted, wanted, scales, scales, _native.SignScale.L1, 0, 1 - MOMENTUM, 1.0)
            nbytes, _ = _native.onebit_step(buffers.gradient, *lazy, buffers.room, *carried)
            payloads.append(bytes(buffers.room[:nbytes]))
        assert payloads[0] == payloads[1]

    def test_adamw(self, buffers: Buffers) -> None:
        g, start = buffers.gradient, (buffers.param, buffers.exp_avg, buffers.exp_avg_sq)
        ours, plain, tuned = ([x.clone() for x in start] for _ in range(3))
        for (param, *means), fused in ((plain, False), (tuned, True)):
            torch_ops.adamw(param, g, *means, fused=fused).step()
        param, *means = ours
        _native.adam_step(param, g, *means, beta1=0.9, beta2=0.999, **ADAM)
        torch.testing.assert_close(plain, ours)
        torch.testing.assert_close(tuned, ours)

    def test_dgc(self, buffers: Buffers) -> None:
        k, f32, sampled = 100, _native.Values.FLOAT32, _native.Select.SAMPLED
        g, start = buffers.gradient, torch.stack((buffers.dgc_velocity, buffers.dgc_residual))
        ours, plain, tuned = (start.clone() for _ in range(3))
        u, v = ours
        setting = (k, sampled, f32, 1.0, 1.0, MOMENTUM, False, True)
        _native.dgc_topk(g, u, u, v, v, *setting, buffers.room)
        u, v = plain
        torch_ops.plain_dgc_step(g, u, v, k, MOMENTUM)
        u, v = tuned
        torch_ops.tuned_dgc_step(g, u, v, k, MOMENTUM, torch.empty(NUMEL))
        torch.testing.assert_close(plain, ours)
        torch.testing.assert_close(tuned, ours)

    @pytest.mark.parametrize("k", [1, 10, 5000])
    def test_topk(self, buffers: Buffers, k: int) -> None:
        plain, _ = torch_ops.plain_topk(buffers.gradient, k)
        tuned, value = torch_ops.tuned_topk(buffers.gradient, k, torch.empty(NUMEL))
        assert set(plain.tolist()) == set(tuned.tolist())
        assert torch.equal(value, buffers.gradient[tuned])

    @pytest.mark.parametrize("bits", [2, 4, 8])
    def test_dither(self, buffers: Buffers, bits: int) -> None:
        codes = torch.arange(-1, 2, dtype=torch.int8).repeat(NUMEL)[:NUMEL]
        columns, words = (
            torch_ops._pack_columns(codes, bits),
            torch_ops._pack_words(codes.clone(), bits).view(torch.uint8),
        )
        assert torch.equal(columns, words)
        assert columns.numel() * 8 == bits * NUMEL
        scale = float(buffers.gradient.abs().max())
        assert float(torch_ops.plain_dither(buffers.gradient, bits)[0]) == scale
        tuned = torch_ops.tuned_dither(buffers.gradient, bits, torch.empty(NUMEL))
        assert float(tuned[0]) == scale
