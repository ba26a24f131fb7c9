# SPDX-License-Identifier: Apache-2.0
"""The algorithm `adaptive`: finds a provider's concurrency or rate limit from its outcomes.

A refusal (HTTP 429, rate limited) lowers the window or the rate: see `Adaptive._refused`.
One object per provider's model, shared by its domains. Each part owns one idea; this file says in
which order they are asked, and what each outcome means to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import msgspec

from penstock.admission.requests.adaptive.latency import Cohort, LatencyWatch
from penstock.admission.requests.adaptive.rate import (
    EVEN_GAIN,
    Mirrors,
    ModeDetector,
    Pacer,
    RateLimit,
    Rates,
    Sent,
)
from penstock.admission.requests.adaptive.window import (
    FREE,
    ROUNDING,
    SURE,
    LimitChanges,
    Window,
    hold_seconds,
)
from penstock.admission.requests.algorithm import (
    QUOTA_SECONDS,
    LearnedLimit,
    LimitChange,
    LimitMode,
)
from penstock.admission.requests.breaker import CircuitBreaker
from penstock.model.request import LOCAL_OUTCOMES, RequestOutcome, RequestReleaseOutcome


class AdaptiveMark(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a grant until its request ends."""

    epoch: int
    in_flight_before: int
    tokens: float
    cohort: Cohort
    sent: Sent
    is_probe: bool


FIRST_SECONDS = 0.5  # if the provider does not say how long; doubles
MOST_SECONDS = 10.0
FAILURES_MAX = 7
JITTER = 0.1  # of a pause, added
JITTER_MAX_SECONDS = 0.25
STRIKE_LATENCIES = 2.0  # how long a strike is remembered
EXTENDED_PAUSE_LATENCIES = 0.5  # after a strike that was not a probe


class Cooldown:
    """Owns the time before which nothing leaves. Invariant: it never moves earlier."""

    def __init__(self) -> None:
        self.until = -inf
        self.seconds = 1.0  # the last pause, without jitter
        self.last_until = -inf  # when the pause before the present one ended
        self.last_seconds = 0.0
        self.failures = 0  # refused epochs in a row
        self.even_until = -inf  # requests leave evenly
        self._strike_at = -inf
        self._strike_seconds = 0.0

    @property
    def strike_seconds(self) -> float:
        """How long the last strike is remembered; 0: there was none."""
        return self._strike_seconds

    def strike(self, now: float, retry_after: float, latency: float) -> bool:
        """Count a refusal of a probe at the ceiling; True: it is forgiven."""
        seconds = max(retry_after, STRIKE_LATENCIES * latency)
        is_first = now - self._strike_at > seconds
        self._strike_at = now
        self._strike_seconds = seconds
        return is_first

    def belongs_to_strike(self, sent_at: float) -> bool:
        """Return whether a request was sent before the last strike, and so is part of it."""
        return sent_at <= self._strike_at

    def begin(self, now: float, retry_after: float, rand: Callable[[], float]) -> None:
        """Pause for as long as the provider says, else with exponential back-off and jitter."""
        seconds = retry_after
        if seconds <= 0:
            seconds = min(MOST_SECONDS, FIRST_SECONDS * 2.0**self.failures)
        if now >= self.until > -inf:
            self.last_until, self.last_seconds = self.until, self.seconds
        self.seconds = seconds
        jitter = rand() * min(JITTER_MAX_SECONDS, JITTER * seconds)
        self.until = max(self.until, now + seconds + jitter)

    def pace_evenly(self, now: float) -> None:
        """Let requests leave evenly while the strike is remembered."""
        self.even_until = now + self._strike_seconds

    def extend_pause(self, now: float, latency: float) -> None:
        """Pause a little after a strike where it should have been safe: a rate may be the limit."""
        self.until = max(self.until, now + EXTENDED_PAUSE_LATENCIES * latency)

    def refused(self) -> None:
        """Count an epoch that begins with a refusal."""
        self.failures = min(FAILURES_MAX, self.failures + 1)


