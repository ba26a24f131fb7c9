# SPDX-License-Identifier: Apache-2.0
"""Says which jobs have waited for a failing provider for as long as `give_up_after` allows.

A job that fails is given up by the retry policy. One that waits for a permit, is sent again inside
its client or has not begun because its provider cools down does not fail: it is over when its
provider has given no good answer for that long, and the job has waited for as long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import inf

from penstock.clock import MICROSECONDS, Clock
from penstock.model.job import LeasedJob
from penstock.model.provider import RequestResourceKey, SeveralResources

LAST_TRY_SECONDS = 5.0  # for an attempt that has its permit when the time is over


class GiveUp:
    """Owns how long jobs wait for failing providers. Keeps nothing between calls."""

    def __init__(
        self,
        seconds: Mapping[str, float],
        clock: Clock,
        failing_since: Callable[[RequestResourceKey], float | None],
    ) -> None:
        self._seconds = seconds  # by task
        self._least_seconds = min(seconds.values(), default=inf)
        self._clock = clock
        self._failing_since = failing_since  # monotonic; None: it has answered well

    def is_due(self, gate: Hashable) -> bool:
        """Whether something that a gate stands for has failed for as long as some task waits."""
        return self._is_due(gate, self._least_seconds)

    def is_over(self, job: LeasedJob, gate: Hashable) -> bool:
        """Whether a job that has not begun has waited for that long."""
        return self._has_waited(job) and self._is_due(gate, self._limit(job))

    def ends(
        self, job: LeasedJob, started_at: int, calls: Sequence[RequestResourceKey], *, waits: bool
    ) -> bool:
        """Whether a job that runs has waited for that long.

        Args:
            job: that runs.
            started_at: when its attempt began, in microseconds.
            calls: the requests that it is making; it waits for nothing else.
            waits: one of them waits for a permit; else it has some seconds for its last try.
        """
        if not calls or not self._has_waited(job):
            return False
        if not waits and self._clock.now() - started_at / MICROSECONDS < LAST_TRY_SECONDS:
            return False
        limit = self._limit(job)
        return all(self._has_failed(one, limit) for one in calls)

    def _limit(self, job: LeasedJob) -> float:
        return self._seconds.get(job.task, inf)

    def _is_due(self, gate: Hashable, seconds: float) -> bool:
        return any(self._has_failed(one, seconds) for one in resources_of(gate))

    def _has_failed(self, resource: RequestResourceKey, seconds: float) -> bool:
        since = self._failing_since(resource)
        return since is not None and self._clock.monotonic() - since >= seconds

    def _has_waited(self, job: LeasedJob) -> bool:
        if job.deferred_since is None and job.attempts:
            return False  # its own faults have brought it here; its attempts decide
        since = job.due_at if job.deferred_since is None else job.deferred_since
        return self._clock.now() - since / MICROSECONDS >= self._limit(job)


def resources_of(gate: Hashable) -> tuple[RequestResourceKey, ...]:
    """The resources of providers that a gate stands for."""
    if isinstance(gate, SeveralResources):
        return gate.resources
    return (gate,) if isinstance(gate, RequestResourceKey) else ()
