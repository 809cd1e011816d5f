"""The command line in a process of its own, with its output in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

THINWIRE = str(Path(sys.executable).parent / "thinwire")


@contextmanager
def running(*command: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
