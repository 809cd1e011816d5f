"""A codec from another package: installed for real, found, lawful, and used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "examples" / "custom_codec"
DEADLINE_SECONDS = 100.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip put the example package into. Nothing is downloaded."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    shutil.copytree(SOURCE, source, dirs_exist_ok=True)  # building leaves files in the source
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    done = subprocess.run(
        [*command, str(source)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


def run(installed: Path | None, code: str) -> str:
    """What ``code`` prints in a new process that sees the installed package, or does not."""
    environment = {**os.environ, "PYTHONPATH": str(installed or "")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_listed_once_it_is_installed(installed: Path) -> None:
    code = "import thinwire as tw; print('ternary' in tw.codecs(), len(tw.codecs()))"
    assert run(None, code) == "False 9"
    assert run(installed, code) == "True 10"


def test_it_keeps_the_laws(installed: Path) -> None:
    code = (
        "import thinwire as tw; from thinwire.testing import check_codec;"
        "check_codec(tw.make_codec('ternary')); print('lawful')"
    )
    assert run(installed, code) == "lawful"


def test_it_compresses(installed: Path) -> None:
    code = """
import torch
import thinwire as tw

codec = tw.make_codec("ternary")
x = torch.linspace(-1, 1, 1001)
sent = tw.Compressor(codec, tw.NoFeedback()).compress("w", x, step=0)
assert sent.wire_id == 0x8001
assert sent.nbytes == 4 + 201
assert sorted(set(sent.decode().tolist())) == [-1.0, 0.0, 1.0]
mean = sum(tw.Encoded(0x8001, 1001, codec.encode(x, seed=s)).decode() for s in range(400)) / 400
assert float((mean - x).abs().max()) < 4 * 0.5 / 400**0.5

worker = tw.Compressor(codec, tw.Residual())
server = tw.Compressor(codec, tw.Residual())
for step in range(5):
    push = worker.compress("w", x, step=step)
    piece = tw.Piece.whole(tw.Key("w", (1001,)))
    answer = server.compress_sum(piece, [push, push], weight=0.5, step=step)
    assert answer.wire_id == 0x8001 and answer.decode().isfinite().all()
assert tw.clan(codec).push_feedback == tw.NoFeedback()
print("compressed")
"""
    assert run(installed, code) == "compressed"


def test_what_it_needs_is_where_torch_is() -> None:
    """Its build backend must be there without a download: torch itself requires setuptools."""
    code = "from importlib.metadata import requires; print(requires('torch'))"
    assert "setuptools" in run(None, code)
