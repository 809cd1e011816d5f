"""A parameter server as a user has it: an address, a recipe, a folder for its log."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from types import TracebackType

from thinwire.errors import ConfigError
from thinwire.recipe import Recipe, check_recipe
from thinwire.server.log import Log
from thinwire.server.retention import DEFAULT_SETTINGS, LogSettings
from thinwire.server.rules import Rules
from thinwire.server.service import Service
from thinwire.server.settings import ServiceSettings
from thinwire.server.terms import check_terms
from thinwire.settings import check_whole
from thinwire.transport import zeromq
from thinwire.transport.keys import ServerCurve


class Server:
    """Averages the gradients of ``workers`` for the pieces that it owns, compressed both ways.

    It needs no model: workers say what they train, and which of how many servers this is.
    """

    def __init__(
        self,
        address: str,
        recipe: Recipe,
        *,
        workers: int,
        quorum: int | None = None,
        staleness: int | None = None,
        log_dir: str | Path | None = None,
        log_settings: LogSettings = DEFAULT_SETTINGS,
        keys: ServerCurve | None = None,
        insecure: bool = False,
        on_loss: str = "stop",
        loss_seconds: float = 60.0,
        late_seconds: float = 10.0,
        snapshot_nbytes: int = 64 << 20,
        seed: int = 0,
    ) -> None:
        """Listen at ``address``, such as "tcp://0.0.0.0:5555", and take up ``log_dir`` if there is
        a log in it: then this server goes on where it was, bit for bit.

        ``workers`` is the n of the mean. Synchronous training waits for all of them; with a smaller
        ``quorum`` a version closes with so many pushes, and pushes computed on a version more than
        ``staleness`` behind go back to their worker. Off this machine ``keys`` are needed, or
        ``insecure=True``. A worker that is away for ``loss_seconds`` is lost: ``on_loss`` "stop"
        ends the run for all, "continue" goes on without it. Who is waited for is logged every
        ``late_seconds``. After ``snapshot_nbytes`` of log, or more if the state is large, the state
        is kept too, so that a restart is quick.
        """
        check_recipe(recipe, owner="Server")
        rules = rules_for(workers, quorum, staleness)
        settings = ServiceSettings(loss_seconds, on_loss, late_seconds, snapshot_nbytes)
        check_whole(seed, least=0, owner="Server", field="seed")
        self._stopping = False
        self._listener = zeromq.listen(address, curve=keys, insecure=insecure)
        self._log: Log | None = None
        try:
            recovery = None
            if log_dir is not None:
                new_run = int.from_bytes(os.urandom(7), "little") + 1
                self._log, recovery = Log.open(Path(log_dir), log_settings, new_run=new_run)
                check_terms(Path(log_dir), recipe, rules, seed)
            self.service = Service(
                self._listener,
                recipe,
                rules,
                settings=settings,
                log=self._log,
                recovery=recovery,
                seed=seed,
            )
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where workers connect to, with the port that was chosen if 0 was asked for."""
        return self._listener.address

    def run(self, *, tick_seconds: float = 0.2) -> None:
        """Serve until all workers are done, or ``stop`` is called. Raises WorkerLost."""
        # A full collection would look at all that torch has brought, for up to a second on a busy
        # machine, while nobody reads and a flood takes memory.
        gc.freeze()
        try:
            self.service.serve(stop=lambda: self._stopping, tick_seconds=tick_seconds)
        finally:
            gc.unfreeze()
            self.close()

    def stop(self) -> None:
        """Make ``run`` return soon. Any thread or signal handler may call it.

        Workers are not told: they wait for this server to be started again.
        """
        self._stopping = True

    def close(self) -> None:
        """Let go of address and log. ``run`` does it at its end."""
        self._listener.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def rules_for(workers: int, quorum: int | None, staleness: int | None) -> Rules:
    """Synchronous unless a quorum is given."""
    check_whole(workers, least=1, owner="Server", field="workers")
    if quorum is not None and quorum < workers and staleness is None:
        raise ConfigError(
            f"Server: with a quorum of {quorum} of {workers} workers say how far behind a push may "
            "be: staleness=..."
        )
    return Rules(workers, workers if quorum is None else quorum, staleness or 0)
