"""Types of the native module; native/kernels.h says what each function does.

Every ``Tensor`` here is flat, contiguous, float32 and on the CPU (``out`` of ``random_indices``:
int32). Encoders write to the front of ``out``, which is contiguous bytes with room for
the largest payload (else ValueError), and return the nbytes written, or None where the
input holds an inf or a nan; readers return None, or why they refuse.
"""

import enum
from collections.abc import Sequence

from torch import Tensor

Payload = bytes | bytearray | memoryview
Room = bytearray | memoryview

class Half(enum.Enum):
    FLOAT16 = 0
    BFLOAT16 = 1

class SignScale(enum.Enum):
    L1 = 0
    L2 = 1

class Select(enum.Enum):
    SAMPLED = 0
    RADIX = 1

class Values(enum.Enum):
    FLOAT32 = 0
    FLOAT16 = 1
    INT8 = 2

class UndoLog:
    """What steps have overwritten in a tensor since ``clear``."""

    def __init__(self) -> None: ...
    def clear(self) -> None: ...
    def undo(self, x: Tensor) -> None:
        """Make the tensor what it was, and clear."""

class Levels(enum.Enum):
    LINEAR = 0
    NATURAL = 1

class Norm(enum.Enum):
    MAX = 0
    L2 = 1

def float32_add(payload: Payload, out: Tensor, weight: float) -> str | None: ...
def float32_sum(payloads: Sequence[Payload], weight: float, out: Tensor) -> str | None: ...
def half_encode(kind: Half, x: Tensor, out: Room) -> int | None: ...
def half_decode(kind: Half, payload: Payload, out: Tensor) -> str | None: ...
def half_add(kind: Half, payload: Payload, out: Tensor, weight: float) -> str | None: ...
def onebit_max_nbytes(numel: int, block: int) -> int: ...
def onebit_scales(numel: int, block: int) -> int: ...
def onebit_encode(
    x: Tensor, scale: SignScale, block: int, out: Room, stretch: float = 1.0
) -> int | None: ...
def onebit_check(payload: Payload, numel: int) -> str | None: ...
def onebit_decode(payload: Payload, out: Tensor) -> str | None: ...
def onebit_add(payload: Payload, out: Tensor, weight: float) -> str | None: ...
def onebit_sum(payloads: Sequence[Payload], weight: float, out: Tensor) -> str | None: ...
def onebit_step(
    gradient: Tensor,
    wanted: Tensor,
    wanted_to: Tensor,
    scales: Tensor,
    scales_to: Tensor,
    scale: SignScale,
    block: int,
    gain: float,
    keep: float,
    out: Room,
    momentum: Tensor | None = None,
    factor: float = 0.0,
    stretch: float = 1.0,
    runs: Payload | None = None,
) -> tuple[int | None, float]: ...
def onebit_sum_step(
    payloads: Sequence[Payload],
    weight: float,
    wanted: Tensor,
    wanted_to: Tensor,
    scales: Tensor,
    scales_to: Tensor,
    scale: SignScale,
    block: int,
    keep: float,
    out: Room,
    stretch: float = 1.0,
) -> int | None: ...
def onebit_settle(wanted: Tensor, scales: Tensor, block: int) -> None: ...
def sign_runs_nbytes(numel: int) -> int: ...
def sign_runs_agree(runs: Payload, x: Tensor) -> bool: ...
def sparse_max_nbytes(numel: int, count: int, values: Values) -> int: ...
def topk_encode(x: Tensor, k: int, select: Select, values: Values, out: Room) -> int | None: ...
def residual_topk(
    gradient: Tensor,
    residual: Tensor,
    residual_to: Tensor,
    k: int,
    select: Select,
    values: Values,
    gain: float,
    keep: float,
    out: Room,
    clear: bool = False,
) -> tuple[int | None, float]: ...
def dgc_topk(
    gradient: Tensor,
    velocity: Tensor,
    velocity_to: Tensor,
    residual: Tensor,
    residual_to: Tensor,
    k: int,
    select: Select,
    values: Values,
    gain: float,
    keep: float,
    momentum: float,
    nesterov: bool,
    mask: bool,
    out: Room,
    clear: bool = False,
) -> tuple[int | None, float]: ...
def topk_sum_step(
    payloads: Sequence[Payload],
    weight: float,
    residual: Tensor,
    k: int,
    select: Select,
    values: Values,
    most_squares: float,
    log: UndoLog | None,
    out: Room,
) -> int | None: ...
def nonzero_encode(x: Tensor, out: Room) -> int | None: ...
def sparse_decode(payload: Payload, out: Tensor) -> str | None: ...
def sparse_add(payload: Payload, out: Tensor, weight: float) -> str | None: ...
def sparse_check(payload: Payload, numel: int) -> str | None: ...
def sparse_sum(payloads: Sequence[Payload], weight: float, out: Tensor) -> str | None: ...
def sparse_merge(
    payloads: Sequence[Payload], numel: int, weight: float, out: Room
) -> int | None: ...
def chunk_topk_max_nbytes(numel: int, ratio: float, bits: int) -> int: ...
def chunk_topk_encode(x: Tensor, ratio: float, bits: int, out: Room) -> int | None: ...
def chunk_topk_step(
    gradient: Tensor,
    residual: Tensor,
    residual_to: Tensor,
    ratio: float,
    bits: int,
    gain: float,
    keep: float,
    out: Room,
    clear: bool = False,
) -> tuple[int | None, float]: ...
def chunk_topk_decode(payload: Payload, out: Tensor) -> str | None: ...
def chunk_topk_add(payload: Payload, out: Tensor, weight: float) -> str | None: ...
def chunk_topk_check(payload: Payload, numel: int) -> str | None: ...
def chunk_topk_sum(payloads: Sequence[Payload], weight: float, out: Tensor) -> str | None: ...
def sampled_threshold(x: Tensor, ratio: float, seed: int) -> float: ...
def random_indices(seed: int, numel: int, out: Tensor) -> None: ...
def dither_max_nbytes(numel: int, bits: int, levels: Levels, norm: Norm) -> int: ...
def dither_encode(
    x: Tensor, bits: int, levels: Levels, norm: Norm, seed: int, out: Room
) -> int | None: ...
def dither_decode(payload: Payload, out: Tensor) -> str | None: ...
def dither_add(payload: Payload, out: Tensor, weight: float) -> str | None: ...
def adam_step(
    param: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    decay: float,
    beta1: float,
    beta2: float,
    eps: float,
    step_size: float,
    correction2_sqrt: float,
    l2: float,
) -> None: ...
def adam_momentum_step(
    param: Tensor,
    momentum: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    decay: float,
    eps: float,
    step_size: float,
    correction2_sqrt: float,
    l2: float,
    floor: float,
    block: int,
    limit: float,
    runs: Room | None = None,
) -> bool: ...
def all_finite(x: Tensor) -> bool: ...
def sum_abs(x: Tensor) -> float: ...
def sum_squares(x: Tensor) -> float: ...
def max_abs(x: Tensor) -> float: ...
def empty_bytearray(nbytes: int) -> bytearray: ...
def prefer_huge_pages(x: Tensor) -> None: ...
def crc32c(data: Payload, crc: int = 0) -> int: ...
def isa() -> str: ...
def set_isa(name: str) -> bool: ...
def can_run(name: str) -> bool: ...
def threads() -> int: ...
def set_threads(count: int) -> None: ...
