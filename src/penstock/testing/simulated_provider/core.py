# SPDX-License-Identifier: Apache-2.0
"""Decides how a simulated provider answers each call: limits, failures, latency.

Pure: it takes the time as an argument and draws from a seed and the number of the call, so the same
calls at the same moments get the same answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.testing.simulated_provider import dialects
from penstock.testing.simulated_provider.dialects import rate_headers, retry_after
from penstock.testing.simulated_provider.rules import (
    Change,
    Ending,
    Lognormal,
    ProviderRules,
    QuotaState,
    Rate,
    RateState,
    Reply,
    SimulatedRequest,
    begin_rate,
    bytewise,
    first_half,
)

LOG_MAX = 200_000  # calls that are remembered one by one
BUSY_RETRY_SECONDS = 1.0  # told when too many calls run: nobody knows when one ends

#: Answers a call before any limit is looked at; None leaves it to the rules.
Script = Callable[[SimulatedRequest], Reply | None]
#: The body, or the whole reply, of a call that is served.
Answer = Callable[[SimulatedRequest], Reply | bytes | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Counts:
    """What a provider has seen so far."""

    calls: int = 0
    served: int = 0  # answered to the end with a status below 400
    refused: int = 0  # by a limit
    failed: int = 0  # answered to the end with another status of 400 or more
    broken: int = 0  # reset by the provider
    abandoned: int = 0  # the client left before the end
    tokens: int = 0  # of calls that were served
    in_flight: int = 0  # now; refusals are not counted
    in_flight_max: int = 0


@dataclass(slots=True)
class Call:
    """One call, for whoever looks at the order of things; times are since the first call."""

    number: int
    at_seconds: float
    path: str
    status: int | None  # that was, or will be, sent
    refused: bool = False
    ended_seconds: float | None = None
    whole: bool = False  # the answer was sent to its end


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that is being answered; `ProviderCore.finish` ends it."""

    request: SimulatedRequest
    reply: Reply
    call: Call


