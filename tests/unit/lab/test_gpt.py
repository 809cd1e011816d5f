"""The small GPT, and the text that it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thinwire as tw
from thinwire_lab.data.text import VOCABULARY, draw, read_corpus
from thinwire_lab.models.language import GPTSettings


def test_gpt_sees_no_later_token() -> None:
    net = GPTSettings(context=16, layers=1, heads=2, width=64).make()
    tokens = torch.arange(10).view(1, 10)
    changed = tokens.clone()
    changed[0, 6:] += 1
    assert torch.equal(net(tokens)[0, :6], net(changed)[0, :6])
    assert not torch.equal(net(tokens)[0, 6:], net(changed)[0, 6:])


def test_gpt_refuses_heads_that_do_not_divide_its_width() -> None:
    with pytest.raises(tw.ConfigError, match="multiple of heads"):
        GPTSettings(width=10, heads=4)


def test_corpus_is_bounded_and_the_same_every_time() -> None:
    corpus, again = read_corpus(max_nbytes=100_000), read_corpus(max_nbytes=100_000)
    assert torch.equal(again.training, corpus.training)
    assert torch.equal(again.held_out, corpus.held_out)
    assert corpus.training.numel() == 90_000
    assert corpus.held_out.numel() == 10_000
    assert corpus.training.max() < VOCABULARY


def test_corpus_takes_ascii_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, text in (("b.py", "second"), ("a.py", "first"), ("c.py", "ü"), ("d.txt", "no")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    corpus = read_corpus(tmp_path, held_out=0.0)
    assert bytes(corpus.training.tolist()) == b"firstsecond"


def test_missing_sources_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(tw.ThinwireError, match="no Python source files in"):
        read_corpus(tmp_path)


def test_too_short_a_text_is_refused() -> None:
    with pytest.raises(tw.ConfigError, match="expected more than 16"):
        draw(torch.zeros(16, dtype=torch.int64), 1, 16, torch.Generator())
