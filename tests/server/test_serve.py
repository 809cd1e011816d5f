"""``thinwire serve`` and the example, as a user starts them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.command import THINWIRE, running
from tests.server.processes import free_address, wait_until
from tests.slow import first, slow
from thinwire.keys.make import new_keys

EXAMPLE = Path(__file__).parents[2] / "examples" / "servers" / "train.py"
RECIPE = "doublesqueeze"


def serve(address: str, folder: Path, *options: str) -> tuple[str, ...]:
    common = ("--listen", address, "--workers", "2", "--recipe", RECIPE, "--fsync", "off")
    return (THINWIRE, "serve", *common, "--log-dir", str(folder / "ps0"), *options)


def work(address: str, folder: Path, rank: int) -> tuple[str, ...]:
    where = ("--servers", address, "--checkpoint", str(folder / f"{rank}.pt"))
    return (sys.executable, str(EXAMPLE), "--rank", str(rank), "--workers", "2", *where)


@pytest.mark.timeout(120)
def test_the_example_trains_and_goes_on_after_a_worker_was_killed(tmp_path: Path) -> None:
    address, out = free_address(), tmp_path / "serve.txt"
    outputs = [tmp_path / "0.txt", tmp_path / "1.txt"]
    with (
        running(*serve(address, tmp_path), output=out) as server,
        running(*work(address, tmp_path, 0), output=outputs[0]) as first,
    ):
        with running(*work(address, tmp_path, 1), output=outputs[1]):
            wait_until(lambda: "version 50" in outputs[1].read_text(), "a checkpoint")
        with running(*work(address, tmp_path, 1), output=outputs[1]) as again:
            assert [one.wait(60) for one in (first, again, server)] == [0, 0, 0]
    for output in outputs:
        assert "times fewer bytes" in output.read_text()
    assert "All workers are done at version 200" in out.read_text()


@pytest.mark.timeout(120)
def test_the_example_trains_with_keys_of_the_command_line(tmp_path: Path) -> None:
    def keys(*words: str) -> None:
        subprocess.run([THINWIRE, "keys", *words], check=True, cwd=tmp_path, timeout=60)

    keys("new", "server")
    keys("new", "worker-0")
    keys("allow", "workers.allow", "worker-0.crt", "--ranks", "0")
    ours = ("--keys", str(tmp_path / "server.key"), "--allow", str(tmp_path / "workers.allow"))
    theirs = (
        "--key",
        str(tmp_path / "worker-0.key"),
        "--certificate",
        str(tmp_path / "server.crt"),
    )
    address, out, said = free_address(), tmp_path / "serve.txt", tmp_path / "0.txt"
    alone = ("--workers", "1")
    with (
        running(*serve(address, tmp_path, *alone, *ours), output=out) as server,
        running(*work(address, tmp_path, 0), *alone, *theirs, output=said) as worker,
    ):
        assert [one.wait(90) for one in (worker, server)] == [0, 0]
    assert "times fewer bytes" in said.read_text()


@pytest.mark.timeout(120)
def test_a_run_that_lost_all_workers_is_no_success(tmp_path: Path) -> None:
    address, out, said = free_address(), tmp_path / "serve.txt", tmp_path / "0.txt"
    alone = ("--workers", "1", "--on-loss", "continue", "--loss-seconds", "1")
    with running(*serve(address, tmp_path, *alone), output=out) as server:
        with running(*work(address, tmp_path, 0), "--workers", "1", output=said):
            wait_until(lambda: "version 50" in said.read_text(), "a checkpoint")
        assert server.wait(60) == 1
    assert "Lost workers: 0. The run ended at version " in out.read_text()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", first([signal.SIGTERM, signal.SIGINT]))
def test_a_signal_stops_a_server_in_good_order(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "serve.txt"
    with running(*serve(free_address(), tmp_path), output=out) as server:
        wait_until(
            lambda: out.exists() and "Serving 2 workers at tcp://" in out.read_text(), "start"
        )
        server.send_signal(number)
        assert server.wait(90) == 0
    assert "Stopped at version 0" in out.read_text()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--recipe", "dgc("], "examples: dense, dgc(0.001)"),
        slow(["--quorum", "1"], "say how far behind a push may be"),
        (["--listen", "tcp://0.0.0.0:5555"], "give --keys and --allow (see thinwire keys), or"),
        slow(["--listen", "0.0.0.0:5555"], "expected tcp://HOST:PORT"),
        slow(["--keys", __file__], "--keys and --allow (or --ca) go together"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    options: list[str], words: str, tmp_path: Path
) -> None:
    out = tmp_path / "serve.txt"
    with running(*serve(free_address(), tmp_path), *options, output=out) as server:
        assert server.wait(90) == 1
    [line] = out.read_text().splitlines()
    assert line.startswith("Error: ")
    assert words in line
    assert "insecure=True" not in line  # which is for Python


@pytest.mark.timeout(60)
@pytest.mark.parametrize("binary", first(["--keys", "--allow"]))
def test_a_file_of_keys_that_is_no_text_is_one_sentence(binary: str, tmp_path: Path) -> None:
    key, certificate = new_keys(tmp_path, "server")
    (tmp_path / "list").write_text(certificate.read_text())
    damaged = {"--keys": key, "--allow": tmp_path / "list"}[binary]
    damaged.write_bytes(b"\xff\xfe")
    out = tmp_path / "serve.txt"
    files = ("--keys", str(key), "--allow", str(tmp_path / "list"))
    with running(*serve(free_address(), tmp_path), *files, output=out) as server:
        assert server.wait(50) == 1
    expected = f"Error: {damaged}: is not text, expected a key or certificates"
    assert out.read_text().splitlines() == [expected]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("files", first([8, 12, 16, 6, 10, 14]))
def test_too_few_open_files_are_one_sentence(files: int, tmp_path: Path) -> None:
    out = tmp_path / "serve.txt"
    limited = ("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh")
    with running(*limited, *serve(free_address(), tmp_path), output=out) as server:
        assert server.wait(90) == 1
    [line] = out.read_text().splitlines()
    assert line.startswith("Error: ")
    assert "ulimit -n" in line
    assert not (tmp_path / "ps0").exists()