class ProviderCore:
    """Owns the hidden limits and the counts. Knows no sockets and no loop."""

    def __init__(
        self,
        rules: ProviderRules,
        seed: int,
        changes: Sequence[Change],
        script: Script | None,
        answer: Answer | None,
    ) -> None:
        self._seed = seed
        self._script = script
        self._answer = answer
        self._changes = list(changes)
        self._began: float | None = None
        self._rates: dict[str, RateState] = {}
        self._of_rates: dict[str, Rate] = {}
        self.rules = rules
        self.counts = Counts()
        self.log: list[Call] = []

    def begin(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        now: float,
        wall: float,
    ) -> OpenCall:
        """A call arrives: how it will be answered."""
        if self._began is None:
            self._began = now
        seconds = now - self._began
        path, _, query = target.partition("?")
        number = self.counts.calls + 1
        request = SimulatedRequest(
            number, seconds, method, path, query, headers, body, self.counts.in_flight
        )
        self._follow_changes(seconds, number, now)
        reply, refused = self._decide(request, now, wall)
        call = Call(number, seconds, path, reply.status, refused)
        if len(self.log) < LOG_MAX:
            self.log.append(call)
        in_flight = self.counts.in_flight + (not refused)
        self.counts = replace(
            self.counts,
            calls=number,
            in_flight=in_flight,
            in_flight_max=max(in_flight, self.counts.in_flight_max),
        )
        return OpenCall(request, reply, call)

    def finish(self, opened: OpenCall, now: float, *, whole: bool) -> None:
        """The answer was sent to its end, or (not whole) somebody left before that; once."""
        call, counts = opened.call, self.counts
        if call.ended_seconds is not None:
            return
        call.ended_seconds = now - (self._began or 0.0)
        call.whole = whole
        status = opened.reply.status
        if call.refused:
            self.counts = replace(counts, refused=counts.refused + 1)
            return
        counts = replace(counts, in_flight=counts.in_flight - 1)
        if opened.reply.ending is Ending.RESET and whole:
            self.counts = replace(counts, broken=counts.broken + 1)
        elif not whole:
            self.counts = replace(counts, abandoned=counts.abandoned + 1)
        elif status is not None and status < 400:
            tokens = counts.tokens + opened.reply.tokens
            self.counts = replace(counts, served=counts.served + 1, tokens=tokens)
        else:
            self.counts = replace(counts, failed=counts.failed + 1)

    def change(self, rules: ProviderRules) -> None:
        """From the next call on other rules hold; a rate that stays the same keeps its level."""
        self.rules = rules

    def _follow_changes(self, seconds: float, number: int, now: float) -> None:
        due = [change for change in self._changes if change.due(seconds, number - 1)]
        if due:
            self._changes = [change for change in self._changes if change not in due]
            self.rules = due[-1].rules
        self._keep_rates(now)

    def _keep_rates(self, now: float) -> None:
        wanted = {"requests": self.rules.requests, "tokens": self.rules.tokens}
        for name, rate in wanted.items():
            if rate is None:
                self._rates.pop(name, None)
                self._of_rates.pop(name, None)
            elif self._of_rates.get(name) != rate:
                self._rates[name] = begin_rate(rate, now)
                self._of_rates[name] = rate

    def _decide(self, request: SimulatedRequest, now: float, wall: float) -> tuple[Reply, bool]:
        """The reply, and whether it is a refusal."""
        if self._script is not None and (scripted := self._script(request)) is not None:
            return scripted, False
        dice = random.Random(f"{self._seed}/{request.number}")
        rules = self.rules
        if any(begins <= request.at_seconds < ends for begins, ends in rules.outages):
            return self._failure(request), False
        usage = dialects.usage_of(request, rules.completion_tokens_max, dice)
        costs = {"requests": 1.0, "tokens": float(usage.total)}
        stopped = self._stopped_by(costs, now)
        if stopped is not None:
            return self._refusal(request, *stopped, costs, now, wall), True
        for name, rate in self._rates.items():
            rate.take(now, costs[name])
        latency = self._latency(request, dice)
        reply = self._success(request, usage, latency, dice)
        told = tuple(self._told(now, wall))
        return replace(reply, headers=(*reply.headers, *told)), False

    def _stopped_by(self, costs: Mapping[str, float], now: float) -> tuple[str, float] | None:
        """The limit that is in the way and how long it will be; None: there is none."""
        most = self.rules.concurrency
        if most is not None and self.counts.in_flight >= most:
            return "concurrency", BUSY_RETRY_SECONDS
        waits = {name: rate.wait(now, costs[name]) for name, rate in self._rates.items()}
        name = max(waits, key=waits.__getitem__, default=None)
        return None if name is None or waits[name] <= 0 else (name, waits[name])

    def _refusal(
        self,
        request: SimulatedRequest,
        limit: str,
        wait_seconds: float,
        costs: Mapping[str, float],
        now: float,
        wall: float,
    ) -> Reply:
        rules = self.rules
        for name, rate in self._rates.items():
            if self._of_rates[name].refusals_count:
                rate.take(now, costs[name])
        told = self._told(now, wall)
        if rules.retry_after_text is not None:
            told.append(("retry-after", rules.retry_after_text))
        elif rules.retry_after is not None:
            seconds = rules.retry_after_seconds
            date = wall if rules.retry_after == "date" else None
            told.append(
                ("retry-after", retry_after(wait_seconds if seconds is None else seconds, date))
            )
        body = dialects.error(
            request, rules.refusal_status, limit, f"The limit of {limit} is reached."
        )
        return Reply.of(
            body, status=rules.refusal_status, headers=told, wait_seconds=rules.refusal_seconds
        )

    def _told(self, now: float, wall: float) -> list[tuple[str, str]]:
        if self.rules.headers is None:
            return []
        states: dict[str, QuotaState] = {n: rate.state(now) for n, rate in self._rates.items()}
        return rate_headers(self.rules.headers, states, wall)

    def _failure(self, request: SimulatedRequest) -> Reply:
        status = self.rules.failure_status
        body = dialects.error(request, status, "failure", "The service is unavailable.")
        return Reply.of(body, status=status, wait_seconds=self.rules.refusal_seconds)

    def _latency(self, request: SimulatedRequest, dice: random.Random) -> float:
        latency = self.rules.latency
        if isinstance(latency, Lognormal):
            return latency.draw(dice)
        return latency(request) if callable(latency) else latency

    def _success(
        self,
        request: SimulatedRequest,
        usage: dialects.Usage,
        latency: float,
        dice: random.Random,
    ) -> Reply:
        rules = self.rules
        if dice.random() < rules.failure_rate:
            return replace(self._failure(request), wait_seconds=latency)
        if dice.random() < rules.lie_rate:
            lie = dialects.error(request, 200, "internal", "Something went wrong.")
            return Reply.of(lie, wait_seconds=latency, tokens=usage.total)
        reply = self._answered(request, usage, latency, dice)
        if dice.random() < rules.reset_rate:
            return replace(reply, parts=first_half(reply.parts), ending=Ending.RESET)
        if dice.random() < rules.hang_rate:
            return replace(reply, parts=first_half(reply.parts), ending=Ending.HANG)
        if dice.random() < rules.slow_rate:
            return replace(reply, parts=tuple(bytewise(reply.parts, rules.slow_byte_seconds)))
        return reply

    def _answered(
        self,
        request: SimulatedRequest,
        usage: dialects.Usage,
        latency: float,
        dice: random.Random,
    ) -> Reply:
        if self._answer is None:
            return dialects.success(request, usage, latency, dice)
        answer = self._answer(request)
        if isinstance(answer, Reply):
            return answer
        return Reply.of(answer, wait_seconds=latency, tokens=usage.total)
