# SPDX-License-Identifier: Apache-2.0
"""The retry policy: charges failed attempts, sets the next one's time, or says it was the last.

`is_last` is the rule for the last attempt: workers tell stores, which obey. It is applied here, to
attempts that were killed with their worker (`supervisor/dead_workers.py`) and to ticks
(`schedules/tick.py`). Of a worker that died unseen the store decides itself, since nobody is
left to tell it (`stores/sql/dead_workers.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from penstock.errors import ConfigError, InternalError
from penstock.model.job import ErrorCategory
from penstock.retry.classify import (
    OWN_CLASSES,
    Classified,
    Classifier,
    FailureClass,
    TimeLimitError,
    classify,
)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with jitter: from the ceiling of the step before up to twice that.

    So the waits of one job never shrink. The first is anything up to its ceiling, which spreads
    jobs that failed together; at the maximum there is no jitter left, and they stay spread.
    """

    first_seconds: float  # the first ceiling
    max_seconds: float  # the last one

    def __post_init__(self) -> None:
        if not 0 < self.first_seconds <= self.max_seconds < math.inf:
            raise ConfigError(
                "A back-off needs 0 < first_seconds <= max_seconds, both finite, "
                f"got {self.first_seconds!r} and {self.max_seconds!r}."
            )

    def ceiling(self, n: float) -> float:
        """The longest delay of step n, which counts from 0 and need not be whole."""
        if not n >= 0:
            raise InternalError(f"A back-off's step must be >= 0, got {n!r}.")
        if n >= math.log2(self.max_seconds / self.first_seconds):  # also keeps exp2 finite
            return self.max_seconds
        return min(self.first_seconds * math.exp2(n), self.max_seconds)

    def delay(self, n: float, rand: float) -> float:
        """The delay of step n in seconds; `rand` is a number in [0, 1)."""
        ceiling, floor = self.ceiling(n), self._floor(n)
        return floor + (ceiling - floor) * rand

    def _floor(self, n: float) -> float:
        """The longest delay of the step before; 0 if there was none."""
        if n >= 1:
            return self.ceiling(n - 1)
        return self.first_seconds * math.exp2(n - 1) if n > 0 else 0.0

    def changed(self, first_seconds: float | None, max_seconds: float | None) -> Backoff:
        """The same with another first ceiling or maximum; what is left out gives way to them."""
        first, most = first_seconds or self.first_seconds, max_seconds or self.max_seconds
        if max_seconds is None:
            return Backoff(first, max(first, most))
        return Backoff(min(first, most), most)

    def step_after(self, seconds: float) -> float:
        """The step of something that has been put off for so long: log2(1 + seconds / first).

        Ceilings of first, 2 × first, 4 × first … reach back (2ⁿ − 1) × first after n of them, so
        the time tells the step and no count need be stored. A clock that went back gives step 0.
        """
        return math.log2(1.0 + seconds / self.first_seconds) if seconds > 0 else 0.0


NODE = Backoff(2.0, 120.0)
SERVICE = Backoff(5.0, 300.0)
DEGRADED = Backoff(30.0, 300.0)  # a schedule's unknown errors
OWN = Backoff(1.0, 60.0)  # a job's own faults, while attempts are left


GIVE_UP_AFTER_SECONDS = 86_400.0  # one day of waiting for others


