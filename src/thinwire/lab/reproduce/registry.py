"""All reproductions, by name."""

from __future__ import annotations

from thinwire.lab.reproduce.clan import clan
from thinwire.lab.reproduce.dgc import dgc
from thinwire.lab.reproduce.doublesqueeze import doublesqueeze
from thinwire.lab.reproduce.plan import Reproduction

_MAKERS = {"dgc": dgc, "doublesqueeze": doublesqueeze, "clan": clan}


def find_reproduction(name: str, scale: str) -> Reproduction:
    return _MAKERS[name](scale)
