"""Payloads written by any released version are read for ever, and written the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import thinwire as tw
from tests.cases import ISAS, same_bits
from tests.golden.make_payloads import CASES, FOLDER, SEED, main
from thinwire import _native
from thinwire.codec import registry

runnable = [
    pytest.param(
        isa, marks=pytest.mark.skipif(not _native.can_run(isa), reason=f"this CPU has no {isa}")
    )
    for isa in ISAS
]


@pytest.fixture
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _native.isa()
    assert _native.set_isa(request.param)
    yield request.param
    assert _native.set_isa(before)


def stored(name: str) -> tuple[Tensor, bytes, Tensor]:
    """The tensor, its payload, and what that decodes to."""
    tensors = np.load(FOLDER / f"{name}.npz", allow_pickle=False)
    payload = (FOLDER / f"{name}.bin").read_bytes()
    return torch.from_numpy(tensors["input"]), payload, torch.from_numpy(tensors["decoded"])


@pytest.mark.parametrize("isa", runnable, indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_golden_bytes_are_read_as_the_tensor_they_were(name: str, isa: str) -> None:
    _, payload, expected = stored(name)
    out = torch.full_like(expected, 7.0)
    registry.decode(CASES[name][0].wire_id, payload, out)
    assert same_bits(out, expected)


@pytest.mark.parametrize("isa", runnable, indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_the_tensor_is_written_as_its_golden_bytes(name: str, isa: str) -> None:
    x, payload, _ = stored(name)
    assert bytes(CASES[name][0].encode(x, seed=SEED)) == payload


def test_every_golden_file_is_tested() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {
        f"{name}.{suffix}" for name in CASES for suffix in ("bin", "npz")
    }


def test_every_codec_has_golden_bytes() -> None:
    assert {type(codec) for codec, _ in CASES.values()} == set(tw.codecs().values())


def test_both_index_codings_are_there_with_and_without_fillers() -> None:
    codings = {name: (FOLDER / f"{name}.bin").read_bytes()[4] for name in CASES if "gap16" in name}
    assert set(codings.values()) == {0}
    for name in codings:
        entries = int.from_bytes((FOLDER / f"{name}.bin").read_bytes()[:4], "little")
        assert entries > int((stored(name)[2] != 0).sum())
    assert (FOLDER / "topk-float32.bin").read_bytes()[4] > 0


def test_the_writer_never_writes_twice() -> None:
    before = {path.name: path.stat().st_mtime_ns for path in FOLDER.iterdir()}
    main()
    assert {path.name: path.stat().st_mtime_ns for path in FOLDER.iterdir()} == before
