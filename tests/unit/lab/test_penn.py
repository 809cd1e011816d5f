"""Penn Treebank: words as numbers, and the set as it is published."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.lab.real_data import needs
from thinwire.errors import ThinwireError
from thinwire_lab.data.penn import END, SOURCE, read_penn, read_words


def test_words_are_numbered_as_they_come_and_lines_end_with_a_word() -> None:
    words = read_words(" a b a \n c \n", " b \n", " c a \n")
    assert words.vocabulary == ("a", "b", END, "c")
    assert words.train.tolist() == [0, 1, 0, 2, 3, 2]
    assert words.valid.tolist() == [1, 2]
    assert words.test.tolist() == [3, 0, 2]


def test_a_word_that_training_does_not_have_is_refused() -> None:
    with pytest.raises(ThinwireError, match=r"^test: the word 'z' is not in the training text$"):
        read_words(" a \n", " a \n", " z \n")


def test_what_is_missing_is_named_with_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ThinwireError) as caught:
        read_penn(tmp_path)
    assert all(name in str(caught.value) for name in SOURCE.md5)
    assert "simple-examples.tgz" in str(caught.value)
    assert str(tmp_path / "ptb") in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "ptb."])
def test_both_spellings_of_the_file_names_are_found(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "ptb").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / "ptb" / f"{prefix}{part}.txt").write_text(" a \n")
    with pytest.raises(ThinwireError, match=rf"ptb/{prefix}train\.txt is damaged or another file"):
        read_penn(tmp_path)


@needs("ptb")
def test_penn_treebank_as_published() -> None:
    words = read_penn()
    assert len(words.vocabulary) == 10_000
    assert [part.numel() for part in (words.train, words.valid, words.test)] == [
        929_589,
        73_760,
        82_430,
    ]
