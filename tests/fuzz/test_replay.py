"""Every input in the corpus, without a fuzzer: what once was found is never found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.instrument import instrument
from tests.fuzz.make_corpus import CORPUS, SAMPLES
from tests.fuzz.readers import TARGETS

FILES = sorted(CORPUS.glob("*/*"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_replay(file: Path) -> None:
    TARGETS[file.parent.name](file.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_every_golden_sample_is_in_the_corpus_and_accepted(target: str) -> None:
    samples = SAMPLES[target]()
    assert samples
    for name, data in samples.items():
        assert (CORPUS / target / name).read_bytes() == data
        assert TARGETS[target](data), name


def test_every_target_has_a_fuzzer_and_a_corpus() -> None:
    fuzzers = {file.stem.removeprefix("fuzz_") for file in CORPUS.parent.glob("fuzz_*.py")}
    assert fuzzers == set(TARGETS) == {folder.name for folder in CORPUS.iterdir()}


def test_fuzzers_see_every_reader() -> None:
    """Without coverage a fuzzer runs, finds nothing, and nobody notices."""
    seen: set[str] = set()
    count = instrument("thinwire", lambda function: seen.add(function.__qualname__))
    assert count >= 100
    readers = {"unpack", "decode", "Session.receive", "Reader.entries", "RandomK.decode"}
    assert readers <= seen
