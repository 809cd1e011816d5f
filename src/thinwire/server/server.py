"""``Server``: a parameter server, with its address, its recipe and the folder of its log."""

from __future__ import annotations

import gc
from pathlib import Path

from thinwire.checks import check_whole
from thinwire.defaults import LATE_SECONDS, LOSS_SECONDS, SNAPSHOT_NBYTES
from thinwire.errors import ConfigError
from thinwire.keys.settings import ServerKeys
from thinwire.optim.shared_momentum import check_synchronous_if_shared
from thinwire.recipe import Recipe, check_recipe
from thinwire.server.descriptors import need_descriptors
from thinwire.server.journal import Journal, new_run
from thinwire.server.log.log import Log
from thinwire.server.log.settings import DEFAULT_SETTINGS, LogSettings
from thinwire.server.run_settings import RunSettings, check_run_settings, keep_run_settings
from thinwire.server.service import Service
from thinwire.server.settings import Rules, ServiceSettings
from thinwire.transport import tcp
from thinwire.transport.peer_limits import DEFAULT_LIMITS
from thinwire.watch.stats import ServerStats

_DESCRIPTORS, _WORKER_DESCRIPTORS = 24, 2
"""Of a listener with its log, and of each worker, whose new connection may come before the old one
has ended."""


class Server:
    """Averages the gradients of ``workers`` for the pieces that it owns, compressed both ways.

    It needs no model: workers describe what they train, and which of how many servers this is. It
    listens at ``address``, such as "tcp://0.0.0.0:5555". If ``log_dir`` holds a log, this server
    goes on where that ends, bit for bit.

    ``workers`` is the number of workers averaged over. Synchronous training waits for all of them;
    with a smaller ``quorum`` a version closes with so many pushes, and pushes computed on a version
    more than ``staleness`` behind are refused, so that their worker sends them later. Off this
    machine ``keys`` are needed, or ``insecure=True``. A worker that is disconnected for
    ``loss_seconds`` is lost: ``on_loss`` "stop" ends the run for all, "continue" goes on without
    it. Late workers are logged every ``late_seconds``. After ``snapshot_nbytes`` of log, or more if
    the state is large, a snapshot of the state makes restarts quick.
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
        keys: ServerKeys | None = None,
        insecure: bool = False,
        on_loss: str = "stop",
        loss_seconds: float = LOSS_SECONDS,
        late_seconds: float = LATE_SECONDS,
        snapshot_nbytes: int = SNAPSHOT_NBYTES,
        seed: int = 0,
    ) -> None:
        check_recipe(recipe, owner="Server")
        rules = rules_for(workers, quorum, staleness)
        check_synchronous_if_shared(recipe, synchronous=rules == Rules.synchronous(workers))
        run = RunSettings(recipe, rules, seed)
        settings = ServiceSettings(loss_seconds, on_loss, late_seconds, snapshot_nbytes)
        _check_room(workers)
        folder = None if log_dir is None else Path(log_dir)
        self._stopping = False
        self._log: Log | None = None
        self._listener = tcp.listen(address, keys=keys, insecure=insecure)
        try:
            self._service = self._start(run, settings, folder, log_settings)
        except BaseException:
            self.close()
            raise

    def _start(
        self,
        run: RunSettings,
        settings: ServiceSettings,
        folder: Path | None,
        log_settings: LogSettings,
    ) -> Service:
        recovery = None
        if folder is not None:
            self._log, recovery = Log.open(folder, log_settings, new_run=new_run())
            check_run_settings(folder, recovery, run)
        service = Service(
            self._listener,
            run.recipe,
            run.rules,
            settings=settings,
            journal=Journal(self._log),
            recovery=recovery,
            seed=run.seed,
        )
        if folder is not None:  # after the log was taken up: a refused start changes nothing
            keep_run_settings(folder, run)
        return service

    @property
    def address(self) -> str:
        """Where workers connect to, with the port that was chosen if 0 was asked for."""
        return self._listener.address

    def stats(self) -> ServerStats:
        """What this server did since it was started. Any thread may call it."""
        return self._service.stats()

    def run(self, *, tick_seconds: float = 0.2) -> None:
        """Serve until all workers are done, or ``stop`` is called. Raises WorkerLost.

        If they were done before, by the log, this returns at once.
        """
        self._service.done = self._service.training.is_over
        # A full collection would look at all objects of torch, for up to a second on a busy
        # machine: meanwhile frames are not read, and a flood takes memory.
        gc.freeze()
        try:
            self._service.serve(stop=lambda: self._stopping, tick_seconds=tick_seconds)
        finally:
            gc.unfreeze()
            self.close()

    def stop(self) -> None:
        """Make ``run`` return soon. Any thread or signal handler may call it.

        Workers are not told: they wait for this server to be started again.
        """
        self._stopping = True

    def close(self) -> None:
        """Release address and log. ``run`` does it at its end."""
        self._listener.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _check_room(workers: int) -> None:
    """Check file descriptors now, not when the last worker joins or the log begins a segment."""
    connected = min(workers, DEFAULT_LIMITS.max_peers)
    needed = _DESCRIPTORS + _WORKER_DESCRIPTORS * connected
    need_descriptors(needed, what=f"a server for {workers} workers")


def rules_for(workers: int, quorum: int | None, staleness: int | None) -> Rules:
    """Rules that are synchronous unless a quorum is given."""
    check_whole(workers, least=1, owner="Server", field="workers")
    if quorum is not None and quorum < workers and staleness is None:
        raise ConfigError(
            f"Server: with a quorum of {quorum} of {workers} workers say how far behind a push may "
            "be: staleness=..."
        )
    return Rules(workers, workers if quorum is None else quorum, staleness or 0)
