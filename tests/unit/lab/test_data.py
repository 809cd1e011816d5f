"""Data sets: what is missing or damaged is named, and nothing else gets through."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import struct
from pathlib import Path

import pytest
import torch

from thinwire.errors import ConfigError, ThinwireError
from thinwire_lab.data.fashion import SOURCE, read_fashion, read_idx
from thinwire_lab.data.files import VARIABLE, Pictures, Source

SHAPE = (3, 2, 2)
ELEMENTS = bytes(range(12))


def idx(shape: tuple[int, ...] = SHAPE, elements: bytes = ELEMENTS, kind: int = 8) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape) + elements


def source(**files: bytes) -> Source:
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    return Source("set", "https://example.org/set", md5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    return tmp_path


def test_idx_gives_the_elements_in_their_shape() -> None:
    found = read_idx(gzip.compress(idx()), SHAPE, name="f")
    assert torch.equal(found, torch.arange(12, dtype=torch.uint8).view(SHAPE))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(kind=9), "f: magic number 00000903, expected 00000803"),
        (idx((3, 4)) + bytes(4), "f: magic number 00000802, expected 00000803"),
        (b"\1" + idx()[1:], "f: magic number 01000803, expected 00000803"),
        (idx((2, 3, 2)), "f: dimensions (2, 3, 2), expected (3, 2, 2)"),
        (idx((2**32 - 1, 2, 2)), "f: dimensions (4294967295, 2, 2), expected (3, 2, 2)"),
        (idx(elements=ELEMENTS[:-1]), "f: 27 bytes after unpacking, expected 28"),
        (idx(elements=bytes(13)), "f: more bytes after unpacking, expected 28"),
        (idx(elements=bytes(10**6)), "f: more bytes after unpacking, expected 28"),
        (b"", "f: 0 bytes after unpacking, expected 28"),
    ],
)
def test_another_idx_file_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ThinwireError, match=f"^{re.escape(message)}$"):
        read_idx(gzip.compress(content), SHAPE, name="f")


def test_every_cut_and_every_flipped_byte_of_the_gzip_file_is_refused_or_harmless() -> None:
    whole = gzip.compress(idx(), mtime=0)
    expected = read_idx(whole, SHAPE, name="f")
    for cut in range(len(whole)):
        with pytest.raises(ThinwireError, match=r"^f: "):
            read_idx(whole[:cut], SHAPE, name="f")
    with pytest.raises(ThinwireError, match="something follows"):
        read_idx(whole + b"\0", SHAPE, name="f")
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        try:
            found = read_idx(bytes(damaged), SHAPE, name="f")
        except ThinwireError:
            continue
        assert torch.equal(found, expected)  # the time and the like in the gzip header


def test_all_files_are_read(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / "set" / name).write_bytes(name.encode())
    assert source(a=b"a", b=b"b").read(folder) == {"a": b"a", "b": b"b"}


def test_missing_files_are_named_with_where_to_get_and_put_them(folder: Path) -> None:
    (folder / "set" / "b").write_bytes(b"b")
    expected = f"put a, c from https://example.org/set into {folder / 'set'}"
    with pytest.raises(ThinwireError, match=f"^{re.escape(expected)}$"):
        source(a=b"a", b=b"b", c=b"c").read(folder)


def test_a_file_with_another_checksum_is_refused(folder: Path) -> None:
    (folder / "set" / "a").write_bytes(b"A")
    with pytest.raises(ThinwireError, match="set/a is damaged or another file: md5 7fc562"):
        source(a=b"a").read(folder)


def test_the_folder_is_the_given_one_then_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "/elsewhere")
    two = source(a=b"1", b=b"2")
    assert two.folder(tmp_path) == tmp_path / "set"
    assert two.folder() == Path("/elsewhere/set")
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(ConfigError) as caught:
        two.folder()
    assert str(caught.value) == (
        "no folder of data sets is given: put a, b from https://example.org/set into a folder "
        "DIR/set, and give --data DIR, or set $THINWIRE_DATA to DIR"
    )


def test_without_fashion_mnist_all_four_files_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ThinwireError) as caught:
        read_fashion(tmp_path)
    assert all(name in str(caught.value) for name in SOURCE.md5)
    assert str(tmp_path / "fashion-mnist") in str(caught.value)


def test_drawing_depends_on_the_generator_alone() -> None:
    pictures = Pictures(torch.arange(50.0).view(50, 1, 1, 1), torch.arange(50))
    first, second = (pictures.draw(20, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first.labels, second.labels)
    assert torch.equal(first.pixels.flatten().long(), first.labels)
    assert len(set(first.labels.tolist())) > 10


@pytest.mark.skipif(VARIABLE not in os.environ, reason="needs Fashion-MNIST in $THINWIRE_DATA")
def test_fashion_mnist_as_published() -> None:
    data = read_fashion()
    assert data.training.pixels.shape == (60_000, 1, 28, 28)
    assert data.test.pixels.shape == (10_000, 1, 28, 28)
    assert data.training.labels.bincount().tolist() == [6000] * 10
    assert data.test.labels.bincount().tolist() == [1000] * 10
    assert abs(float(data.training.pixels.mean())) < 1e-3
    assert abs(float(data.training.pixels.std()) - 1) < 1e-3
