# SPDX-License-Identifier: Apache-2.0
"""Does nobody get up from waiting for work because a worker tells something, or is asked?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model.job import JobId, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobRef, LeaseRequest, WorkerInfo
from penstock.stores.open import open_store
from penstock.stores.protocol import Store

WORKER = WorkerId("w")
REST_SECONDS = 0.2  # without any word: what was on its way has come
QUIET_SECONDS = 0.7  # longer than a store waits between two looks of its own
PATIENCE_SECONDS = 60.0


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """The same store as two processes have it."""
    url = f"sqlite:///{tmp_path}/store.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    with closing(open_store(url)) as one, closing(open_store(url)) as other:
        one.register(WorkerInfo(id=WORKER, run_id="r", tasks=("t",)), 600).result()
        lease = LeaseRequest(worker=WORKER, tasks=("t",), limit=1, caps=ConfiguredCaps())
        assert one.lease(lease).result().jobs == []
        yield one, other


async def _come_to_rest(store: Store) -> None:
    """What happened before is seen: nothing wakes the store for a while."""
    while True:
        begun = time.monotonic()
        await store.wait_for_work(REST_SECONDS)
        if time.monotonic() - begun >= REST_SECONDS:
            return


def test_neither_a_status_nor_a_question_nor_an_answer_wakes_an_idle_worker(
    stores: tuple[Store, Store],
) -> None:
    one, other = stores

    async def main() -> None:
        await _come_to_rest(one)
        waiting = asyncio.ensure_future(one.wait_for_work(PATIENCE_SECONDS))
        for store in (one, other):
            await store.publish(WORKER, '{"n":1}')
            number = await store.ask(WORKER, JobRef(JobId(1), 1))
            await store.answer(number, "{}")
        await asyncio.sleep(QUIET_SECONDS)
        assert not waiting.done()

        await other.enqueue([NewJob(key="k", task="t", payload="{}", group="g")])
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)

    asyncio.run(main())
