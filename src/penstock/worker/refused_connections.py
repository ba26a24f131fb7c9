# SPDX-License-Identifier: Apache-2.0
"""Tells once of each address that has refused connections for as long as a minute.

Nothing listens there, or the address is wrong: no retry will mend that. An address counts from its
first refusal on, until a job that it has refused ends otherwise.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from penstock.clock import Clock
from penstock.model.job import JobId
from penstock.model.lease import JobFailure
from penstock.retry.policy import RetryPolicy
from penstock.terminal_text import format_duration
from penstock.worker.attempt import Attempt, AttemptEnd
from penstock.worker.observer import Tick, WorkerObserver

REFUSED_SECONDS = 60.0  # so long it may be a restart

log = logging.getLogger("penstock.worker")


@dataclass(slots=True)
class _Refusals:
    """What is known of one address."""

    since: float  # monotonic
    task: str  # that was refused first
    policy: RetryPolicy  # of that task
    jobs: set[JobId] = field(default_factory=set)  # that wait for it
    is_told: bool = False


class RefusedConnections(WorkerObserver):
    """Owns which addresses refuse connections, since when, and which were told of."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusals: dict[str, _Refusals] = {}

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        job = attempt.job
        address = end.refused_at if isinstance(end, JobFailure) else None
        for known in [name for name, one in self._refusals.items() if job.id in one.jobs]:
            if known != address:
                del self._refusals[known]
        if address is None or not isinstance(end, JobFailure):
            return
        found = self._refusals.get(address)
        if found is None:
            found = self._refusals[address] = _Refusals(
                self._clock.monotonic(), job.task, attempt.limits.policy
            )
        found.jobs.add(job.id)

    def ticked(self, tick: Tick) -> None:
        now = self._clock.monotonic()
        for address, found in self._refusals.items():
            if not found.is_told and now - found.since >= REFUSED_SECONDS:
                found.is_told = True
                self._tell(address, found, now)

    def _tell(self, address: str, found: _Refusals, now: float) -> None:
        log.warning(
            "Connection refused by %s for %s: start what should listen there, or correct the "
            "address; task %r is tried again, uncharged, for up to %s (%s).",
            address or "an address that its error does not name",
            format_duration(now - found.since),
            found.task,
            format_duration(found.policy.give_up_after_seconds),
            found.policy.give_up_set_by,
        )
