"""CIFAR-10: the binary form, and the set as it is published."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.unit.lab.real_data import needs
from thinwire.errors import ThinwireError
from thinwire_lab.data.cifar import SOURCE, read_batch, read_cifar, standardised

RECORD = bytes([3]) + bytes(range(256)) * 12


def test_a_record_is_a_label_and_three_colours() -> None:
    pictures = read_batch(RECORD + bytes([9]) + bytes(3072), name="f", count=2)
    assert pictures.labels.tolist() == [3, 9]
    assert pictures.pixels.shape == (2, 3, 32, 32)
    assert bytes(pictures.pixels[0].flatten().tolist()) == RECORD[1:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (RECORD[:-1], "f: 3072 bytes, expected 3073"),
        (RECORD + b"\0", "f: 3074 bytes, expected 3073"),
        (b"\x0a" + RECORD[1:], "f: label 10, expected 0 to 9"),
    ],
)
def test_another_file_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ThinwireError, match=f"^{re.escape(message)}$"):
        read_batch(content, name="f", count=1)


def test_what_is_missing_is_named_with_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ThinwireError) as caught:
        read_cifar(tmp_path)
    assert all(name in str(caught.value) for name in SOURCE.md5)
    assert "https://www.cs.toronto.edu" in str(caught.value)
    assert str(tmp_path / "cifar-10-batches-bin") in str(caught.value)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / SOURCE.name).mkdir()
    for name in SOURCE.md5:
        (tmp_path / SOURCE.name / name).write_bytes(RECORD)
    with pytest.raises(ThinwireError, match=r"data_batch_1\.bin is damaged or another file: md5"):
        read_cifar(tmp_path)


@needs("cifar-10-batches-bin")
def test_cifar_as_published() -> None:
    data = read_cifar()
    assert data.training.pixels.shape == (50_000, 3, 32, 32)
    assert data.training.pixels.dtype == torch.uint8
    assert data.training.labels.bincount().tolist() == [5000] * 10
    assert data.test.labels.bincount().tolist() == [1000] * 10
    some = standardised(data.training.pixels[::10])
    assert some.mean(dim=(0, 2, 3)).abs().max() < 0.02
    assert (some.std(dim=(0, 2, 3)) - 1).abs().max() < 0.02
