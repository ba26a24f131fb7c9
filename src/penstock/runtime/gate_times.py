# SPDX-License-Identifier: Apache-2.0
"""How long did what keep tasks waiting, and how much of each resource was in use?

Integrals over the time between turns of the loop, in which nothing changes. They are right for a
million tasks without any of their events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.admission.tasks.queue_view import BlockedLine

GATES_MAX = 256  # kept apart; what comes beyond is told under "other"


class GateTime(msgspec.Struct):
    """One thing that kept tasks waiting."""

    seconds: float = 0.0  # in which at least one task waited for it
    task_seconds: float = 0.0  # summed over the tasks that waited


class GateTimes:
    """Owns the integrals of one scheduler."""

    def __init__(self, now_monotonic: float) -> None:
        self._since = now_monotonic
        self._blocked: list[tuple[str, int]] = []
        self._leased: Mapping[str, int] = {}
        self.gates: dict[str, GateTime] = {}  # "reason resource" → how long
        self.used: dict[str, float] = {}  # resource → amount × seconds

    def turn_begins(self, now_monotonic: float) -> None:
        """Account for the time since the last turn ended."""
        passed = now_monotonic - self._since
        self._since = now_monotonic
        if passed <= 0:
            return
        for name, tasks in self._blocked:
            gate = self._gate(name)
            gate.seconds += passed
            gate.task_seconds += passed * tasks
        used = self.used
        for resource, amount in self._leased.items():
            used[resource] = used.get(resource, 0.0) + passed * amount

    def turn_ends(self, blocked: Iterable[BlockedLine], leased: Mapping[str, int]) -> None:
        """Take in how things stand until the next turn."""
        self._blocked = [(gate_name(line), line.tasks) for line in blocked]
        self._leased = leased

    def _gate(self, name: str) -> GateTime:
        gate = self.gates.get(name)
        if gate is None:
            if len(self.gates) >= GATES_MAX:
                name = "other"
            gate = self.gates.setdefault(name, GateTime())
        return gate


def gate_name(line: BlockedLine) -> str:
    """Reason and resource of a line, in words that do not change."""
    denied = line.denied
    where = denied.resource if denied.resource is not None else denied.item.request_resource_key
    return str(denied.reason) if where is None else f"{denied.reason} {where}"
