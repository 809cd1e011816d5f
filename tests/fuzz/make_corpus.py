"""Writes the samples that fuzzing starts from: ``python -m tests.fuzz.make_corpus``.

They are the golden frames and payloads. Inputs that once showed a bug are put beside them by hand.
"""

from __future__ import annotations

from pathlib import Path

from tests.golden import make_messages, make_payloads
from thinwire.wire.frame import HEADER_NBYTES, SERVER, unpack

CORPUS = Path(__file__).parent / "corpus"
MAX_NBYTES = 1 << 11
"""Small samples: mutations of large ones rarely meet a field."""


def frames() -> dict[str, bytes]:
    samples = {}
    for file in sorted(make_messages.FOLDER.glob("*.bin")):
        data = file.read_bytes()
        frame = unpack(memoryview(data))
        first = 3 if frame.worker == SERVER else 1
        samples[f"{file.stem}-frame"] = b"\0" + data
        samples[f"{file.stem}-body"] = bytes([first, frame.kind]) + data[HEADER_NBYTES:]
    return samples


def payloads() -> dict[str, bytes]:
    samples = {}
    for name, (codec, x) in make_payloads.CASES.items():
        payload = (make_payloads.FOLDER / f"{name}.bin").read_bytes()
        if len(payload) <= MAX_NBYTES and x.numel() < 1 << 16:
            samples[name] = bytes([codec.wire_id]) + x.numel().to_bytes(2, "little") + payload
    return samples


SAMPLES = {"frames": frames, "payloads": payloads}


def main() -> None:
    for target, samples in SAMPLES.items():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for name, data in samples().items():
            file = CORPUS / target / name
            if not file.exists():
                file.write_bytes(data)


if __name__ == "__main__":
    main()
