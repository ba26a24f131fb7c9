# SPDX-License-Identifier: Apache-2.0
"""An app that calls a simulated provider, run end to end in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock import Context, Penstock
from penstock.testing import SimulatedProvider, harness
from penstock.testing.simulated_provider import Call


@dataclass(frozen=True, slots=True)
class Course:
    """How a run ended."""

    states: Counter[str]
    results: Mapping[str, Any]
    errors: Mapping[str, str]  # kinds, by key
    took_seconds: float


def run_calls(
    provider: SimulatedProvider,
    jobs: int,
    *,
    calls_each: int = 1,
    max_attempts: int = 1,
    timeout: float | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Course:
    """So many jobs, each with so many calls at once. A charged failure is an error by default."""
    app = Penstock("calls")
    api = app.provider("api", base_url=provider.url)

    @app.task(uses=api, max_attempts=max_attempts, timeout=timeout)
    async def fetch(ctx: Context, number: int, calls: int) -> list[int]:
        async def one(index: int) -> int:
            reply = await api.http.get(f"/{number}/{index}")
            reply.raise_for_status()
            whole = msgspec.json.decode(reply.content)  # a part of a body is no JSON
            return int(whole["call"])

        return list(await asyncio.gather(*(one(index) for index in range(calls))))

    with harness(app, seed=seed, settings=settings, providers={"api": provider}) as t:
        t.enqueue_many(fetch.job(number=number, calls=calls_each) for number in range(jobs))
        t.drain()
        return Course(
            Counter(state.value for state in t.states.values()),
            dict(t.results),
            {key: error.kind for key, error in t.errors.items()},
            t.clock.monotonic(),
        )


def arrivals(log: Sequence[Call], begin: float, end: float) -> int:
    """Calls that came in a span of time."""
    return sum(begin <= call.at_seconds < end for call in log)


def served(log: Sequence[Call], begin: float, end: float) -> int:
    """Good answers that were complete in a span of time."""
    return sum(
        call.status == 200 and call.ended_seconds is not None and begin <= call.ended_seconds < end
        for call in log
    )


def in_flight(log: Sequence[Call], moment: float) -> int:
    """Calls that were being served at a moment."""
    return sum(
        not call.refused
        and call.at_seconds <= moment
        and (call.ended_seconds is None or call.ended_seconds > moment)
        for call in log
    )
