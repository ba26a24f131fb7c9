# SPDX-License-Identifier: Apache-2.0
"""What must a policy answer, and what may it look at?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionLease, Until
from penstock.admission.tasks.queue_view import QueueView
from penstock.model.task import SchedulableTask


class Ledger(Protocol):
    """The counts of an admission controller, live and read only."""

    def limit(self, resource: str) -> int | None:
        """How much there is in all; None: as much as anybody likes."""
        ...

    def held(self, group: str, resource: str) -> int: ...

    def running(self, group: str) -> int:
        """Tasks of a group that run."""
        ...

    def debt(self, group: str, resource: str) -> int: ...

    @property
    def anybody_owes(self) -> bool:
        """Is there any debt at all?"""
        ...


class PolicyDecision(msgspec.Struct, frozen=True):
    """May it start, as far as this policy is concerned?"""

    reason: DenialReason | None = None  # None: it may
    until: Until = Until.NEVER
    resource: str | None = None
    available_after: float | None = None  # seconds from now
    numbers: Mapping[str, float] = {}
    borrows: tuple[tuple[str, int], ...] = ()  # what it takes ahead of its group's share

    @property
    def allowed(self) -> bool:
        return self.reason is None


ALLOWED = PolicyDecision()


class PolicyStateDelta(msgspec.Struct, frozen=True):
    """What a start or an end changes in the books of a policy; the controller applies it."""

    debt_changes: tuple[tuple[str, str, int], ...] = ()  # group, resource, how much


NO_CHANGE = PolicyStateDelta()


class TaskAdmissionPolicy(Protocol):
    """A rule about who may start while there is capacity. Pure: it may be asked at any time."""

    def evaluate(
        self, item: SchedulableTask, queue_view: QueueView, admission_view: Ledger
    ) -> PolicyDecision: ...

    def on_acquire(
        self, lease: TaskAdmissionLease, decision: PolicyDecision
    ) -> PolicyStateDelta: ...

    def on_release(self, lease: TaskAdmissionLease, admission_view: Ledger) -> PolicyStateDelta: ...
