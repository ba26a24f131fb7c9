# SPDX-License-Identifier: Apache-2.0
"""May a task start whose provider could not serve it now? No: it would only hold a slot.

A provider that cools down, or has a full line of waiters, is a gate of its own, peers or no peers.
It opens with the provider's next release, or at the end of the cool-down. A task of several
providers is held back by any of them.
"""

from __future__ import annotations

from collections.abc import Hashable

from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionLease, Until
from penstock.admission.tasks.policies import (
    Ledger,
    PolicyDecision,
    PolicyStateDelta,
    TaskAdmissionPolicy,
)
from penstock.admission.tasks.queue_view import QueueView
from penstock.model.diagnostic import Diagnostic
from penstock.model.pressure import PressureSnapshot, RequestPressure
from penstock.model.provider import SeveralResources, gate_name
from penstock.model.task import SchedulableTask

PRESSURE_UNREADABLE = "pressure_unreadable"


class ProviderAwareTaskAdmissionPolicy:
    """Holds back who would wait for its provider; all else is for the policy inside.

    The provider is asked first, so that who waits for it keeps nobody from anything.
    """

    def __init__(self, inner: TaskAdmissionPolicy, pressure: RequestPressure) -> None:
        self._inner = inner
        self._pressure = pressure
        self._is_reported = False
        self._diagnostics: tuple[Diagnostic, ...] = ()

    def evaluate(
        self, item: SchedulableTask, queue_view: QueueView, admission_view: Ledger
    ) -> PolicyDecision:
        key = item.request_resource_key
        if key is not None:
            snapshot = self._read(key)
            if snapshot is not None and is_pressed(snapshot):
                return _denied(key, snapshot)
        return self._inner.evaluate(item, queue_view, admission_view)

    def on_acquire(self, lease: TaskAdmissionLease, decision: PolicyDecision) -> PolicyStateDelta:
        return self._inner.on_acquire(lease, decision)

    def on_release(self, lease: TaskAdmissionLease, admission_view: Ledger) -> PolicyStateDelta:
        return self._inner.on_release(lease, admission_view)

    def take_diagnostics(self) -> tuple[Diagnostic, ...]:
        """What is to be told, once."""
        taken, self._diagnostics = self._diagnostics, ()
        return taken

    def _read(self, key: Hashable) -> PressureSnapshot | None:
        """The pressure is advice: if it cannot be had, nobody is held back."""
        try:
            return self._pressure.snapshot(key)
        except Exception as error:
            if not self._is_reported:
                self._is_reported = True
                self._diagnostics = (
                    Diagnostic(
                        PRESSURE_UNREADABLE,
                        str(key),
                        f"The pressure of {key!r} cannot be read ({type(error).__name__}), so "
                        "tasks start whether their providers have room or not.",
                    ),
                )
            return None


def is_pressed(snapshot: PressureSnapshot) -> bool:
    """Would one more only wait there?"""
    return snapshot.cooldown_seconds > 0 or snapshot.waiters >= max(1, snapshot.limit)


def _denied(key: Hashable, snapshot: PressureSnapshot) -> PolicyDecision:
    """The denial; of several providers it names the one that is in the way."""
    rest, where = snapshot.cooldown_seconds, snapshot.resource
    is_one_of = isinstance(key, SeveralResources) and where is not None
    return PolicyDecision(
        DenialReason.POLICY,
        Until.GATE,
        gate_name(where) if is_one_of else None,
        available_after=rest if rest > 0 else None,
        numbers={
            "limit": snapshot.limit,
            "in_flight": snapshot.in_flight,
            "waiters": snapshot.waiters,
            "cooldown_seconds": rest,
        },
    )
