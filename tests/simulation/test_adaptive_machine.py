# SPDX-License-Identifier: Apache-2.0
"""Does the adaptive limit keep its promises, whatever happens in whatever order?

`HYPOTHESIS_PROFILE=soak` runs for minutes and draws new examples each time.
"""

from __future__ import annotations

from copy import deepcopy
from math import inf, isfinite

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.admission.requests.adaptive.limit import Adaptive, AdaptiveMark
from penstock.admission.requests.algorithm import LearnedLimit, LimitMode
from penstock.model.request import (
    Quota,
    QuotaReading,
    RequestOutcome,
    RequestReleaseOutcome,
)
from tests.depth import SOAK

PROFILE = settings(
    max_examples=3_000 if SOAK else 40,
    stateful_step_count=100 if SOAK else 50,
    derandomize=not SOAK,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
LOCAL = (
    RequestOutcome.LOCAL_CANCELLED,
    RequestOutcome.LOCAL_TIMEOUT,
    RequestOutcome.UNEXPECTED_EXCEPTION,
)
EXACT_SECONDS = 1e-4
SECONDS = st.one_of(st.floats(0.0, 0.2), st.floats(0.0, 5.0), st.floats(0.0, 1_000.0))


class AdaptiveMachine(RuleBasedStateMachine):
    """Grants what may leave, lets it end in every way, and looks after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.marks: list[tuple[AdaptiveMark, int]] = []  # and the window's generation at its grant
        self.decreases = 0
        self.blocked_until = -inf

    @initialize(
        most=st.integers(1, 300),
        chance=st.floats(0.0, 0.999),
        ceiling=st.one_of(st.none(), st.floats(0.5, 500.0)),
        rate=st.one_of(st.none(), st.floats(0.01, 1_000.0)),
        mode=st.sampled_from(LimitMode),
        age=st.floats(0.0, 100_000.0),
    )
    def begin(
        self,
        most: int,
        chance: float,
        ceiling: float | None,
        rate: float | None,
        mode: LimitMode,
        age: float,
    ) -> None:
        learned = LearnedLimit(ceiling, 3, mode, rate, 1.0)
        self.most = most
        self.limit = Adaptive(most, 0.0, lambda: chance, learned, age)

    def window(self) -> int:
        return self.limit.window(self.now, len(self.marks))

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        before = self.window()
        self.now += seconds
        after = self.window()
        assert after >= before
        if len(self.marks) < before / 2 - 1 and self.limit.mode is LimitMode.CONCURRENCY:
            assert after == before  # F51: what nobody uses does not grow

    def window_later(self, time: float) -> int:
        """Of a copy, so that nothing has happened."""
        return deepcopy(self.limit).window(time, len(self.marks))

    @precondition(lambda self: len(self.marks) >= self.window())
    @rule(part=st.floats(0.0, 0.999), wait=st.booleans())
    def ask_when_it_grows(self, part: float, wait: bool) -> None:
        """A full window grows at the time that it names, and not before."""
        in_flight = len(self.marks)
        due = self.limit.grows_at(self.now, in_flight)
        assert due > self.now
        if not isfinite(due):
            if self.limit.mode is LimitMode.CONCURRENCY:
                assert self.window_later(self.now + 1e5) <= in_flight
            return
        assert self.window_later(due) > in_flight
        if due - self.now > EXACT_SECONDS:
            before = self.now + part * (due - self.now - EXACT_SECONDS)
            assert self.window_later(before) <= in_flight
        if wait:
            self.now = due

    @rule(count=st.integers(1, 40), tokens=st.floats(0.0, 1e5))
    def send(self, count: int, tokens: float) -> None:
        """As many as may leave now, each at the time that the limit names."""
        for _ in range(count):
            if len(self.marks) >= self.window():
                return
            ready = self.limit.send_at(self.now, len(self.marks), tokens)
            assert ready >= self.now
            assert ready >= self.limit.blocked_until
            if not isfinite(ready):
                return
            self.now = ready
            if len(self.marks) >= self.window():
                return
            mark = self.limit.granted(self.now, len(self.marks), tokens)
            self.marks.append((mark, self.decreases))

    def _end(self, number: int, outcome: RequestReleaseOutcome) -> None:
        mark, decreases = self.marks.pop(number % len(self.marks))
        before = self.window()
        self.limit.ended(self.now, len(self.marks), mark, outcome)
        after = self.window()
        if outcome.outcome is RequestOutcome.RATE_LIMITED:
            is_rate = self.limit.mode is not LimitMode.CONCURRENCY
            assert after <= before or is_rate
            if decreases != self.decreases:
                assert after >= before  # one decrease per epoch
        if after < before:
            self.decreases += 1

    @precondition(lambda self: self.marks)
    @rule(number=st.integers(0, 1_000), count=st.integers(1, 40), tokens=st.integers(0, 10**6))
    def succeed(self, number: int, count: int, tokens: int) -> None:
        outcome = RequestReleaseOutcome(RequestOutcome.SUCCESS, tokens_used=tokens)
        for _ in range(min(count, len(self.marks))):
            self._end(number, outcome)

    @precondition(lambda self: self.marks)
    @rule(number=st.integers(0, 1_000), seconds=st.one_of(st.none(), st.floats(0.0, 900.0)))
    def refuse(self, number: int, seconds: float | None) -> None:
        self._end(number, RequestReleaseOutcome(RequestOutcome.RATE_LIMITED, seconds))

    @precondition(lambda self: self.marks)
    @rule(number=st.integers(0, 1_000), count=st.integers(1, 30), timed_out=st.booleans())
    def fail(self, number: int, count: int, timed_out: bool) -> None:
        kind = RequestOutcome.PROVIDER_TIMEOUT if timed_out else RequestOutcome.PROVIDER_FAILURE
        for _ in range(min(count, len(self.marks))):
            self._end(number, RequestReleaseOutcome(kind))

    @precondition(lambda self: self.marks)
    @rule(number=st.integers(0, 1_000), outcome=st.sampled_from(LOCAL))
    def end_by_ourselves(self, number: int, outcome: RequestOutcome) -> None:
        before = (self.window(), self.limit.blocked_until, self.limit.learned())
        self._end(number, RequestReleaseOutcome(outcome, 60.0))
        assert (self.window(), self.limit.blocked_until, self.limit.learned()) == before

    @precondition(lambda self: self.marks)
    @rule(
        number=st.integers(0, 1_000),
        quota=st.sampled_from(Quota),
        limit=st.floats(-1.0, 1e6),
        part=st.floats(-0.1, 1.5),
        window=st.sampled_from([0.0, 1.0, 60.0, 86_400.0]),
        reset=st.floats(0.0, 1e5),
    )
    def tell(
        self, number: int, quota: Quota, limit: float, part: float, window: float, reset: float
    ) -> None:
        reading = QuotaReading(quota, limit, limit * part, window, reset)
        self._end(number, RequestReleaseOutcome(RequestOutcome.SUCCESS, None, (reading,)))

    @rule(most=st.integers(1, 300))
    def change_the_maximum(self, most: int) -> None:
        self.most = most
        self.limit.set_max(most)

    @invariant()
    def window_is_within_its_bounds(self) -> None:
        assert 1 <= self.window() <= self.most

    @invariant()
    def pause_never_ends_earlier(self) -> None:
        assert self.limit.blocked_until >= self.blocked_until
        self.blocked_until = self.limit.blocked_until


def test_adaptive_limit_keeps_its_promises() -> None:
    run_state_machine_as_test(AdaptiveMachine, settings=PROFILE)
