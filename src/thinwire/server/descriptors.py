"""``need_descriptors``: how many files and sockets this process may open, before it needs them."""

from __future__ import annotations

import errno
import os
import resource

from thinwire.errors import ConfigError

_OPEN = "/dev/fd"


def need_descriptors(needed: int, *, what: str) -> None:
    """Raise the soft limit so that ``needed`` more may be open at once, for ``what``.

    Raises ConfigError where the hard limit is lower.
    """
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _used(limit)
    if limit == resource.RLIM_INFINITY or used is None or used + needed <= limit:
        return
    if most != resource.RLIM_INFINITY and used + needed > most:
        raise ConfigError(
            f"{what} needs {needed} more open files and sockets, but this process may have only "
            f"{most} and has {used}: raise the limit with ulimit -n {used + needed} or more, then "
            "start it again"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + needed, most))


def _used(limit: int) -> int | None:
    """How many are open; None where the system does not say."""
    try:
        return len(os.listdir(_OPEN)) - 1  # without the one that this call opens
    except OSError as error:
        return limit if error.errno == errno.EMFILE else None
