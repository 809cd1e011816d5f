"""wire/hello.py: any bytes are a hello, the beginning of one, or none, and never more is read."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from thinwire.errors import RemoteProtocolError
from thinwire.wire.hello import (
    Hello,
    HelloReader,
    Word,
    missing_nbytes,
    unpack_hello,
    word_for,
)

HEAD_NBYTES = 12
BEGINNINGS = st.one_of(
    st.binary(max_size=40),
    st.binary(max_size=40).map(lambda tail: b"thinwire" + tail),
    st.binary(max_size=40).map(lambda tail: b"thinwire\x01" + tail),
)


@given(st.sampled_from(Word), st.binary(max_size=2000), st.binary(max_size=30))
def test_what_was_packed_is_read_and_not_a_byte_more(
    word: Word, certificate: bytes, following: bytes
) -> None:
    hello = Hello(word, certificate)
    data, read = hello.pack() + following, b""
    while missing := missing_nbytes(read):
        read += data[len(read) : len(read) + missing]
    assert data[len(read) :] == following
    assert unpack_hello(read) == hello


@given(BEGINNINGS)
@example(b"thinwire\x01\x00\xff\xff")
@example(b"thinwire\x02\x00\x00\x00")
def test_any_bytes_are_a_hello_its_beginning_or_refused(data: bytes) -> None:
    """Read as they come, as a peer does."""
    read = b""
    try:
        while missing := missing_nbytes(read):
            assert 0 < missing <= max(HEAD_NBYTES, 1 << 13)
            if len(read) + missing > len(data):
                return  # it lacks something
            read += data[len(read) : len(read) + missing]
        hello = unpack_hello(read)
    except RemoteProtocolError:
        return
    assert read[:8] == b"thinwire"
    assert hello.word is Word.OTHER_VERSION or hello.pack() == read


@given(st.integers(0, 7), st.integers(1, 255))
def test_a_wrong_byte_is_seen_as_soon_as_it_comes(place: int, change: int) -> None:
    data = bytearray(Hello(Word.TLS).pack()[: place + 1])
    assert missing_nbytes(bytes(data)) > 0
    data[place] ^= change
    with pytest.raises(RemoteProtocolError, match="is no hello of Thinwire"):
        missing_nbytes(bytes(data))


def test_a_long_certificate_is_refused_before_it_comes() -> None:
    most = 1 << 13
    head = Hello(Word.TLS, bytes(most)).pack()[:HEAD_NBYTES]
    assert missing_nbytes(head) == most
    with pytest.raises(RemoteProtocolError, match=f"its certificate has {most + 1} bytes"):
        missing_nbytes(head[:10] + (most + 1).to_bytes(2, "little"))


def test_another_version_is_told_apart_whatever_it_says() -> None:
    assert unpack_hello(b"thinwire\x02\x63\x00\x00") == Hello(Word.OTHER_VERSION)
    with pytest.raises(RemoteProtocolError, match="its hello has the word 99"):
        unpack_hello(b"thinwire\x01\x63\x00\x00")


@given(st.sampled_from(Word), st.binary(max_size=200), st.lists(st.integers(0, 50)))
def test_a_reader_goes_on_where_the_socket_had_no_more(
    word: Word, certificate: bytes, sizes: list[int]
) -> None:
    data, reader = Hello(word, certificate).pack(), HelloReader()
    ends = iter([*sizes, len(data)])
    at = end = 0

    def recv(nbytes: int) -> bytes:
        nonlocal at
        if at == end:
            raise BlockingIOError
        part = data[at : min(end, at + nbytes)]
        at += len(part)
        return part

    while True:
        try:
            assert reader.read(recv) == Hello(word, certificate)
            return
        except BlockingIOError:
            end = min(len(data), end + next(ends))


def test_a_hello_that_ends_in_the_middle_is_an_ended_connection() -> None:
    parts = iter([b"thin", b""])
    with pytest.raises(ConnectionError, match="the connection ended"):
        HelloReader().read(lambda _: next(parts))


@pytest.mark.parametrize(
    ("said", "has_keys", "is_known", "answer"),
    [
        (Word.PLAIN, False, False, Word.PLAIN),
        (Word.TLS, False, False, Word.HAS_NO_KEYS),
        (Word.PLAIN, True, False, Word.NEEDS_KEYS),
        (Word.TLS, True, False, Word.UNKNOWN_KEY),
        (Word.TLS, True, True, Word.TLS),
        (Word.OTHER_VERSION, False, False, Word.OTHER_VERSION),
        (Word.OTHER_VERSION, True, True, Word.OTHER_VERSION),
    ],
)
def test_a_server_says_what_does_not_fit(
    said: Word, has_keys: bool, is_known: bool, answer: Word
) -> None:
    assert word_for(Hello(said), has_keys=has_keys, is_known=is_known) is answer
