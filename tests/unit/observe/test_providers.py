# SPDX-License-Identifier: Apache-2.0
"""Are the words of several workers, and what was learned, put together rightly?"""

from __future__ import annotations

import msgspec

from penstock.clock import MICROSECONDS
from penstock.model.job import WorkerId
from penstock.model.provider import ProviderModelKey
from penstock.model.views import StoredLimit, WorkerView
from penstock.model.worker import ProviderUse, WorkerStatus
from penstock.observe.providers import provider_rows

NOW = 1_800_000_000 * MICROSECONDS


def use(**said: object) -> ProviderUse:
    known: dict[str, object] = {"provider": "ai", "model": "m", "limit": 8, "limit_max": 10}
    return ProviderUse(**{**known, **said})  # type: ignore[arg-type]


def view(*uses: ProviderUse, alive: bool = True, seconds_ago: float = 1.0) -> WorkerView:
    told_at = NOW - round(seconds_ago * MICROSECONDS)
    return WorkerView(
        id=WorkerId("w"),
        run_id="r",
        host="h",
        pid=1,
        started_at=0,
        alive=alive,
        tasks=(),
        status=WorkerStatus(captured_at=told_at, providers=uses).encoded(),
        status_at=told_at,
    )


def test_what_workers_say_of_one_model_is_added_up() -> None:
    until = NOW + 5 * MICROSECONDS
    one = use(in_flight=3, waiting=1, refused=2, rpm=30.0, requests_last_minute=9, ceiling=4.0)
    one = msgspec.structs.replace(one, failed=5, failed_in_row=1, rate=10.0, mode="requests")
    two = use(in_flight=4, waiting=2, refused=1, rpm=30.0, blocked_until_at=until, ceiling=6.0)
    two = msgspec.structs.replace(two, failed=2, failed_in_row=2, rate=5.0)

    (row,) = provider_rows([view(one), view(two, seconds_ago=3), view(use(), alive=False)], [], NOW)

    assert (row.provider, row.model, row.learned) == ("ai", "m", None)
    live = row.live
    assert live is not None
    assert (live.workers, live.limit, live.limit_max) == (2, 16, 20)
    assert (live.in_flight, live.waiting, live.refused) == (7, 3, 3)
    assert (live.failed, live.failed_in_row, live.mode, live.rate) == (7, 2, "requests", 15.0)
    assert (live.rpm, live.tpm, live.requests_last_minute) == (60.0, None, 9)
    assert (live.ceiling, live.cooldown_seconds, live.as_of_seconds) == (10.0, 5.0, 3.0)


def test_a_cool_down_that_has_passed_is_none() -> None:
    past = use(blocked_until_at=NOW - 1)

    (row,) = provider_rows([view(past)], [], NOW)

    assert row.live is not None
    assert row.live.cooldown_seconds == 0.0


def test_what_was_learned_is_told_with_its_age_and_what_cannot_be_read_is_not() -> None:
    kept = [
        StoredLimit(ProviderModelKey("ai", "m"), '{"ceiling":12,"confidence":3}', NOW - 60_000_000),
        StoredLimit(ProviderModelKey("zz", "n"), '{"mode":"of a later version"}', NOW),
        StoredLimit(ProviderModelKey("zz", "damaged"), '{"latency_seconds":1e308}', NOW),
    ]

    (row,) = provider_rows([], kept, NOW)

    assert row.live is None
    assert row.learned is not None
    assert (row.learned.ceiling, row.learned.confidence) == (12.0, 3)
    assert (row.learned.mode, row.learned.seconds_ago) == ("concurrency", 60.0)
