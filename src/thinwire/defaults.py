"""Default values that several modules share: deadlines and a server's patience.

A default that one module alone uses stands in that module: the size of a piece and of a batch in
``gradient/pieces.py``, those of a frame and a message in ``wire/limits.py``, of a connection in
``transport/peer_limits.py``, those of the log in ``server/log/settings.py``.
"""

from __future__ import annotations

RANK_DEADLINE_SECONDS = 600.0
"""How long a rank waits for another before backward fails. A rank may compile, evaluate or write a
checkpoint in the meantime."""

SERVER_DEADLINE_SECONDS = 60.0
"""How long a client waits for a server, which may be restarting."""

LOSS_SECONDS = 60.0
"""How long a server waits for a worker that is disconnected before it counts it as lost."""

LATE_SECONDS = 10.0
"""How long a server waits for late workers before it names them in a warning."""

SNAPSHOT_NBYTES = 64 << 20
"""Bytes of log after which a server writes a snapshot of its state."""