DAY_SECONDS = 86_400.0  # after it nothing is left of what was learned
TICK_SECONDS = 1e-6  # beyond the time at which the window is as large as wanted
SMOOTH_FROM = 10  # a smaller window would not stay full
GAP_AT_START_SECONDS = 0.02  # before anything has ended
LATENCY_MIN_SECONDS = 1e-4
LEARNED_ANSWERS = 20  # for which the latency of an earlier run counts, if it has just ended
LEARNED_LATENCY_MAX_SECONDS = 10.0  # a longer one is found anew: the pace at the start follows it
LATENCY_SMOOTHING = 0.05
TUNE_STEP = 0.02  # change of the latency that matters
TOKENS_SMOOTHING = 0.02
PROBE_COST_MAX_SECONDS = 0.1  # a first strike is forgiven: it costs little
COSTLY_LATENCIES = 6.0  # a longer pause costs more than to stay a little below for its length
CERTAIN = 3  # refusals in a row that agree: it is concurrency, and a second strike will not come
CHEAP_LATENCIES = 0.25  # a shorter pause costs so little that a second strike may come
IDLE_LEVEL = 0.05  # of the window: refused with less in flight, the door is closed for all
SUSPECT_LEVEL = 2  # refused at the start with no more in flight: a rate is suspected
SUSPECT_SEEN = 8
DRAINED_LATENCIES = 2.0  # after a pause of so many hardly anything is left at the provider
ONE_LEVEL = 3  # refusals with the same small number in flight: it is no rate
ONE_LEVEL_MAX = 3
IN_VAIN_MAX = 4  # refusals with nothing accepted between say nothing about a rate
IDLE_GAPS = 2.0  # a rate is not proven by time in which nothing wanted to leave
IDLE_SECONDS = 1.0


