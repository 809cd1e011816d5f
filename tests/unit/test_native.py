"""The native module's edge: forks, environment variables, and tensors that it will not convert."""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import thinwire as tw
from tests.cases import ISAS
from tests.slow import first
from thinwire import _native
from thinwire.testing.tensors import make

pytestmark = pytest.mark.usefixtures("restored_kernels")

LARGE = 3 * 131072 + 5
DEADLINE_SECONDS = 60.0


def in_child(x: Tensor, connection: multiprocessing.connection.Connection) -> None:
    """Only native code: torch's own threads do not survive a fork."""
    connection.send_bytes(tw.OneBit().encode(x, seed=0))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_threads_work_again_after_a_fork() -> None:
    """A forked child has the pool's memory but none of its threads: waiting for them never ends."""
    _native.set_threads(2)
    x = make("normal", LARGE, seed=1)
    expected = tw.OneBit().encode(x, seed=0)
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        ours, childs = context.Pipe(duplex=False)
        child = context.Process(target=in_child, args=(x, childs), daemon=True)
        child.start()
        assert ours.poll(DEADLINE_SECONDS), "the child hangs"
        assert ours.recv_bytes() == bytes(expected)
        child.join(DEADLINE_SECONDS)
        assert child.exitcode == 0
        assert tw.OneBit().encode(x, seed=0) == expected  # and so does the parent


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


PRINT = "from thinwire import _native; print(_native.isa(), _native.threads())"


@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_chooses_the_instruction_set(isa: str) -> None:
    if not _native.can_run(isa):
        pytest.skip(f"this CPU has no {isa}")
    assert run(PRINT, THINWIRE_ISA=isa, THINWIRE_THREADS="3").stdout.split() == [isa, "3"]


def test_an_empty_variable_is_none() -> None:
    default = run(PRINT, THINWIRE_ISA="", THINWIRE_THREADS="")
    assert default.stdout.split()[0] == "avx512" or not _native.can_run("avx512")
    assert 1 <= int(default.stdout.split()[1]) <= 8


@pytest.mark.parametrize("isa", first(["sse2", "AVX2", "scalar "]))
def test_a_wrong_instruction_set_is_a_sentence(isa: str) -> None:
    failed = run(PRINT, THINWIRE_ISA=isa)
    assert failed.returncode != 0
    expected = "THINWIRE_ISA must be scalar, avx2, avx512 or neon, and one that this processor has"
    assert f"ImportError: {expected}" in failed.stderr


@pytest.mark.parametrize("threads", first(["0", "1025", "-1", "two", "2.5", "2 "]))
def test_a_wrong_number_of_threads_is_a_sentence(threads: str) -> None:
    failed = run(PRINT, THINWIRE_THREADS=threads)
    assert failed.returncode != 0
    assert "ImportError: THINWIRE_THREADS must be 1 to 1024" in failed.stderr


def test_an_instruction_set_that_is_not_there_is_not_chosen() -> None:
    before = _native.isa()
    assert not _native.can_run("sse2")
    assert not _native.set_isa("sse2")
    assert _native.isa() == before


def test_there_is_always_a_thread() -> None:
    _native.set_threads(0)
    assert _native.threads() == 1


L1, LINEAR = _native.SignScale.L1, _native.Levels.LINEAR
SAMPLED, WHOLE = _native.Select.SAMPLED, _native.Values.FLOAT32


