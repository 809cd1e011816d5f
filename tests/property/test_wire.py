"""Laws of the wire: what is said is heard, and whatever arrives, nothing else can happen."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings, strategies as st

from thinwire import errors
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.frame import Frame, frame_nbytes, pack, unpack
from thinwire.wire.messages import (
    CatchUp,
    CaughtUp,
    Counted,
    Describe,
    Described,
    Join,
    Late,
    Leave,
    Message,
    Push,
    Reason,
    Refusal,
    Report,
    Update,
    Welcome,
    decode,
    encode,
)
from thinwire.wire.session import SENDS, Role, Session, State

untimed = settings(deadline=None)  # how long an example takes says nothing about the law

U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
POSITIVE = st.integers(1, (1 << 32) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
PAYLOAD = st.binary(max_size=40).map(lambda data: memoryview(data))
ENCODED = st.builds(EncodedBytes, U16, st.integers(0, 1 << 26), PAYLOAD)
ENTRY = st.builds(Entry, U32, ENCODED)
ENTRIES = st.lists(ENTRY, max_size=5, unique_by=lambda entry: entry.piece).map(
    lambda entries: tuple(sorted(entries, key=lambda entry: entry.piece))
)
PIECES = st.sets(U32, max_size=5).map(lambda pieces: tuple(sorted(pieces)))
RATE = st.floats(min_value=0.0, allow_infinity=False).map(abs)
REASON = st.sampled_from(Reason)
DIGEST = st.binary(min_size=32, max_size=32)

MESSAGE: st.SearchStrategy[Message] = st.one_of(
    st.builds(Join, POSITIVE, U32, DIGEST, U64),
    st.builds(Join, POSITIVE, U32, DIGEST, st.just(0), st.lists(U32, max_size=5).map(tuple)),
    st.builds(Welcome, U64, POSITIVE, U32),
    st.builds(Push, U64, RATE, ENTRIES),
    st.builds(Update, U64, ENTRIES),
    st.builds(Refusal, U64, st.sampled_from([Reason.STALE, Reason.LIMIT]), TEXT, PIECES),
    st.builds(Refusal, U64, REASON, TEXT),
    st.builds(CatchUp, U64),
    st.builds(CaughtUp, U64),
    st.builds(Counted, U64, PIECES),
    st.builds(Late, U64, PIECES),
    st.builds(Report, RATE),
    st.builds(Leave, REASON, TEXT),
    st.builds(
        lambda server, more, recipe, tensors, lead: Describe(
            server, server + more, recipe, tensors, lead
        ),
        st.integers(0, 1000),
        st.integers(1, 1000),
        TEXT,
        st.lists(st.builds(Described, TEXT, st.lists(U32, max_size=4).map(tuple)), max_size=4).map(
            tuple
        ),
        U64,
    ),
)
FRAME = st.builds(
    lambda message, run, epoch, worker, step: encode(
        message, run=run, epoch=epoch, worker=worker, step=step
    ),
    MESSAGE,
    U64,
    U32,
    U32,
    U64,
)


def to_bytes(frame: Frame) -> bytes:
    return b"".join(pack(frame))


@untimed
@given(MESSAGE, U64, U32, U32, U64)
def test_what_is_said_is_heard(
    message: Message, run: int, epoch: int, worker: int, step: int
) -> None:
    frame = encode(message, run=run, epoch=epoch, worker=worker, step=step)
    data = to_bytes(frame)
    assert frame_nbytes(memoryview(data)) == len(data)
    assert unpack(memoryview(data)) == frame
    assert decode(unpack(memoryview(data))) == message


@untimed
@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda rest: b"TWIR\x01" + rest))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    try:
        frame = unpack(memoryview(data))
    except errors.RemoteProtocolError:
        return
    assert to_bytes(frame) == data


@untimed
@given(FRAME, st.data())
def test_no_flipped_bit_is_accepted(frame: Frame, data: st.DataObject) -> None:
    damaged = bytearray(to_bytes(frame))
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        unpack(memoryview(damaged))
    except errors.RemoteProtocolError:
        return
    raise AssertionError(f"bit {bit} may be flipped unnoticed")


@st.composite
def damaged_frames(draw: st.DrawFn) -> Frame:
    """A frame whose body was changed, cut or extended before its checksum was made."""
    frame = draw(FRAME)
    body = bytearray(frame.body)
    start = draw(st.integers(0, len(body)))
    body[start : start + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    kind = draw(st.just(frame.kind) | st.integers(0, 255))
    return Frame(kind, frame.run, frame.epoch, frame.worker, frame.step, memoryview(body))


@untimed
@given(damaged_frames())
def test_any_body_is_the_one_encoding_of_a_message_or_refused(frame: Frame) -> None:
    try:
        message = decode(frame)
    except errors.RemoteProtocolError:
        return
    again = encode(message, run=frame.run, epoch=frame.epoch, worker=frame.worker, step=frame.step)
    assert to_bytes(again) == to_bytes(frame)


def lawful(session: Session, version: int) -> st.SearchStrategy[Message]:
    """What this side may say now."""
    messages: dict[type[Message], Message] = {
        Join: Join(4, 161, bytes(32), version=9),
        Welcome: Welcome(version=12, quorum=4, staleness=0),
        Push: Push(version, 0.1, (Entry(1, EncodedBytes(1, 1, memoryview(b"p"))),)),
        Update: Update(version, (Entry(1, EncodedBytes(1, 1, memoryview(b"u"))),)),
        Refusal: Refusal(version, Reason.STALE, "too old", (1,)),
        CatchUp: CatchUp(version),
        CaughtUp: CaughtUp(version),
        Counted: Counted(version, (0, 2)),
        Late: Late(version, (0, 2)),
        Report: Report(0.5),
        Leave: Leave(Reason.DONE, ""),
        Describe: Describe(0, 2, "dense", (Described("w", (3, 4)),)),
    }
    row = SENDS[session.role].get(session.state, {})
    return st.sampled_from([messages[cls] for cls in row])


@untimed
@given(st.data())
def test_lawful_ends_understand_each_other(data: st.DataObject) -> None:
    ends = {Role.WORKER: Session.of_worker(3), Role.SERVER: Session.of_server(run=7, epoch=2)}
    wire: dict[Role, deque[tuple[Message, bytes]]] = {role: deque() for role in Role}  # to whom
    for clock in range(10, 30):
        role = data.draw(st.sampled_from(Role))
        session, peer = ends[role], Role.SERVER if role is Role.WORKER else Role.WORKER
        hears: bool = data.draw(st.booleans()) or session.state not in SENDS[role]
        if wire[role] and hears:
            said, received = wire[role].popleft()
            assert session.receive(unpack(memoryview(received))) == said
        elif session.state in SENDS[role]:
            message = data.draw(lawful(session, clock))
            session.send(message, step=clock)
            wire[peer].append((message, to_bytes(session.encode(message, step=clock))))
    assert State.FAILED not in {session.state for session in ends.values()}


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Either end, new or ready."""
    worker, server = Session.of_worker(3), Session.of_server(run=7, epoch=2)
    if draw(st.booleans()):
        join, welcome = Join(4, 161, bytes(32), version=9), Welcome(12, 4, 0)
        worker.send(join)
        server.receive(worker.encode(join))
        server.send(welcome)
        worker.receive(server.encode(welcome))
    return draw(st.sampled_from([worker, server]))


@untimed
@given(sessions(), damaged_frames(), st.booleans())
def test_any_frame_is_heard_or_ends_the_session(
    session: Session, frame: Frame, addressed: bool
) -> None:
    if addressed:
        peer = 3 if session.role is Role.SERVER else 0xFFFFFFFF
        frame = Frame(frame.kind, session.run, session.epoch, peer, frame.step, frame.body)
    try:
        session.receive(frame)
    except errors.RemoteProtocolError:
        assert session.state is State.FAILED
