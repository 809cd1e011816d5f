"""What would keep a server from reading for long."""

from __future__ import annotations

import gc
import threading

import thinwire as tw
from tests.server.processes import PATIENCE_SECONDS, wait_until


def test_while_it_serves_no_collection_looks_at_what_was_there_before() -> None:
    """All modules that are loaded, torch among them: on a busy machine that took a second."""
    server = tw.Server("tcp://127.0.0.1:0", tw.doublesqueeze(tw.OneBit()), workers=1)
    there = len(gc.get_objects())
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: gc.get_freeze_count() > 0, "serving")
        assert len(gc.get_objects()) < there / 10
    finally:
        server.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert gc.get_freeze_count() == 0
