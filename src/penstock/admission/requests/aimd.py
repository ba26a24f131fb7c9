# SPDX-License-Identifier: Apache-2.0
"""AIMD: the limit rises by one after many successes and falls by a factor at a refusal (429)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import inf

import msgspec

from penstock.admission.requests.algorithm import QUOTA_SECONDS, LearnedLimit, LimitChange
from penstock.admission.requests.policy import AimdConfig
from penstock.model.request import RequestOutcome, RequestReleaseOutcome

FORGOTTEN_SECONDS = 86_400.0  # after this long what was learned counts no more


class AimdMark(msgspec.Struct, frozen=True, gc=False):
    """What a request remembers of its grant."""

    limit: int


class Aimd:
    """One limit of the algorithm `aimd`. Pure.

    Invariants: 1 ≤ limit ≤ maximum; `blocked_until` never moves earlier; a refusal of a request
    that was granted under a higher limit than the present one changes only the cool-down.
    """

    def __init__(
        self,
        config: AimdConfig,
        effective_max: int,
        now: float,
        learned: LearnedLimit | None = None,
        learned_age_seconds: float = 0.0,
    ) -> None:
        self._config = config
        self._max = effective_max
        initial = effective_max if config.initial_limit is None else config.initial_limit
        self._limit = self._clamped(initial)
        self._ceiling: int | None = None  # the limit at the last refusal
        self._is_reduced = False  # below the maximum because of a refusal
        if learned is not None and learned.ceiling is not None:
            self._resume(learned.ceiling, learned_age_seconds)
        self._ramp_to: int | None = None
        self._ramp_from = now
        if config.startup_ramp_seconds > 0 and self._limit > 1:
            self._ramp_to, self._limit = self._limit, 1
        self._successes = 0
        self.blocked_until = -inf
        self.consecutive_refusals = 0

    def __repr__(self) -> str:
        return f"<Aimd {self._limit} of {self._max}>"

    @property
    def ceiling(self) -> float | None:
        return self._ceiling

    def set_max(self, effective_max: int) -> None:
        self._max = effective_max
        self._limit = self._clamped(self._limit)
        if self._ramp_to is not None:
            self._ramp_to = self._clamped(self._ramp_to)

    def window(self, now: float, in_flight: int) -> int:
        self._ramp(now)
        return self._limit

    def grows_at(self, now: float, in_flight: int) -> float:
        """Return when the startup ramp grows; after it only successes raise the limit."""
        if self._ramp_to is None or in_flight >= self._ramp_to:
            return inf
        wanted = max(in_flight, self._limit) + 1
        part = (wanted - 1) / max(1, self._ramp_to - 1)
        return max(now, self._ramp_from + part * self._config.startup_ramp_seconds)

    def send_at(self, now: float, in_flight: int, tokens: float) -> float:
        return max(now, self.blocked_until)

    def granted(self, now: float, in_flight_before: int, tokens: float) -> AimdMark:
        return AimdMark(self._limit)

    def ended(
        self, now: float, in_flight_after: int, mark: AimdMark, ending: RequestReleaseOutcome
    ) -> Sequence[LimitChange]:
        if ending.outcome is RequestOutcome.RATE_LIMITED:
            return self._refused(now, mark, ending)
        if ending.outcome is RequestOutcome.SUCCESS:
            return self._succeeded(now)
        return ()

    def pause(self, now: float, seconds: float) -> None:
        self.blocked_until = max(self.blocked_until, now + seconds)

    def learned(self) -> LearnedLimit:
        """Return where it was refused, or how far it has come since."""
        if self._ceiling is None:
            return LearnedLimit()
        return LearnedLimit(ceiling=float(max(self._ceiling, self._limit)))

    def _resume(self, ceiling: float, age_seconds: float) -> None:
        """Start as after a refusal at that level; a day later as if nothing were known."""
        known = self._clamped(math.floor(ceiling * self._config.decrease_factor))
        if age_seconds >= FORGOTTEN_SECONDS or known >= self._limit:
            return
        doubt = max(0.0, age_seconds) / FORGOTTEN_SECONDS
        self._limit = known + math.floor((self._limit - known) * doubt)
        self._ceiling = self._clamped(round(ceiling))
        self._is_reduced = True

    def _refused(
        self, now: float, mark: AimdMark, ending: RequestReleaseOutcome
    ) -> Sequence[LimitChange]:
        """Handle a refusal (HTTP 429): begin the cool-down, and lower the limit once per burst."""
        self.consecutive_refusals += 1
        rest = ending.retry_after_seconds
        if rest is None or (not rest and self._limit == 1):  # less often is all that is left
            rest = self._config.cooldown_seconds
        self.blocked_until = max(self.blocked_until, now + rest)
        self._ramp_to = None
        self._successes = 0
        if mark.limit > self._limit or rest > QUOTA_SECONDS:
            return ()  # of the same burst as a refusal that has counted already, or a used-up quota
        self._ceiling = self._limit
        self._is_reduced = True
        before = self._limit
        self._limit = self._clamped(math.floor(before * self._config.decrease_factor))
        return (LimitChange.DECREASED,) if self._limit < before else ()

    def _succeeded(self, now: float) -> Sequence[LimitChange]:
        self.consecutive_refusals = 0
        self._ramp(now)
        if now < self.blocked_until or self._ramp_to is not None:
            return ()
        self._successes += 1
        if self._successes < self._config.successes_until_increase or self._limit >= self._max:
            return ()
        self._successes = 0
        self._limit += 1
        changes = [LimitChange.INCREASED]
        if self._ceiling is not None and self._limit == self._ceiling + 1:
            changes.append(LimitChange.SOFT_CEILING_RECOVERED)
        if self._is_reduced and self._limit >= self._max:
            self._is_reduced = False
            changes.append(LimitChange.FULLY_RECOVERED)
        return changes

    def _ramp(self, now: float) -> None:
        if self._ramp_to is None:
            return
        part = (now - self._ramp_from) / self._config.startup_ramp_seconds
        reached = 1 + math.floor((self._ramp_to - 1) * min(1.0, max(0.0, part)) + 1e-9)
        self._limit = self._clamped(max(self._limit, reached))
        if part >= 1.0:
            self._ramp_to = None

    def _clamped(self, limit: int) -> int:
        return max(1, min(limit, self._max))
