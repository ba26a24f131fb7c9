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

GATES_MAX = 256  # kept apart; what comes beyond is told under "other"


class GateTime(msgspec.Struct):
    """One thing that kept tasks waiting."""

    seconds: float = 0.0  # in which at least one task waited for it
    task_seconds: float = 0.0  # summed over the tasks that waited


class GateTimesSnapshot(msgspec.Struct, frozen=True):
    """The integrals up to one moment."""

    gates: Mapping[str, GateTime]  # "reason resource" → how long
    used: Mapping[str, float]  # resource → amount × seconds


class GateTimes:
    """Owns the integrals of one scheduler."""

    def __init__(self, now_monotonic: float) -> None:
        self._since = now_monotonic
        self._blocked: list[tuple[str, int]] = []
        self._gates: dict[str, GateTime] = {}
        self._used: dict[str, float] = {}  # by leases that came back

    def waited(self, until_monotonic: float) -> None:
        """Whoever was said to wait has done so until now."""
        passed = until_monotonic - self._since
        self._since = until_monotonic
        if passed <= 0:
            return
        seen = set()
        for name, tasks in self._blocked:
            gate = self._gate(name)
            gate.task_seconds += passed * tasks
            if id(gate) not in seen:  # several lines may wait for the same
                seen.add(id(gate))
                gate.seconds += passed

    def stands(self, blocked: Iterable[BlockedLine]) -> None:
        """Who waits from now on, and for what."""
        self._blocked = [(gate_name(line), line.tasks) for line in blocked]

    def released(self, lease: TaskAdmissionLease, now_monotonic: float) -> None:
        """A lease has come back."""
        _book(self._used, lease, now_monotonic)

    def snapshot(
        self, now_monotonic: float, held: Iterable[TaskAdmissionLease]
    ) -> GateTimesSnapshot:
        """Everything up to now, with what is still held."""
        self.waited(now_monotonic)
        used = dict(self._used)
        for lease in held:
            _book(used, lease, now_monotonic)
        gates = {name: msgspec.structs.replace(gate) for name, gate in self._gates.items()}
        return GateTimesSnapshot(gates, used)

    def _gate(self, name: str) -> GateTime:
        gate = self._gates.get(name)
        if gate is None:
            if len(self._gates) >= GATES_MAX:
                name = "other"
            gate = self._gates.setdefault(name, GateTime())
        return gate


def gate_name(line: BlockedLine) -> str:
    """Reason and resource of a line, in words that do not change."""
    denied = line.denied
    where = denied.resource if denied.resource is not None else denied.item.request_resource_key
    return str(denied.reason) if where is None else f"{denied.reason} {where}"


def _book(used: dict[str, float], lease: TaskAdmissionLease, now_monotonic: float) -> None:
    seconds = now_monotonic - lease.acquired_at
    for resource, amount in lease.item.resource_request.needs:
        used[resource] = used.get(resource, 0.0) + amount * seconds
