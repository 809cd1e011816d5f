"""What the extension must do on every supported Python, also where there is no torch.

``python tests/native_smoke.py FILE`` loads that build of the extension and tries a case of each
family of its functions. ``scripts/build-pythons`` runs it with every Python it finds. The other
tests ask, on one Python, whether results are right in all cases.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import platform
import struct
import sys
import types
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

NUMEL = 200
X = [(-1.5, 0.0, 0.25, 3.0)[i % 4] * (1 + i // 64) for i in range(NUMEL)]


def floats(values: Iterable[float]) -> array[float]:
    return array("f", values)


def zeros(numel: int = NUMEL) -> array[float]:
    return floats([0.0] * numel)


class Tensor:
    """What the extension asks of a flat torch tensor, for Pythons that have no torch."""

    dtype = "float32"
    is_cpu = True

    def __init__(self, values: Iterable[float]) -> None:
        self._memory = floats(values)

    def dim(self) -> int:
        return 1

    def is_contiguous(self) -> bool:
        return True

    def is_neg(self) -> bool:
        return False

    def numel(self) -> int:
        return len(self._memory)

    def data_ptr(self) -> int:
        return self._memory.buffer_info()[0]

    def tolist(self) -> list[float]:
        return self._memory.tolist()


def make_tensor(values: list[float]) -> Any:
    """A torch tensor, or what stands in for one."""
    torch: Any = sys.modules["torch"]
    return torch.tensor(values) if hasattr(torch, "tensor") else torch.Tensor(values)


def find_torch() -> str:
    try:
        import torch
    except ModuleNotFoundError:
        stand_in = types.ModuleType("torch")
        vars(stand_in).update(Tensor=Tensor, float32=Tensor.dtype, int32="int32")
        sys.modules["torch"] = stand_in
        return "no torch"
    return f"torch {torch.__version__}"


def load_extension(path: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader("_native", path)
    spec = importlib.util.spec_from_file_location("_native", path, loader=loader)
    assert spec is not None, path
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def payload_of(encode: Callable[[bytearray], int | None], most_nbytes: int) -> bytes:
    room = bytearray(most_nbytes)
    nbytes = encode(room)
    assert nbytes is not None
    assert nbytes <= most_nbytes
    return bytes(room[:nbytes])


def check_crc32c(native: Any) -> None:
    data = b"123456789"
    assert native.crc32c(data) == 0xE3069283  # the check value that everyone gives for CRC32C
    assert native.crc32c(bytearray(data[5:]), native.crc32c(memoryview(data)[:5])) == 0xE3069283


def check_dense(native: Any) -> None:
    for kind in (native.Half.FLOAT16, native.Half.BFLOAT16):
        payload = payload_of(partial(native.half_encode, kind, floats(X)), 2 * NUMEL)
        out = zeros()
        assert native.half_decode(kind, payload, out) is None
        assert out.tolist() == X  # all of them have few enough bits
        assert native.half_add(kind, payload, out, 2.0) is None
        assert out.tolist() == [3 * x for x in X]
    out = zeros()
    assert native.float32_sum([floats(X).tobytes()] * 2, 0.5, out) is None
    assert out.tolist() == X


def check_sign(native: Any) -> None:
    x = [1.5 if i % 3 else -1.5 for i in range(NUMEL)]
    scale, most = native.SignScale.L1, native.onebit_max_nbytes(NUMEL, 0)
    payload = payload_of(partial(native.onebit_encode, floats(x), scale, 0), most)
    out = zeros()
    assert native.onebit_decode(payload, out) is None
    assert out.tolist() == x
    assert native.onebit_sum([payload, payload], 0.5, out) is None
    assert out.tolist() == x
    wanted, scales = zeros(), zeros(native.onebit_scales(NUMEL, 0))
    step = (floats(x), wanted, wanted, scales, scales, scale, 0, 1.0, 1.0)
    assert payload_of(lambda room: native.onebit_step(*step, room)[0], most) == payload
    native.onebit_settle(wanted, scales, 0)
    assert wanted.tolist() == [0.0] * NUMEL  # nothing was lost
    scales[0] = 0.0
    step = (zeros(), *step[1:])
    carry = (floats(2 * v for v in x), 0.5)
    assert payload_of(lambda room: native.onebit_step(*step, room, *carry)[0], most) == payload


def check_sign_runs(native: Any) -> None:
    numel, block, scale = 65, 64, native.SignScale.L1
    x = [0.5] * 64 + [-2.0]
    runs = struct.pack("<QfQf", 0, 0.5, 1, 2.0)
    assert native.sign_runs_nbytes(numel) == len(runs)
    assert native.sign_runs_agree(runs, floats(x))
    assert not native.sign_runs_agree(runs, floats([0.0] * numel))
    lazy = [zeros(size) for size in (numel, numel, 2, 2)]
    step = (zeros(numel), *lazy, scale, block, 1.0, 1.0)
    most = native.onebit_max_nbytes(numel, block)
    carried = None, 1.0, 1.0, runs
    payload = payload_of(lambda room: native.onebit_step(*step, room, *carried)[0], most)
    assert payload == payload_of(partial(native.onebit_encode, floats(x), scale, block), most)


def check_sparse(native: Any) -> None:
    most = native.sparse_max_nbytes(NUMEL, NUMEL, native.Values.FLOAT32)
    payload = payload_of(partial(native.nonzero_encode, floats(X)), most)
    out = zeros()
    assert native.sparse_decode(payload, out) is None
    assert out.tolist() == X
    merged = payload_of(partial(native.sparse_merge, [payload, payload], NUMEL, 0.5), most)
    assert merged == payload
    indices = array("i", [0] * 50)
    native.random_indices(7, NUMEL, indices)
    assert len({i for i in indices if 0 <= i < NUMEL}) == 50


def check_topk(native: Any) -> None:
    largest = sorted(X, key=abs)[-3:]
    select, values = native.Select.SAMPLED, native.Values.FLOAT32
    most = native.sparse_max_nbytes(NUMEL, 3, values)
    payload = payload_of(partial(native.topk_encode, floats(X), 3, select, values), most)
    out = zeros()
    assert native.sparse_decode(payload, out) is None
    assert sorted(filter(None, out), key=abs) == largest
    left = zeros()
    step = (floats(X), left, left, 3, select, values, 1.0, 1.0)
    assert payload_of(lambda room: native.residual_topk(*step, room)[0], most) == payload
    assert [a + b for a, b in zip(left, out, strict=True)] == X
    state = (floats(X), zeros(), zeros(), zeros(), zeros(), 3, select, values)
    dgc = (*state, 1.0, 1.0, 0.5, False, True)
    assert payload_of(lambda room: native.dgc_topk(*dgc, room)[0], most) == payload


def check_undo(native: Any) -> None:
    select, values = native.Select.RADIX, native.Values.FLOAT32
    most = native.sparse_max_nbytes(NUMEL, NUMEL, values)
    push = payload_of(partial(native.nonzero_encode, floats(X)), most)
    residual, log = floats(X), native.UndoLog()
    sum_step = ([push, push], 0.5, residual, 3, select, values, 1e30, log)
    assert payload_of(partial(native.topk_sum_step, *sum_step), most)
    assert residual.tolist() != X
    log.undo(residual)
    assert residual.tolist() == X


def check_dither(native: Any) -> None:
    x = [(4.0, 0.0, -4.0)[i % 3] for i in range(NUMEL)]  # levels, so that chance changes nothing
    for norm in (native.Norm.MAX, native.Norm.L2):
        settings = (4, native.Levels.LINEAR, norm)
        most = native.dither_max_nbytes(NUMEL, *settings)
        payload = payload_of(partial(native.dither_encode, floats(x), *settings, 3), most)
        out = zeros()
        assert native.dither_decode(payload, out) is None
        if norm == native.Norm.MAX:
            assert out.tolist() == x
        assert all(a * b > 0.0 or b == 0.0 for a, b in zip(x, out, strict=True))


def check_adam(native: Any) -> None:
    ones = [1.0] * NUMEL
    factors = {"decay": 0.5, "eps": 0.0, "step_size": 0.25, "correction2_sqrt": 1.0, "l2": 0.0}
    param, mean, square = floats(X), zeros(), zeros()
    native.adam_step(param, floats(ones), mean, square, beta1=0.5, beta2=0.0, **factors)
    assert (mean.tolist(), square.tolist()) == ([0.5] * NUMEL, ones)
    assert param.tolist() == [0.5 * x - 0.125 for x in X]
    param = floats(X)
    native.adam_momentum_step(
        param, floats(ones), mean, square, floor=0.5, block=64, limit=0.5, **factors
    )
    assert mean.tolist() == ones
    assert param.tolist() == [0.5 * x - 0.125 for x in X]


def check_reductions(native: Any) -> None:
    assert native.all_finite(floats(X))
    assert not native.all_finite(floats([1.0, float("nan")]))
    assert native.max_abs(floats(X)) == max(map(abs, X))
    assert native.sum_squares(floats([3.0, 4.0])) == 25.0
    assert native.sum_abs(floats([3.0, -4.0])) == 7.0


def check_tensors(native: Any) -> None:
    x = make_tensor(X)
    assert native.sum_abs(x) == native.sum_abs(floats(X))
    payload = floats(X).tobytes()
    assert native.float32_add(payload, x, -0.5) is None
    assert x.tolist() == [0.5 * v for v in X]


def check_refusals(native: Any) -> None:
    assert native.half_encode(native.Half.FLOAT16, floats([float("inf")]), bytearray(2)) is None
    assert native.onebit_check(b"", NUMEL)
    assert native.float32_add(bytes(7), zeros(2), 1.0) == "nbytes: found 7, expected 8"
    for refused, arguments, error in (
        (native.sum_abs, (array("d", X),), TypeError),
        (native.onebit_decode, (b"", memoryview(bytes(8)).cast("f")), TypeError),
        (native.nonzero_encode, (floats(X), bytearray(1)), ValueError),
    ):
        try:
            refused(*arguments)
        except error:
            continue
        raise AssertionError(f"{refused} accepted {arguments}")


def check_settings(native: Any) -> None:
    most = native.onebit_max_nbytes(NUMEL, 64)
    payloads = set()
    for isa in filter(native.can_run, ("scalar", "avx2", "avx512", "neon")):
        assert native.set_isa(isa)
        assert native.isa() == isa
        encode = partial(native.onebit_encode, floats(X), native.SignScale.L2, 64)
        payloads.add(payload_of(encode, most))
    assert len(payloads) == 1
    native.set_threads(2)
    assert native.threads() == 2
    assert len(native.empty_bytearray(10)) == 10


CHECKS = [value for name, value in sorted(vars().items()) if name.startswith("check_")]


def main(path: str) -> None:
    torch = find_torch()
    native = load_extension(path)
    for check in CHECKS:
        check(native)
    print(f"  Python {platform.python_version()}, {torch}: {len(CHECKS)} checks of {path} passed")


if __name__ == "__main__":
    main(sys.argv[1])
