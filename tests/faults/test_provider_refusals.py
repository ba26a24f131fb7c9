# SPDX-License-Identifier: Apache-2.0
"""Providers that refuse: storms, senseless headers, herds, limits that move, lies. Virtual time."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from penstock.testing import (
    Bucket,
    Change,
    Lognormal,
    ProviderRules,
    Reply,
    SimulatedProvider,
    SimulatedRequest,
)
from tests.depth import depth
from tests.faults.provider_world import arrivals, in_flight, run_calls, served

STORM_BEGINS, STORM_ENDS = 30.0, 90.0

MALFORMED = [
    "-5",
    "NaN",
    "inf",
    "1e9",
    "99999999999",
    "",
    "1_000",
    "\uff13",
    "soon",
    "Sun, 06 Nov 1994 08:49:37 GMT",
    "Fri, 31 Dec 9999999 23:59:59 GMT",
    "9" * 65_536,
]


@pytest.mark.parametrize(
    ("retry_after", "capacity", "calls"), [("seconds", 16, 2_500), (None, 8, 1_200)]
)
def test_f44_storm_of_refusals_costs_no_attempt_and_little_time(
    retry_after: str | None, capacity: int, calls: int
) -> None:
    """All calls wait inside admission while every one is refused for a minute."""
    calm = ProviderRules(concurrency=capacity, latency=1.0, retry_after=retry_after)  # type: ignore[arg-type]
    storm = ProviderRules(concurrency=0, latency=1.0, retry_after=retry_after)  # type: ignore[arg-type]
    provider = SimulatedProvider(
        calm,
        changes=(
            Change(rules=storm, after_seconds=STORM_BEGINS),
            Change(rules=calm, after_seconds=STORM_ENDS),
        ),
    )

    course = run_calls(provider, 10, calls_each=calls // 10)

    log = provider.log
    assert course.states == {"done": 10}
    assert arrivals(log, STORM_BEGINS + 2, STORM_ENDS) <= STORM_ENDS - STORM_BEGINS
    after = STORM_ENDS + 60
    assert course.took_seconds > after + 10  # there was still work to be measured
    ideal = 10 * capacity
    assert served(log, after, after + 10) >= 0.9 * ideal


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: text[:12] or "empty")
def test_f45_senseless_retry_after_is_survived(text: str) -> None:
    def refuse_first(request: SimulatedRequest) -> Reply | None:
        if request.number > 1:
            return None
        return Reply.of(b"", status=429, headers=[("retry-after", text)])

    provider = SimulatedProvider(script=refuse_first)

    course = run_calls(provider, 3)

    assert course.states == {"done": 3}
    assert provider.log[-1].at_seconds <= 15 * 60 * 1.5 + 60  # the clamp, and jitter


def test_f45_two_retry_after_headers_are_survived() -> None:
    twice = Reply.of(b"", status=429, headers=[("retry-after", "3"), ("retry-after", "x")])
    provider = SimulatedProvider(script=lambda r: twice if r.number == 1 else None)

    assert run_calls(provider, 3).states == {"done": 3}


@pytest.mark.parametrize("seed", range(3))
def test_f50_no_herd_leaves_when_a_cooldown_ends(seed: int) -> None:
    latency, told = 2.0, 20.0
    provider = SimulatedProvider(
        ProviderRules(concurrency=16, latency=latency, retry_after_seconds=told), seed=seed
    )

    course = run_calls(provider, 400, seed=seed)

    assert course.states == {"done": 400}
    times = [call.at_seconds for call in provider.log]
    pauses = [later for earlier, later in pairwise(times) if later - earlier >= told * 0.9]
    assert pauses, "there was no cool-down to look at"
    for ended in pauses:
        assert arrivals(provider.log, ended, ended + latency / 10) <= 2


@pytest.mark.parametrize(
    ("capacity", "latency"),
    depth(
        quick=[(1, 0.25), (6, 2.0), (48, 0.25)],
        soak=[(capacity, latency) for capacity in (1, 6, 48) for latency in (0.25, 2.0)],
    ),
)
def test_f51_limit_neither_collapses_nor_runs_away_nor_swings(
    capacity: int, latency: float
) -> None:
    """In the last half of a run the calls in flight stay near the hidden capacity."""
    provider = SimulatedProvider(
        ProviderRules(concurrency=capacity, latency=Lognormal(latency, sigma=0.3)), seed=1
    )
    jobs = min(math.ceil(capacity * max(60.0, 100 * latency) / latency / 10), 300)

    course = run_calls(provider, jobs, calls_each=10)

    assert course.states == {"done": jobs}
    end = provider.log[-1].at_seconds
    begin = end / 2
    step = (end - begin) / 200
    seen = [in_flight(provider.log, begin + step * index) for index in range(200)]
    mean = sum(seen) / len(seen)
    assert 0.7 * capacity <= mean <= capacity
    late = arrivals(provider.log, begin, end)
    refused = sum(call.refused and begin <= call.at_seconds < end for call in provider.log)
    assert refused <= 0.1 * late


def test_f51_limit_does_not_grow_while_nobody_uses_it() -> None:
    """A trickle of calls says nothing of the limit: what follows it does not overrun it."""
    provider = SimulatedProvider(ProviderRules(concurrency=8, latency=1.0))
    settings = {"runtime": {"async_slots": 2}}

    run_calls(provider, 600, settings=settings)

    assert provider.counts.in_flight_max <= 2
    assert provider.counts.refused == 0


def test_f52_capacity_that_halves_again_and_again_is_followed() -> None:
    rules = [ProviderRules(concurrency=n, latency=2.0) for n in (32, 16, 8)]
    provider = SimulatedProvider(
        rules[0],
        changes=(
            Change(rules=rules[1], after_seconds=100),
            Change(rules=rules[2], after_seconds=200),
        ),
    )

    course = run_calls(provider, 55, calls_each=50)

    assert course.states == {"done": 55}
    for begin, capacity in ((160, 16), (260, 8)):  # within 60 s after the change
        assert served(provider.log, begin, begin + 40) >= 0.8 * 20 * capacity


def test_f52_503_with_retry_after_is_a_refusal_and_waited_out() -> None:
    provider = SimulatedProvider(
        ProviderRules(requests=Bucket(10, burst=5), refusal_status=503, latency=0.1)
    )

    course = run_calls(provider, 100)

    assert course.states == {"done": 100}
    assert provider.counts.refused > 0


def test_f52_429_without_a_header_is_waited_out() -> None:
    provider = SimulatedProvider(ProviderRules(concurrency=4, retry_after=None, latency=0.5))

    course = run_calls(provider, 300)

    assert course.states == {"done": 300}
    assert provider.counts.refused < 60


def test_f52_200_with_an_error_for_a_body_is_the_callers_to_see() -> None:
    provider = SimulatedProvider(ProviderRules(lie_rate=1.0))

    course = run_calls(provider, 3)

    assert course.states == {"error": 3}
    assert set(course.errors.values()) == {"KeyError"}
    assert provider.counts.calls == 3
