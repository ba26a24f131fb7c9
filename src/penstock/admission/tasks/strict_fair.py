# SPDX-License-Identifier: Apache-2.0
"""May a group exceed its admitted limit? Not while somebody else waits."""

from __future__ import annotations

from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionLease, Until
from penstock.admission.tasks.policies import (
    ALLOWED,
    NO_CHANGE,
    Ledger,
    PolicyDecision,
    PolicyStateDelta,
)
from penstock.admission.tasks.queue_view import QueueView
from penstock.model.task import SchedulableTask


class StrictFairTaskAdmissionPolicy:
    """A group over its admitted limit yields to peers that could use the same; a lone one never."""

    def evaluate(
        self, item: SchedulableTask, queue_view: QueueView, admission_view: Ledger
    ) -> PolicyDecision:
        group = item.group
        if group.admitted_limit is None:
            return ALLOWED
        running = admission_view.running(group.key)
        if running < group.admitted_limit:
            return ALLOWED
        for resource, _ in item.resource_request.contested:
            rivals = queue_view.rivals(group.key, resource)
            if rivals or queue_view.is_behind(group.key, resource):
                return PolicyDecision(
                    DenialReason.GROUP_CAP,
                    Until.PEERS,
                    resource,
                    numbers={
                        "running": running,
                        "admitted_limit": group.admitted_limit,
                        "rivals": rivals,
                    },
                )
        return ALLOWED

    def on_acquire(self, lease: TaskAdmissionLease, decision: PolicyDecision) -> PolicyStateDelta:
        return NO_CHANGE

    def on_release(self, lease: TaskAdmissionLease, admission_view: Ledger) -> PolicyStateDelta:
        return NO_CHANGE