ENCODERS: dict[str, Callable[[Tensor, memoryview], int | None]] = {
    "half": lambda x, out: _native.half_encode(_native.Half.FLOAT16, x, out),
    "onebit": lambda x, out: _native.onebit_encode(x, L1, 0, out),
    "onebit step": lambda x, out: _native.onebit_step(
        x, torch.zeros(8), torch.zeros(8), torch.zeros(1), torch.zeros(1), L1, 0, 1.0, 1.0, out
    )[0],
    "onebit step with momentum": lambda x, out: _native.onebit_step(
        x,
        torch.zeros(8),
        torch.zeros(8),
        torch.zeros(1),
        torch.zeros(1),
        L1,
        0,
        1.0,
        1.0,
        out,
        torch.ones(8),
        0.9,
    )[0],
    "onebit sum": lambda x, out: _native.onebit_sum_step(
        [tw.OneBit().encode(x, seed=0)],
        1.0,
        torch.zeros(8),
        torch.zeros(8),
        torch.zeros(1),
        torch.zeros(1),
        L1,
        0,
        1.0,
        out,
    ),
    "topk": lambda x, out: _native.topk_encode(x, 2, SAMPLED, WHOLE, out),
    "topk step": lambda x, out: _native.residual_topk(
        x, torch.zeros(8), torch.zeros(8), 2, SAMPLED, WHOLE, 1.0, 1.0, out
    )[0],
    "dgc step": lambda x, out: _native.dgc_topk(
        x,
        torch.zeros(8),
        torch.zeros(8),
        torch.zeros(8),
        torch.zeros(8),
        2,
        SAMPLED,
        WHOLE,
        1.0,
        1.0,
        0.9,
        False,
        True,
        out,
    )[0],
    "nonzero": _native.nonzero_encode,
    "sparse merge": lambda x, out: _native.sparse_merge(
        [tw.Nonzero().encode(x, seed=0)], 8, 1.0, out
    ),
    "dither": lambda x, out: _native.dither_encode(x, 4, LINEAR, _native.Norm.MAX, 0, out),
    "dither l2": lambda x, out: _native.dither_encode(x, 4, LINEAR, _native.Norm.L2, 0, out),
    "float32": lambda x, out: tw.Float32().encode_into(x, out, seed=0),
    "randomk": lambda x, out: tw.RandomK(0.5).encode_into(x, out, seed=0),
}
MOST_NBYTES = {
    "half": 16,
    "onebit": tw.OneBit().max_nbytes(8),
    "onebit step": tw.OneBit().max_nbytes(8),
    "onebit step with momentum": tw.OneBit().max_nbytes(8),
    "onebit sum": tw.OneBit().max_nbytes(8),
    "topk": tw.TopK(0.25).max_nbytes(8),
    "topk step": tw.TopK(0.25).max_nbytes(8),
    "dgc step": tw.TopK(0.25).max_nbytes(8),
    "nonzero": tw.Nonzero().max_nbytes(8),
    "sparse merge": tw.Nonzero().max_nbytes(8),
    "dither": tw.Dither(4).max_nbytes(8),
    "dither l2": tw.Dither(4, norm="l2").max_nbytes(8),
    "float32": 32,
    "randomk": tw.RandomK(0.5).max_nbytes(8),
}
READERS: dict[str, Callable[[Tensor], object]] = {
    "half": lambda x: _native.half_encode(_native.Half.FLOAT16, x, bytearray(99)),
    "onebit": lambda x: _native.onebit_encode(x, L1, 0, bytearray(99)),
    "topk": lambda x: _native.topk_encode(x, 1, SAMPLED, WHOLE, bytearray(99)),
    "nonzero": lambda x: _native.nonzero_encode(x, bytearray(99)),
    "dither": lambda x: _native.dither_encode(x, 4, LINEAR, _native.Norm.MAX, 0, bytearray(99)),
    "sum_abs": _native.sum_abs,
    "sum_squares": _native.sum_squares,
    "max_abs": _native.max_abs,
    "all_finite": _native.all_finite,
}
FOREIGN = {
    "strided": torch.ones(16)[::2],
    "float64": torch.ones(8, dtype=torch.float64),
    "bfloat16": torch.ones(8, dtype=torch.bfloat16),
    "int32": torch.ones(8, dtype=torch.int32),
    "matrix": torch.ones(2, 4),
    "negated": torch.ones(8, dtype=torch.complex64).conj().imag,
    "meta": torch.ones(8, device="meta"),
    "sparse": torch.ones(8).to_sparse(),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("reader", READERS)
def test_tensors_are_refused_not_converted(reader: str, kind: str) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        READERS[reader](FOREIGN[kind])


@pytest.mark.parametrize("encoder", ENCODERS)
def test_no_byte_is_written_outside_of_the_room(encoder: str) -> None:
    x = torch.arange(1, 9) - 4.5
    most = MOST_NBYTES[encoder]
    expected = bytearray(b"?" * most)
    nbytes = ENCODERS[encoder](x, memoryview(expected))
    for offset in range(9):
        memory = bytearray(b"?" * (most + 32))
        room = memoryview(memory)[offset : offset + most]
        assert ENCODERS[encoder](x, room) == nbytes
        assert room[:nbytes] == expected[:nbytes]
        assert set(memory[:offset] + memory[offset + most :]) == {ord("?")}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_room_that_is_too_small_is_refused(encoder: str) -> None:
    for nbytes in (0, MOST_NBYTES[encoder] - 1):
        memory = bytearray(b"?" * 128)
        with pytest.raises(ValueError, match=r"\bout\b"):
            ENCODERS[encoder](torch.ones(8), memoryview(memory)[:nbytes])
        assert set(memory) == {ord("?")}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_room_that_cannot_be_written_is_refused(encoder: str) -> None:
    with pytest.raises((BufferError, TypeError, ValueError)):
        ENCODERS[encoder](torch.ones(8), memoryview(bytes(128)))
    with pytest.raises((BufferError, TypeError, ValueError)):
        ENCODERS[encoder](torch.ones(8), memoryview(bytearray(256))[::2])


DECODERS: dict[str, tuple[Callable[[bytes, Tensor], object], bytes]] = {
    "half": (
        lambda payload, out: _native.half_decode(_native.Half.FLOAT16, payload, out),
        bytes(tw.Float16().encode(torch.ones(8), seed=0)),
    ),
    "onebit": (_native.onebit_decode, bytes(tw.OneBit().encode(torch.ones(8), seed=0))),
    "sparse": (_native.sparse_decode, bytes(tw.Nonzero().encode(torch.ones(8), seed=0))),
    "dither": (_native.dither_decode, bytes(tw.Dither(4).encode(torch.ones(8), seed=0))),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("decoder", DECODERS)
def test_nothing_is_decoded_into_a_copy(decoder: str, kind: str) -> None:
    decode, payload = DECODERS[decoder]
    with pytest.raises(TypeError, match="incompatible function arguments"):
        decode(payload, FOREIGN[kind])


@pytest.mark.parametrize("reader", READERS)
def test_any_flat_array_is_read(reader: str) -> None:
    for x in (torch.arange(8.0), torch.arange(9.0)[1:], torch.arange(16).view(torch.float32)[:8]):
        assert READERS[reader](x) == READERS[reader](x.numpy())  # type: ignore[arg-type]


@pytest.mark.parametrize("decoder", DECODERS)
def test_read_only_memory_is_not_written(decoder: str) -> None:
    decode, payload = DECODERS[decoder]
    frozen = np.zeros(8, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(TypeError):
        decode(payload, frozen)  # type: ignore[arg-type]  # any array will do
    assert not frozen.any()


@pytest.mark.parametrize("payload", [memoryview(bytes(16))[::2], "text", 5, None])
def test_payloads_are_contiguous_bytes(payload: object) -> None:
    for decode, _ in DECODERS.values():
        with pytest.raises((TypeError, BufferError)):
            decode(payload, torch.zeros(8))  # type: ignore[arg-type]  # the point


def test_sizes_that_do_not_fit_together_are_refused() -> None:
    gradient, residual = torch.ones(8), torch.zeros(7)
    room = bytearray(99)
    with pytest.raises(ValueError, match="arrays differ in size"):
        _native.residual_topk(gradient, residual, residual, 1, SAMPLED, WHOLE, 1.0, 1.0, room)
    with pytest.raises(ValueError, match="arrays differ in size"):
        _native.residual_topk(gradient, gradient, residual, 1, SAMPLED, WHOLE, 1.0, 1.0, room)
    lazy = (gradient, gradient, torch.zeros(1), torch.zeros(1), L1, 0)
    with pytest.raises(ValueError, match="arrays differ in size"):
        _native.onebit_step(gradient, *lazy, 1.0, 1.0, room, residual, 0.9)
    with pytest.raises(ValueError, match="k is larger than the array"):
        _native.topk_encode(gradient, 9, SAMPLED, WHOLE, room)
    with pytest.raises(ValueError, match="block is not a multiple of 64"):
        _native.onebit_encode(gradient, L1, 63, room)
    with pytest.raises(ValueError, match="bits out of range"):
        _native.dither_encode(gradient, 9, LINEAR, _native.Norm.MAX, 0, room)
    with pytest.raises(ValueError, match="more indices than elements"):
        _native.random_indices(0, 3, torch.empty(4, dtype=torch.int32))


def test_a_caller_that_flushes_subnormals_gets_the_same_bits() -> None:
    x = make("subnormal", 1000, seed=1)
    expected = [bytes(c.encode(x, seed=0)) for c in (tw.OneBit(), tw.TopK(0.1), tw.BFloat16())]
    try:
        assert torch.set_flush_denormal(True)
        found = [bytes(c.encode(x, seed=0)) for c in (tw.OneBit(), tw.TopK(0.1), tw.BFloat16())]
    finally:
        torch.set_flush_denormal(False)
    assert found == expected


@pytest.mark.parametrize("factor", [math.inf, -math.inf, math.nan, 1e300])
@pytest.mark.parametrize("numel", [1, 100, 1000])
def test_a_factor_that_is_not_finite_is_refused_and_nothing_is_written(
    factor: float, numel: int
) -> None:
    """Zeros beyond the end, times infinity, would be taken for numbers there."""
    gradient, out = torch.ones(numel), bytearray(10_000)
    room = torch.zeros(numel + 128)
    residual = room[:numel]
    topk = (_native.Select.SAMPLED, _native.Values.FLOAT32)
    step = (gradient, residual, residual, 1, *topk)
    assert _native.residual_topk(*step, 1.0, factor, out)[0] is None
    assert _native.residual_topk(*step, factor, 1.0, out)[0] is None
    velocity = torch.zeros(numel)
    dgc = (gradient, velocity, velocity, residual, residual, 1, *topk)
    assert _native.dgc_topk(*dgc, 1.0, 1.0, factor, False, True, out)[0] is None
    scales = torch.zeros(1)
    onebit = (gradient, residual, residual, scales, scales, L1, 0)
    assert _native.onebit_step(*onebit, 1.0, factor, out)[0] is None
    assert _native.onebit_step(*onebit, 1.0, 1.0, out, velocity, factor)[0] is None
    assert not room.any()