class Adaptive:
    """The limit of the algorithm `adaptive`. Pure.

    Invariants: 1 ≤ window ≤ maximum; `blocked_until` never moves earlier; one decrease per epoch;
    local outcomes change nothing.
    """

    def __init__(
        self,
        effective_max: int,
        now: float,
        rand: Callable[[], float],
        learned: LearnedLimit | None = None,
        learned_age_seconds: float = 0.0,
    ) -> None:
        self._max = effective_max
        self._rand = rand
        self._at = now  # growth is counted until here
        self._in_flight = 0
        self._window = Window(effective_max)
        self._rate = RateLimit()
        self._mode = ModeDetector()
        self._mirrors = Mirrors()
        self._watch = LatencyWatch(self._window)
        self._cooldown = Cooldown()
        self._breaker = CircuitBreaker()
        self._pacer = Pacer()
        self._epoch = 0
        self._latency: float | None = None
        self._tuned_for = 0.0  # the latency that the window's pace of change follows
        self._answers = 0  # successes
        self._transit = 1.0  # seconds: the shortest refusal
        self._mean_tokens = 1.0
        self._levels: list[int] = []  # in flight at the last refusals, while a rate is the limit
        self._sent_at = -inf
        self._was_refused = False  # in this run, or in the one that it learned from
        self._reported = LimitChanges(self._window_size())
        self.consecutive_refusals = 0
        if learned is not None:
            self._resume(learned, 1.0 - learned_age_seconds / DAY_SECONDS)
        self._tune()

    def __repr__(self) -> str:
        ceiling = self.ceiling
        known = "never refused" if ceiling is None else f"refused at {ceiling:g}"
        return f"<Adaptive {self._window_size()} of {self._max}, {known}, {self._mode.mode}>"

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────

    @property
    def blocked_until(self) -> float:
        paused, broken = self._cooldown.until, self._breaker.until
        return paused if paused > broken else broken

    @property
    def ceiling(self) -> float | None:
        ceiling = self._window.ceiling
        return None if ceiling == inf else ceiling

    @property
    def mode(self) -> LimitMode:
        return self._mode.mode

    def set_max(self, effective_max: int) -> None:
        self._max = effective_max
        self._window.set_maximum(effective_max)

    def window(self, now: float, in_flight: int) -> int:
        self._advance(now, in_flight)
        return self._window_size()

    def grows_at(self, now: float, in_flight: int) -> float:
        self._advance(now, in_flight)
        if in_flight + 1 > self._watch.limit + ROUNDING:
            return inf  # only an end changes that
        if self._mode.mode is not LimitMode.CONCURRENCY:
            seconds = self._window.seconds_to_widen(in_flight + 1, self._in_flight_needed())
            return now + seconds + TICK_SECONDS
        seconds = self._window.seconds_until(in_flight + 1, may_probe=self._watch.may_probe)
        return now + seconds + TICK_SECONDS

    def send_at(self, now: float, in_flight: int, tokens: float) -> float:
        self._advance(now, in_flight)
        if self._breaker.is_probing:
            return inf
        blocked, ready = self.blocked_until, self._pacer.ready_at(now)
        if blocked > ready:
            ready = blocked
        if self._mirrors:
            ready = max(ready, self._mirrors.ready_at(now, max(1.0, tokens)))
        return ready

    def learned(self) -> LearnedLimit:
        mode = self._mode.mode
        ceiling = self._rate.ceiling
        is_rate = mode is not LimitMode.CONCURRENCY and ceiling < inf
        if not self._was_refused:  # a ceiling of latency is of this run, its machine and its load
            return LearnedLimit(latency_seconds=self._latency)
        return LearnedLimit(
            self.ceiling,
            self._rate.confidence if is_rate else self._window.confidence,
            mode if is_rate else LimitMode.CONCURRENCY,
            ceiling if is_rate else None,
            self._latency,
        )

    # ── Feeding ───────────────────────────────────────────────────────────────────────────────────

    def granted(self, now: float, in_flight_before: int, tokens: float) -> AdaptiveMark:
        self._advance(now, in_flight_before)
        self._in_flight = in_flight_before + 1
        if tokens < 1.0:
            tokens = 1.0
        self._mode.sent(tokens)
        self._mean_tokens += TOKENS_SMOOTHING * (tokens - self._mean_tokens)
        self._sent_at = now
        self._pacer.sent(now, self._gap(now, tokens), self._latency or 1.0, self._transit)
        return AdaptiveMark(
            self._epoch,
            in_flight_before,
            tokens,
            self._watch.sent(),
            self._mirrors.sent(now, tokens),
            self._breaker.sent(),
        )

    def ended(
        self,
        now: float,
        in_flight_after: int,
        mark: AdaptiveMark,
        ending: RequestReleaseOutcome,
    ) -> Sequence[LimitChange]:
        self._advance(now, in_flight_after + 1)
        self._in_flight = in_flight_after
        outcome = ending.outcome
        if outcome in LOCAL_OUTCOMES:
            self._watch.ignore(mark.cohort)
            if mark.is_probe:
                self._breaker.probe_lost()
            return ()
        if ending.readings:
            self._mirrors.read(now, mark.sent, ending.readings)
            used_up = max(reading.used_up_seconds for reading in ending.readings)
            if used_up > QUOTA_SECONDS:
                self._cooldown.begin(now, used_up, self._rand)
        if outcome is RequestOutcome.RATE_LIMITED:
            self._watch.ignore(mark.cohort)
            if mark.is_probe:
                self._breaker.probe_lost()
            self._refused(now, mark, ending.retry_after_seconds or 0.0)
            return self._changes()
        failed = outcome is RequestOutcome.PROVIDER_FAILURE
        if failed:
            self._watch.ignore(mark.cohort)
        else:
            self._answered(now, mark, is_success=outcome is RequestOutcome.SUCCESS)
        closed = self._breaker.ended(
            now, failed=failed, is_probe=mark.is_probe, sent_at=mark.sent.at, rand=self._rand
        )
        if closed or self._breaker.is_open:
            self._pacer.start_slowly()
        return self._changes()

    def pause(self, now: float, seconds: float) -> None:
        self._cooldown.begin(now, seconds, self._rand)
        self._pacer.start_slowly()

    # ── Growing ───────────────────────────────────────────────────────────────────────────────

    def _advance(self, now: float, in_flight: int) -> None:
        """Count the time since the last call, in which so many were in flight."""
        seconds = now - self._at
        if seconds <= 0:
            return
        self._at = now
        if self._mode.mode is LimitMode.CONCURRENCY:
            self._window.advance(seconds, in_flight, may_probe=self._watch.may_probe)
            return
        is_bound = in_flight >= self._window_size()
        if is_bound:
            self._window.widen(seconds, self._in_flight_needed())
        gap = self._gap(now, self._mean_tokens)
        if now - self._sent_at <= max(IDLE_SECONDS, IDLE_GAPS * gap):
            hold = self._rate.hold(
                self._unit(), self._latency or 1.0, 1.5 * self._cooldown.strike_seconds
            )
            self._rate.advance(seconds, hold, may_probe=not is_bound)

    def _gap(self, now: float, tokens: float) -> float:
        """Return the pause between a request of so many tokens and the next."""
        window = self._window
        gap = 0.0
        if self._latency is not None:
            gain = EVEN_GAIN if now < self._cooldown.even_until else self._pacer.gain
            gap = self._latency / (gain * window.size)
        elif window.is_starting:
            gap = GAP_AT_START_SECONDS
        if self._mode.mode is not LimitMode.CONCURRENCY:
            amount = tokens if self._mode.mode is LimitMode.TOKENS else 1.0
            gap = max(gap, amount / self._rate.per_second)
        return gap

    def _tune(self) -> None:
        latency = self._tuned_for = self._latency or 1.0
        pause = self._cooldown.seconds
        cost = pause * pause / (2 * latency) if pause < latency else pause - latency / 2
        window = self._window
        hold = hold_seconds(
            window.size / latency,
            min(cost, PROBE_COST_MAX_SECONDS),
            window.confidence,
            latency,
            1.5 * self._cooldown.strike_seconds if pause >= CHEAP_LATENCIES * latency else 0.0,
        )
        window.tune(latency, hold)

    def _unit(self) -> float:
        """Return the size of a mean request in what the rate counts."""
        return self._mean_tokens if self._mode.mode is LimitMode.TOKENS else 1.0

    def _in_flight_needed(self) -> float:
        return self._rate.in_flight_needed(self._unit(), self._latency or 1.0)

    def _window_size(self) -> int:
        size, limit = self._window.size, self._watch.limit
        return max(1, int((size if size < limit else limit) + ROUNDING))

    # ── An answer ─────────────────────────────────────────────────────────────────────────────

    def _answered(self, now: float, mark: AdaptiveMark, *, is_success: bool) -> None:
        """Learn from a success or a time-out."""
        seconds = max(LATENCY_MIN_SECONDS, now - mark.sent.at)
        if is_success:
            self._answers += 1
            self.consecutive_refusals = 0
            self._window.worked(mark.in_flight_before)
            known = self._latency
            weight = max(LATENCY_SMOOTHING, 1.0 / self._answers)
            self._latency = seconds if known is None else known + weight * (seconds - known)
            if mark.epoch == self._epoch:
                self._cooldown.failures = 0
            if abs(self._latency - self._tuned_for) > TUNE_STEP * self._tuned_for:
                self._tune()
        self._epoch += self._watch.answered(
            now,
            mark.cohort,
            seconds,
            self._in_flight,
            self._latency or 1.0,
            is_success=is_success,
        )

    # ── A refusal ─────────────────────────────────────────────────────────────────────────────

    def _refused(self, now: float, mark: AdaptiveMark, retry_after: float) -> None:
        """Handle a refusal (HTTP 429): pause, and lower the window or the rate once per epoch."""
        self.consecutive_refusals += 1
        self._mode.not_accepted(mark.tokens)
        if retry_after > QUOTA_SECONDS:
            self.pause(now, retry_after)
            return
        self._was_refused = True
        is_fresh = mark.epoch == self._epoch
        self._transit = min(self._transit, now - mark.sent.at)
        latency = self._latency or 1.0
        is_costly = self._window.confidence < CERTAIN and retry_after > COSTLY_LATENCIES * latency
        if self._is_forgiven(now, mark, retry_after, is_fresh, is_costly):
            if is_fresh and is_costly:
                self._cooldown.pace_evenly(now)
                if mark.in_flight_before < self._window.ceiling:
                    self._cooldown.extend_pause(now, latency)
        elif is_fresh or retry_after:
            self._cooldown.begin(now, retry_after, self._rand)
            self._pacer.start_slowly(was_in_vain=self._cooldown.failures > 0)
        if not is_fresh:
            return
        self._epoch += 1
        self._cooldown.refused()
        if not self._mirrors.explains_refusal(mark.tokens):
            self._learn(now, mark.in_flight_before, is_costly=is_costly)
        self._tune()

    def _is_forgiven(
        self, now: float, mark: AdaptiveMark, retry_after: float, is_fresh: bool, is_costly: bool
    ) -> bool:
        if not is_fresh:
            return self._cooldown.belongs_to_strike(mark.sent.at)
        is_wide = is_costly and not self._cooldown.failures
        return (
            self._mode.mode is LimitMode.CONCURRENCY
            and self._window.is_near(mark.in_flight_before, is_costly=is_wide)
            and self._cooldown.strike(now, retry_after, self._latency or 1.0)
        )

    def _learn(self, now: float, in_flight: int, *, is_costly: bool) -> None:
        """Learn from the first refusal of an epoch: a rate, or the ceiling of the window."""
        mode, window = self._mode, self._window
        level = max(1, in_flight)
        before = mode.mode
        has_moved = window.confidence >= SURE and not window.agrees(in_flight)
        quick = self._rate.is_searching
        rates = mode.refused(now, level, is_quick=quick, has_moved=has_moved)
        if mode.mode is not before:
            self._rate.forget()
            window.confidence = 0
            if mode.mode is not LimitMode.CONCURRENCY:
                self._open_window()
            elif window.ceiling == inf:
                window.settle(0)
        if (
            mode.mode is LimitMode.CONCURRENCY
            and level <= SUSPECT_LEVEL
            and window.seen < SUSPECT_SEEN
            and rates is None
            and self._rate.per_second == inf
        ):
            self._suspect_rate()
        elif mode.mode is not LimitMode.CONCURRENCY:
            self._learn_rate(in_flight, rates)
        elif in_flight < max(1.0, IDLE_LEVEL * window.size) and self._cooldown.failures >= 2:
            if mode.refused_when_idle(self._answers):  # the window says nothing
                self._suspect_rate()
        else:
            transit = 0.0 if self._latency is None else self._transit / self._latency
            known = window.ceiling
            is_drained = self._is_drained(now)
            window.refused(in_flight, transit, is_drained=is_drained, is_costly=is_costly)
            self._reported.refused()
            self._smooth(known)

    def _is_drained(self, now: float) -> bool:
        """True if a pause has just ended that was longer than requests take."""
        latency = self._latency or 1.0
        was_long = self._cooldown.last_seconds >= DRAINED_LATENCIES * latency
        return was_long and 0 <= now - self._cooldown.last_until < latency

    def _smooth(self, known: float) -> None:
        """Spread requests out if it was refused with fewer in flight than last time."""
        if self._window.confidence:
            self._pacer.allow_bursts()
        elif self._window.ceiling < known < inf and self._window.size >= SMOOTH_FROM:
            self._pacer.spread_out()

    def _learn_rate(self, in_flight: int, rates: Rates | None) -> None:
        self._window.is_starting = False
        self._levels = [*self._levels, in_flight][-ONE_LEVEL:]
        if 0 < in_flight <= ONE_LEVEL_MAX and self._levels == [in_flight] * ONE_LEVEL:
            self._reject_rate(in_flight)
        elif rates is not None:
            self._rate.refused(rates.of(self._mode.mode), rates.seconds)
        elif self._cooldown.failures < IN_VAIN_MAX:
            self._rate.refused_early()
        else:
            self._rate.stay()

    def _suspect_rate(self) -> None:
        """Search for a rate: it was refused with almost nothing in flight."""
        self._mode.suspect_rate()
        self._rate.search()
        self._window.is_starting = False
        self._open_window()

    def _reject_rate(self, level: int) -> None:
        """Return to concurrency: it is always refused at the same small number in flight."""
        self._mode.reject_rate()
        self._rate = RateLimit()
        self._levels = []
        window = self._window
        window.seen = max(window.seen, SUSPECT_SEEN)
        window.size = float(min(level, self._max))
        window.settle(1)

    def _open_window(self) -> None:
        """Widen the window, which only has to be large enough for the rate."""
        window = self._window
        window.size = float(min(self._max, max(window.size, FREE)))

    # ── From run to run, and events ───────────────────────────────────────────────────────────

    def _resume(self, learned: LearnedLimit, trust: float) -> None:
        if trust <= 0:
            return
        if learned.latency_seconds is not None:
            latency = min(LEARNED_LATENCY_MAX_SECONDS, learned.latency_seconds)
            self._latency = max(LATENCY_MIN_SECONDS, latency)
            self._answers = max(1, round(LEARNED_ANSWERS * trust))
        if learned.ceiling is not None:
            self._was_refused = True
            self._window.resume(learned.ceiling, learned.confidence, trust)
        if learned.rate is not None and learned.mode is not LimitMode.CONCURRENCY:
            self._was_refused = True
            self._mode.resume(learned.mode)
            self._rate.resume(learned.rate)
            self._window.is_starting = False
            self._open_window()

    def _changes(self) -> Sequence[LimitChange]:
        size = self._window_size()
        if size == self._reported.size:
            return ()
        return self._reported.since_reported(
            size,
            self._max,
            self._window.ceiling,
            is_paused=self._at < self.blocked_until,
        )
