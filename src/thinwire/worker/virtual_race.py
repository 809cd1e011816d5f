"""Workers in their own time: how those of a virtual cluster get to the next version by a race.

A worker does what ``Client.step`` does: it pushes the gradient of the version that it has, waits
until there is a newer one, and computes on the newest. The order of arrival comes from a seed, so
an asynchronous run repeats exactly.
"""

from __future__ import annotations

from collections.abc import Iterable

from thinwire.worker.virtual_clock import Timetable
from thinwire.worker.virtual_exchange import Exchanged
from thinwire.worker.virtual_pace import Advance
from thinwire.worker.virtual_replica import Evaluation, LossOf, Replica
from thinwire.worker.virtual_server import Answer, VirtualServer


class Race:
    """Versions close by the rules of ``server``; gradients arrive by the ``timetable``.

    A gradient is evaluated when its worker begins it, because then its weights are the newest and
    are in the network: no older weights are kept, but one gradient for each worker.
    """

    def __init__(self, server: VirtualServer, timetable: Timetable, *, workers: int) -> None:
        self.server, self._timetable = server, timetable
        self._workers = workers
        self._under_way: dict[int, Evaluation] = {}

    def advance(self, replica: Replica, loss_of: LossOf, *, step: int) -> Advance:
        del step  # the server counts versions, and each worker its own steps
        arrived: list[Evaluation] = []
        answers: list[Answer] = []
        waiting = [rank for rank in range(self._workers) if rank not in self._under_way]
        self._begin(waiting, replica, loss_of)
        while True:
            one = self._under_way.pop(self._timetable.next())
            answer = self.server.push(one)
            arrived.append(one)
            answers.append(answer)
            if answer.mean is not None:
                break
            if one.version < replica.version:
                self._begin([one.worker], replica, loss_of)
        pushed = sum(one.pushed_nbytes for one in answers) / self._workers
        refused = sum(one.refused for one in answers)
        exchanged = Exchanged(answer.mean, pushed, answer.pulled_nbytes)
        return Advance(exchanged, arrived, refused, self._timetable.now)

    def _begin(self, workers: Iterable[int], replica: Replica, loss_of: LossOf) -> None:
        for one in replica.evaluate(workers, loss_of):
            self._under_way[one.worker] = one
            self._timetable.begin(one.worker)