def is_last(before: int, most: int) -> bool:
    """Whether a charged attempt is the last: `before` were charged so far, `most` may be."""
    return before + 1 >= most


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """What follows a failed attempt."""

    category: ErrorCategory
    delay_seconds: float  # 0 when it ends
    charge: bool  # it costs one of the job's attempts
    ends: bool  # that was the last attempt: the job ends in `error`
    #: of HTTP, if the other side has answered: for sentences
    status: int | None = field(default=None, compare=False)
    #: the wait after which it would have come too late, though others were to blame: for sentences
    given_up_wait_seconds: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The retry baseline: configured once, invisible to tasks. Keeps nothing between calls.

    Only the work's own faults spend attempts. Node and service errors are put off uncharged until
    the first of them is `give_up_after_seconds` ago; a wait that would end later is not begun.
    """

    classifiers: tuple[Classifier, ...] = ()  # asked before ours, in order
    node: Backoff = NODE
    service: Backoff = SERVICE
    own: Backoff = OWN
    degraded: Backoff = DEGRADED
    give_up_after_seconds: float = GIVE_UP_AFTER_SECONDS
    give_up_set_by: str = "tasks.give_up_after"  # for sentences

    def __post_init__(self) -> None:
        if not self.give_up_after_seconds >= 0:
            raise ConfigError(
                f"give_up_after_seconds must be >= 0, got {self.give_up_after_seconds!r}."
            )

    def for_task(
        self,
        delay_seconds: float | None,
        max_delay_seconds: float | None,
        give_up_after_seconds: float | None,
    ) -> RetryPolicy:
        """The policy of a task that says how it waits; None leaves a part as it is."""
        policy = replace(
            self,
            node=self.node.changed(delay_seconds, max_delay_seconds),
            service=self.service.changed(delay_seconds, max_delay_seconds),
            own=self.own.changed(delay_seconds, max_delay_seconds),
        )
        if give_up_after_seconds is None:
            return policy
        return replace(
            policy,
            give_up_after_seconds=give_up_after_seconds,
            give_up_set_by="give_up_after of its Retry",
        )

    def decide(
        self,
        error: BaseException,
        *,
        attempts: int,
        max_attempts: int,
        deferred_since_seconds_ago: float | None,
        now: float,
        rand: float,
        deferrals: int = 0,
        within_seconds: float | None = None,
    ) -> RetryDecision:
        """Decide what follows a failure.

        Args:
            error: how the attempt ended; `TimeLimitError` if it ran past its time limit.
            attempts: charged before this one.
            max_attempts: how many may be charged.
            deferred_since_seconds_ago: how long ago the first of the present row of uncharged
                failures was; None if this is the first. The back-off's step follows from it
                (`Backoff.step_after`), because stores keep no count of deferrals.
            now: seconds since 1970 UTC.
            rand: a number in [0, 1), for the jitter.
            deferrals: uncharged failures in this row, where the caller has counted them; the
                back-off takes the later step of the two.
            within_seconds: from the first failure on, what comes later is too late; None: nothing.
        """
        classified = classify(error, now=now, classifiers=self.classifiers)
        if classified.category in OWN_CLASSES:
            wait_seconds = classified.wait_seconds
            delay_seconds = self.own.delay(attempts, rand) if wait_seconds is None else wait_seconds
            mistake = classified.category is FailureClass.MISTAKE  # it would only be met again
            ends = mistake or is_last(attempts, max_attempts)
            decision = _charge(error, delay_seconds, ends=ends)
        else:
            ago = deferred_since_seconds_ago or 0.0
            decision = self._defer(classified, ago, deferrals, rand)
        comes_at = (deferred_since_seconds_ago or 0.0) + decision.delay_seconds
        if within_seconds is not None and comes_at >= within_seconds:
            return replace(decision, delay_seconds=0.0, ends=True)
        return decision

    def decide_tick(
        self,
        error: BaseException,
        *,
        attempts: int,
        max_attempts: int | None,
        deferred_since_seconds_ago: float | None,
        now: float,
        rand: float,
        charges: bool = True,
    ) -> RetryDecision:
        """Decide what follows a failed tick of a schedule, which is there to stay.

        It waits for others without end. Its own faults are charged and leave it degraded; it is
        given up only where its author has set `max_attempts`. The arguments are those of `decide`;
        without `charges` its own faults cost nothing either, and leave it degraded.
        """
        classified = classify(error, now=now, classifiers=self.classifiers)
        if classified.category in OWN_CLASSES:
            delay_seconds = classified.wait_seconds
            if delay_seconds is None:
                ago = deferred_since_seconds_ago or 0.0
                step = attempts if charges else self.degraded.step_after(ago)
                delay_seconds = self.degraded.delay(step, rand)
            used_up = charges and max_attempts is not None and is_last(attempts, max_attempts)
            decision = _charge(error, delay_seconds, ends=used_up)
            return decision if charges else replace(decision, charge=False)
        patient = replace(self, give_up_after_seconds=math.inf)
        return patient._defer(classified, deferred_since_seconds_ago or 0.0, 0, rand)

    def decide_crash(self, *, crashes: int, max_crashes: int, rand: float) -> RetryDecision:
        """Decide what follows the death of a process that ran a job alone; `crashes` before.

        At `max_crashes` the job is poison and ends.
        """
        ends = is_last(crashes, max_crashes)
        delay_seconds = 0.0 if ends else self.own.delay(crashes, rand)
        return RetryDecision(ErrorCategory.CRASHED, delay_seconds, charge=False, ends=ends)

    def _defer(
        self, classified: Classified, seconds_ago: float, deferrals: int, rand: float
    ) -> RetryDecision:
        service = classified.category is FailureClass.SERVICE
        backoff = self.service if service else self.node
        left_seconds = self.give_up_after_seconds - seconds_ago
        delay_seconds = backoff.delay(max(backoff.step_after(seconds_ago), deferrals), rand)
        delay_seconds = min(delay_seconds, left_seconds)  # the last try is when the time is over
        # A wait that was asked for is obeyed exactly. One of 0 (a date in the past) leaves the
        # back-off in charge: obeyed exactly, it would be a busy loop that costs nothing.
        if classified.wait_seconds:
            delay_seconds = classified.wait_seconds
        ends = left_seconds <= 0 or delay_seconds > left_seconds
        return RetryDecision(
            category=ErrorCategory.SERVICE if service else ErrorCategory.NODE,
            delay_seconds=0.0 if ends else delay_seconds,
            charge=False,
            ends=ends,
            status=classified.status,
            given_up_wait_seconds=max(0.0, delay_seconds) if ends else None,
        )


def _charge(error: BaseException, delay_seconds: float, *, ends: bool) -> RetryDecision:
    timed_out = isinstance(error, TimeLimitError)
    return RetryDecision(
        category=ErrorCategory.TIMEOUT if timed_out else ErrorCategory.OWN,
        delay_seconds=0.0 if ends else delay_seconds,
        charge=True,
        ends=ends,
    )
