# SPDX-License-Identifier: Apache-2.0
"""A provider or an error that asks to wait for hours is obeyed exactly, and nothing is burnt."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.testing import Harness, harness
from penstock.testing.simulated_provider import ProviderRules, Reply, SimulatedProvider

LONG = 1_000.0  # seconds; beyond what was believed once, and cheap to go through
JOBS = 12
LATENCY = 0.5


class Quota:
    """A task that calls a provider whose quota is used up for a while."""

    def __init__(self, seconds: float, headers: list[tuple[str, str]], **options: Any) -> None:
        self.app = app = Penstock("shop")
        api = app.provider("api", base_url="http://simulated.invalid", **options)
        self.until = seconds
        self.headers = headers
        self.calls: list[float] = []  # when each was made
        self.harness: Harness | None = None
        self.began = 0.0

        @app.task(uses=api, timeout=10)
        async def fetch(ctx: Context, n: int) -> int:
            return int((await api.http.get(f"/{n}")).status_code)

        self.fetch = fetch

    @property
    def now(self) -> float:
        assert self.harness is not None
        return self.harness.clock.monotonic() - self.began

    def answer(self, request: Any) -> Reply | None:
        self.calls.append(self.now)
        if self.now >= self.until:
            return None
        body = {"error": "quota"}
        return Reply.of(body, status=429, headers=self.headers, wait_seconds=LATENCY)

    def run(self, **settings: Any) -> Harness:
        simulated = SimulatedProvider(
            ProviderRules(concurrency=32, latency=LATENCY), script=self.answer
        )
        with harness(self.app, providers={"api": simulated}, settings=settings) as t:
            self.harness, self.began = t, t.clock.monotonic()
            t.enqueue_many(self.fetch.job(n=n) for n in range(JOBS))
            t.drain()
            self.states = set(t.states.values())
            self.jobs = [t.job(key) for key in t.states]
            self.learned = t.store.learned().result()
        return t


RESETS = {
    "retry-after": [("retry-after", "1000")],
    "openai": [
        ("x-ratelimit-limit-requests", "100"),
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "16m40s"),
    ],
    "github": [
        ("x-ratelimit-limit", "100"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1000"),
    ],
}


@pytest.mark.parametrize(
    ("told", "algorithm"),
    [
        ("retry-after", "adaptive"),
        ("retry-after", "aimd"),
        ("openai", "aimd"),
        ("github", "adaptive"),
    ],
)
def test_f84_a_long_quota_is_waited_out_exactly_and_burns_nothing(
    told: str, algorithm: str
) -> None:
    quota = Quota(LONG, RESETS[told], algorithm=algorithm, max_parallel=16)

    quota.run()

    burnt = [at for at in quota.calls if at < LONG]
    after = [at for at in quota.calls if at >= LONG]
    assert quota.states == {"done"}
    assert burnt
    assert max(burnt) <= LATENCY, "it was probed while it was to be left alone"
    assert len(after) == JOBS
    assert LONG <= min(after) < LONG + 5
    assert [one for one in quota.learned if '"ceiling":null' not in one.document] == []


def test_a_wait_that_ends_after_give_up_after_is_said_and_ends_the_job() -> None:
    quota = Quota(LONG, RESETS["retry-after"])

    test = quota.run(tasks={"give_up_after": 600})

    assert quota.states == {"error"}
    assert max(quota.calls) <= LATENCY
    said = {job.last_error.message for job in quota.jobs if job.last_error is not None}
    assert any("its wait of 16:40 would end after give_up_after (10:00)" in one for one in said), (
        said
    )
    assert test.clock.monotonic() - quota.began < 700


def test_a_wait_of_days_that_a_provider_asks_for_is_told_and_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quota = Quota(800.0, [("retry-after", "200000")])

    with caplog.at_level("INFO", "penstock.worker"):
        quota.run()

    assert quota.states == {"done"}
    doubt = "429; it asks to wait 2 days, which is over 24 h and is treated as 15 min"
    assert any(f"({doubt}) and comes back in 900.0 s" in line for line in caplog.messages)


class Later(Exception):
    """An error that says when to come back."""

    def __init__(self, retry_after: object) -> None:
        super().__init__("come back later")
        self.retry_after = retry_after


@pytest.mark.parametrize(
    ("retry_after", "waits", "doubt"),
    [
        (LONG, LONG, ""),
        (200_000, 900.0, "it asks to wait 2 days, which is over 24 h and is treated as 15 min"),
        ("soon", 900.0, "neither seconds nor an HTTP date and is treated as 15 min"),
    ],
)
def test_a_wait_of_a_tasks_error_is_obeyed_or_told(
    retry_after: object, waits: float, doubt: str
) -> None:
    app = Penstock("app")

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        if not app_waited:
            app_waited.append(True)
            raise Later(retry_after)

    app_waited: list[bool] = []
    with harness(app) as t:
        t.enqueue(work.job(), key="k")
        t.drain()
        first, second = t.attempts("k")
    assert first.error is not None
    assert first.ended_at is not None
    assert second.started_at is not None
    assert doubt in first.error.message
    assert (second.started_at - first.ended_at) / 1e6 == pytest.approx(waits, abs=1.5)
