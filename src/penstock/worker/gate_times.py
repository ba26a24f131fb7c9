# SPDX-License-Identifier: Apache-2.0
"""How long did what keep tasks waiting, and how much of each resource was in use?

Integrals that are kept while things happen: who waits changes with the turns of the loop, and what
a task has used is booked when its lease comes back. They are right for a million tasks without any
of their events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.admission.tasks.decisions import TaskAdmissionLease
from penstock.admission.tasks.queue_view import BlockedLine
from penstock.model.resource import SchedulerResourceRequest

GATES_MAX = 256  # kept apart; what comes beyond is told under "other"


class GateTime(msgspec.Struct):
    """One thing that kept tasks waiting."""

    seconds: float = 0.0  # in which at least one task waited for it
    task_seconds: float = 0.0  # summed over the tasks that waited


class GateTimesSnapshot(msgspec.Struct, frozen=True):
    """The integrals up to one moment."""

    gates: Mapping[str, GateTime]  # "reason resource" → how long
    used: Mapping[str, float]  # resource → amount × seconds


class _Spent(msgspec.Struct):
    """For how long some resources were held; it keeps the request, so that its identity stays."""

    request: SchedulerResourceRequest
    seconds: float = 0.0


class GateTimes:
    """Owns the integrals of one scheduler."""

    def __init__(self, now_monotonic: float) -> None:
        self._since = now_monotonic
        self._blocked: dict[str, int] = {}  # gate → tasks
        self._gates: dict[str, GateTime] = {}
        #: Of leases that came back, by the identity of what they asked for: hashing it costs more.
        self._spent: dict[int, _Spent] = {}

    def waited(self, until_monotonic: float) -> None:
        """Whoever was said to wait has done so until now."""
        passed = until_monotonic - self._since
        self._since = until_monotonic
        if passed <= 0:
            return
        for name, tasks in self._blocked.items():
            gate = self._gates[name]
            gate.seconds += passed
            gate.task_seconds += passed * tasks

    def stands(self, blocked: Iterable[BlockedLine]) -> None:
        """Who waits from now on, and for what."""
        found: dict[str, int] = {}
        for line in blocked:  # several may wait for the same
            name = self._kept(gate_name(line))
            found[name] = found.get(name, 0) + line.tasks
        self._blocked = found

    def released(self, lease: TaskAdmissionLease, now_monotonic: float) -> None:
        """A lease has come back."""
        request = lease.item.resource_request
        spent = self._spent.get(id(request))
        if spent is None:
            spent = self._spent[id(request)] = _Spent(request)
        spent.seconds += now_monotonic - lease.acquired_at

    def snapshot(
        self, now_monotonic: float, held: Iterable[TaskAdmissionLease]
    ) -> GateTimesSnapshot:
        """Everything up to now, with what is still held."""
        self.waited(now_monotonic)
        used: dict[str, float] = {}
        for spent in self._spent.values():
            _book(used, spent.request.needs, spent.seconds)
        for lease in held:
            _book(used, lease.item.resource_request.needs, now_monotonic - lease.acquired_at)
        gates = {
            name: msgspec.structs.replace(gate)
            for name, gate in self._gates.items()
            if gate.task_seconds
        }
        return GateTimesSnapshot(gates, used)

    def _kept(self, name: str) -> str:
        """The name under which a gate's times are kept."""
        if name not in self._gates:
            if len(self._gates) >= GATES_MAX:
                name = "other"
            self._gates.setdefault(name, GateTime())
        return name


def gate_name(line: BlockedLine) -> str:
    """Reason and resource of a line, in words that do not change."""
    denied = line.denied
    where = denied.resource if denied.resource is not None else denied.item.request_resource_key
    return str(denied.reason) if where is None else f"{denied.reason} {where}"


def _book(used: dict[str, float], needs: Iterable[tuple[str, int]], seconds: float) -> None:
    for resource, amount in needs:
        used[resource] = used.get(resource, 0.0) + amount * seconds
