"""Writes the golden bytes of messages that have none yet: ``python -m tests.golden.make_messages``.

Golden bytes are read for ever, so an existing file is never written again.
"""

from __future__ import annotations

from pathlib import Path

from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.frame import SERVER, Frame, pack
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
    encode,
)

FOLDER = Path(__file__).parent / "messages"

_DENSE = Entry(0, EncodedBytes(1, 2, memoryview(bytes.fromhex("0000803f000000c0"))))
_SPARSE = Entry(7, EncodedBytes(0x0102, 1000, memoryview(bytes.fromhex("0a0bff"))))
_NOTHING = Entry(0xFFFFFFFF, EncodedBytes(0xFFFF, 0, memoryview(b"")))

FROM_WORKER: dict[str, Message] = {
    "join": Join(workers=4, pieces=161, digest=bytes(range(32)), version=9),
    "join-first": Join(
        workers=4, pieces=161, digest=bytes(range(32)), version=0, checksums=(0xE3069283, 0)
    ),
    "push": Push(version=9, learning_rate=0.1, entries=(_DENSE, _SPARSE, _NOTHING)),
    "push-empty": Push(version=0, learning_rate=0.0, entries=()),
    "catch-up": CatchUp(version=0x0102030405060708),
    "leave-worker": Leave(Reason.DONE, ""),
    "report": Report(owed=0.75),
    "describe": Describe(
        1, 2, "dgc", (Described("fc.weight", (10, 784)), Described("é", ())), lead=0x55
    ),
}
FROM_SERVER: dict[str, Message] = {
    "welcome": Welcome(version=12, quorum=3, staleness=2),
    "update": Update(version=10, entries=(_DENSE, _SPARSE)),
    "refusal-join": Refusal(12, Reason.DIGEST, "the recipe is onebit, yours is top-k"),
    "refusal-push": Refusal(12, Reason.STALE, "3 versions behind, 2 allowed", (0, 7, 0xFFFFFFFF)),
    "counted": Counted(version=12, pieces=(0, 7)),
    "caught-up": CaughtUp(version=11),
    "late": Late(version=13, workers=(0, 2)),
    "leave-server": Leave(Reason.LOST, "worker 2 is gone since step 41 · naïve"),
}
MESSAGES: dict[str, Message] = FROM_WORKER | FROM_SERVER


def frame_of(name: str) -> Frame:
    """The frame that the golden file ``name`` holds."""
    message = MESSAGES[name]
    worker = 3 if name in FROM_WORKER else SERVER
    epoch = 0 if isinstance(message, Join | Describe) else 2
    step = 41 if name in FROM_WORKER or isinstance(message, Refusal | Counted) else 0
    return encode(message, run=0x1122334455667788, epoch=epoch, worker=worker, step=step)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in MESSAGES:
        path = FOLDER / f"{name}.bin"
        if not path.exists():
            path.write_bytes(b"".join(pack(frame_of(name))))


if __name__ == "__main__":
    main()
