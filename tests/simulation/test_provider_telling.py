# SPDX-License-Identifier: Apache-2.0
"""Does a worker tell what keeps its providers from being faster?"""

from __future__ import annotations

import pytest

from penstock import Context, Penstock
from penstock.model.job import WorkerId
from penstock.model.worker import read_status
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from penstock.testing import Bucket, ProviderRules, SimulatedProvider, harness


def test_a_worker_tells_the_rate_it_has_found_and_what_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish = InProcessStore.publish
    said: list[str] = []

    def noting(self: InProcessStore, worker: WorkerId, document: str) -> Reply[None]:
        said.append(document)
        return publish(self, worker, document)

    monkeypatch.setattr(InProcessStore, "publish", noting)
    app = Penstock("shop")
    api = app.provider("api", base_url="http://simulated.invalid")

    @app.task(uses=api)
    async def fetch(ctx: Context, n: int) -> None:
        await api.http.get(f"/things/{n}")

    rules = ProviderRules(requests=Bucket(30, burst=10), latency=0.4, outages=((35, 50),))
    simulated = SimulatedProvider(rules, seed=3)

    with harness(app, providers={"api": simulated}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(1_500))
        t.drain()

    statuses = [status for text in said if (status := read_status(text)) is not None]
    told = [status.providers[0] for status in statuses if status.providers]
    rates = [use.rate for use in told if use.rate is not None]
    assert rates
    assert 15 < rates[-1] < 45
    assert {use.mode for use in told if use.rate is not None} == {"requests"}
    assert max(use.failed_in_row for use in told) >= 3
    assert told[-1].failed_in_row == 0 < told[-1].failed <= simulated.counts.failed
