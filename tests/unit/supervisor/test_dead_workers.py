# SPDX-License-Identifier: Apache-2.0
"""Does the store hear of a death, also if it is away when the worker dies?"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

import pytest

from penstock.errors import StoreClosed, StoreUnavailable, StoreUnknown
from penstock.ids import SeededIds
from penstock.model.job import JobState, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobFailure, JobRef, LeaseRequest, WorkerInfo
from penstock.model.views import Progress
from penstock.stores import retry
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from penstock.supervisor import dead_workers
from penstock.supervisor.dead_workers import DeadWorker, DeadWorkers
from penstock.testing import ManualClock
from tests.waiting import wait_until

WORKER = WorkerId("w-1")


class AwayStore(InProcessStore):
    """Refuses to reap as a test says; one of unknown fate is done all the same."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.trouble: deque[Exception] = deque()
        self.asked = 0

    def reap(
        self,
        worker: WorkerId,
        started: Sequence[JobRef],
        cause: str,
        max_crashes: int,
        overdue: Sequence[JobFailure] = (),
    ) -> Reply[Progress]:
        self.asked += 1
        error = self.trouble.popleft() if self.trouble else None
        if error is None or isinstance(error, StoreUnknown):
            done = super().reap(worker, started, cause, max_crashes, overdue)
            return done if error is None else Reply.failed(error)
        return Reply.failed(error)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_MAX_SECONDS", 0.001)


@pytest.fixture
def store() -> AwayStore:
    store = AwayStore(ManualClock())
    store.enqueue(
        [NewJob(key=key, task="t", payload="{}", group="t") for key in ("ran", "waited")]
    ).result()
    store.register(WorkerInfo(id=WORKER, run_id="r", tasks=("t",)), 30.0).result()
    return store


def death_of(store: AwayStore) -> DeadWorker:
    request = LeaseRequest(worker=WORKER, tasks=("t",), limit=2, caps=ConfiguredCaps({}))
    jobs = store.lease(request).result().jobs
    ran = tuple(JobRef(job.id, job.token) for job in jobs if job.key == "ran")
    return DeadWorker(WORKER, 7, "killed", False, ran, ran, (), 3)


def states(store: AwayStore) -> list[tuple[JobState, bool]]:
    found = [store.job(key).result() for key in ("ran", "waited")]
    return [(job.state, job.suspect) for job in found if job is not None]


BURIED = [(JobState.QUEUED, True), (JobState.QUEUED, False)]


@pytest.mark.parametrize(
    "trouble",
    [
        [],
        [StoreUnavailable("gone")] * 5,
        [StoreUnknown("no answer")] * 2,
        [TimeoutError(), StoreUnavailable("gone"), StoreUnknown("no answer")],
    ],
)
def test_a_report_of_a_death_is_asked_for_until_it_is_answered(
    store: AwayStore, trouble: list[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    death = death_of(store)
    store.trouble.extend(trouble)
    graves = DeadWorkers(store, ManualClock(), SeededIds(0))

    with caplog.at_level(logging.WARNING, "penstock.supervisor"):
        graves.report(death)
        wait_until(lambda: "Worker 7 died: killed; it ran 'ran'." in caplog.text)
    graves.finish(0.0)

    assert states(store) == BURIED
    assert store.check().result() == []
    assert store.asked == len(trouble) + 1
    assert caplog.text.count("come back when the store answers") == min(len(trouble), 1)


def test_a_report_of_a_death_that_cannot_be_done_holds_up_neither_the_living_nor_the_end(
    store: AwayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_workers, "AT_ONCE_SECONDS", 0.01)
    store.trouble.extend([StoreUnavailable("gone")] * 1_000_000)
    graves = DeadWorkers(store, ManualClock(), SeededIds(0))

    graves.report(death_of(store))
    wait_until(lambda: store.asked > 3)
    graves.finish(0.01)

    wait_until(lambda: not any(x.name == "penstock-aside" for x in threading.enumerate()))
    assert {state for state, _ in states(store)} == {JobState.IN_PROGRESS}


def test_a_store_that_will_never_answer_is_not_asked_again(
    store: AwayStore, caplog: pytest.LogCaptureFixture
) -> None:
    death = death_of(store)
    store.trouble.append(StoreClosed("closed"))

    DeadWorkers(store, ManualClock(), SeededIds(0)).report(death)

    wait_until(lambda: "come back when its lease ends: closed" in caplog.text)
    assert store.asked == 1
