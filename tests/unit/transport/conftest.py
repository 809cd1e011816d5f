"""Rigs for tests that hold for every transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.transports import RIGS, Rig
from thinwire.transport.peer_limits import DEFAULT_LIMITS, TransportLimits


@pytest.fixture(params=RIGS)
def make_rig(request: pytest.FixtureRequest) -> Iterator[Callable[[TransportLimits], Rig]]:
    rigs: list[Rig] = []

    def make(limits: TransportLimits) -> Rig:
        rigs.append(RIGS[request.param](limits))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture
def rig(make_rig: Callable[[TransportLimits], Rig]) -> Rig:
    return make_rig(DEFAULT_LIMITS)
