# SPDX-License-Identifier: Apache-2.0
"""Units of schedules, their timing and ticks, and the results of preflights."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from penstock.model.job import AttemptError, ErrorCategory, JobState

MISSED_MAX = 1_000  # missed ticks of a cron expression that are counted; "at least" from there on
ARM_UNITS_MAX = 1_000  # units of one call
CURSOR_BYTES_MAX = 256 * 1024  # of strict JSON text
PREFLIGHT_BYTES_MAX = 64 * 1024  # of what a preflight returns
FAILED_TICKS_KEPT = 20  # of one unit, in its history
CLOCKS_APART = 5_000_000  # microseconds by which the clocks of a worker and of its store may differ
RETRY_WAIT_MAX = 900_000_000  # microseconds that a failed tick waits for its next try


class NextTick(NamedTuple):
    """The occurrence that follows, and how many passed in between."""

    at: int  # microseconds since 1970 UTC
    missed: int  # that lie between the last one and now; nobody makes them up


class Timing(Protocol):
    """When a schedule ticks. Synchronous; times are microseconds since 1970 UTC."""

    @property
    def text(self) -> str:
        """Canonical: "every 10 s", "cron 0 3 * * 1-5 Europe/Berlin". The same text, the same."""
        ...

    @property
    def period(self) -> int | None:
        """Microseconds from one occurrence to the next; None: it goes by the clocks of a place."""
        ...

    def first(self, now: int, spread: float = 0.0, units_count: int = 1) -> int:
        """The first occurrence of a new unit.

        Args:
            now: what time it is.
            spread: a number in [0, 1), so that units do not all begin together.
            units_count: how many begin; one alone begins at once.
        """
        ...

    def after(self, due_at: int, now: int) -> NextTick:
        """The occurrence after one that was due then: later than it, and later than now."""
        ...


def tried_at(due_at: int, period: int | None, now: int) -> int:
    """When an occurrence is tried first: when it is due, but at most a period from now.

    Further away is only what was due before the clock was set back.
    """
    if period is None or due_at <= now + period + CLOCKS_APART:
        return due_at
    return now + period


class UnitPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One unit of a schedule, as planned: a schedule, or one of its partitions."""

    key: str  # schedule:poll_issues:thumbrise/autosolve
    task: str  # schedule:poll_issues
    payload: str  # strict JSON text: the values of its partition, by argument
    group: str
    partition: str | None  # None: it is global
    limit_keys: tuple[str, ...] = ()
    timing: str  # its interval, or its cron expression and zone; if it changes, `first_at` counts
    period: int | None = None  # of an interval, microseconds
    first_at: int  # when it ticks first, if it is new, changed or was ended


class ArmReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the units of one call."""

    new: int = 0
    kept: int = 0  # as they were: their next tick stays where it is
    retimed: int = 0
    revived: int = 0  # had ended, or were retired


class UnitView(msgspec.Struct, frozen=True, kw_only=True):
    """A unit as the store knows it."""

    key: str
    app: str
    task: str
    partition: str | None
    timing: str
    state: JobState
    due_at: int  # the occurrence that comes next, or that is being worked on
    available_at: int  # later than `due_at` while a failed tick waits for its next try
    attempts: int  # failed tries of this occurrence that were nobody else's fault
    deferred_since: int | None  # since when others have failed it
    last_error: AttemptError | None
    ticks: int  # that succeeded
    missed: int  # occurrences that passed while it ran, was late, or nobody was there
    failed: int  # tries that failed
    last_tick_at: int | None  # when the last good one ended
    retired_at: int | None
    paused_by: str | None = None  # its key or its task, whichever is paused; its task first
    paused_at: int | None = None

    @property
    def rests(self) -> bool:
        """Whether it does not tick because it is paused; one that ticks goes on to its end."""
        at_rest = self.state in (JobState.WAITING, JobState.QUEUED)
        return at_rest and self.paused_at is not None

    @property
    def is_failing(self) -> bool:
        """Whether the last try of its current occurrence failed; a paused one is not tried."""
        lives = self.state in (JobState.QUEUED, JobState.IN_PROGRESS) and not self.rests
        return lives and bool(self.attempts or self.deferred_since is not None)

    @property
    def by_others(self) -> bool:
        """Whether the last failure was not its own fault: a node or a service failed."""
        error = self.last_error
        return error is not None and error.category in (ErrorCategory.NODE, ErrorCategory.SERVICE)


class PreflightResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one check of one partition came to."""

    unit: str  # preflight:repository_exists:thumbrise/autosolve
    name: str
    partition: str  # "": it is global
    value: str | None = None  # strict JSON text of what it returned; None: nothing, or it failed
    error: AttemptError | None = None
    checked_at: int = 0
    required: bool = True  # not kept: one that failed and is not required is kept nowhere

    @property
    def is_left_out(self) -> bool:
        """Whether its partition is left out, while others work."""
        return self.error is not None and not self.required
