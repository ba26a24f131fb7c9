# SPDX-License-Identifier: Apache-2.0
"""Is a worker that stands still told, with what it runs?"""

from __future__ import annotations

import logging

import pytest

from penstock.errors import StoreBusy
from penstock.model.job import JobId, NewJob
from penstock.model.lease import JobRef
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from penstock.supervisor.stall_watch import NAMED_MAX, STALLED_SECONDS, StallWatch
from penstock.testing import ManualClock
from penstock.worker.slot_table import SlotRecord, SlotSnapshot

TURN = 100.0


def snapshot(*ids: int, turn: float = TURN) -> SlotSnapshot:
    running = tuple(SlotRecord(JobRef(JobId(n), 1), 0.0, 3) for n in ids)
    return SlotSnapshot(None, turn, running)


def filled(count: int, task: str = "t") -> InProcessStore:
    store = InProcessStore(ManualClock())
    jobs = [NewJob(key=f"k{n}", task=task, payload="{}", group="g") for n in range(count)]
    store.enqueue(jobs).result()
    return store


def test_a_stall_is_told_once_and_the_next_one_anew(caplog: pytest.LogCaptureFixture) -> None:
    store, watch = filled(2), StallWatch()
    late = TURN + STALLED_SECONDS

    with caplog.at_level(logging.WARNING, "penstock.supervisor"):
        assert not watch.look(7, snapshot(1), late - 0.1, store)
        assert watch.look(7, snapshot(1, 2), late, store)
        assert watch.look(7, snapshot(1, 2), late + 1, store)
        assert watch.look(7, snapshot(2, turn=TURN + 1), late + 1, store)
        watch.forget(7)
        assert watch.look(7, snapshot(2, turn=TURN + 1), late + 1, store)

    assert [record.getMessage() for record in caplog.records] == [
        "Worker 7 has not responded for 2.0 s; it runs job 'k0' of task 't', job 'k1' of task 't'.",
        "Worker 7 has not responded for 2.0 s; it runs job 'k1' of task 't'.",
        "Worker 7 has not responded for 2.0 s; it runs job 'k1' of task 't'.",
    ]


def test_a_dataset_is_named_without_its_root(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock.supervisor"):
        store = filled(1, task="dataset:prices#root-a")
        assert StallWatch().look(7, snapshot(1), TURN + STALLED_SECONDS, store)

    assert "it runs job 'k0' of task 'dataset:prices'." in caplog.text


def test_many_jobs_are_counted_and_an_idle_or_new_worker_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, watch = filled(NAMED_MAX + 2), StallWatch()
    late = TURN + STALLED_SECONDS

    with caplog.at_level(logging.WARNING, "penstock.supervisor"):
        assert not watch.look(7, None, late, store)
        assert not watch.look(7, snapshot(), late, store)
        assert not watch.look(7, snapshot(1, turn=0.0), late, store)
        assert watch.look(7, snapshot(*range(1, NAMED_MAX + 3)), late, store)

    assert caplog.text.count("not responded") == 1
    assert "and 2 more." in caplog.text


def test_a_store_that_cannot_be_read_does_not_hide_the_stall(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(1)
    monkeypatch.setattr(store, "jobs", lambda *_: Reply.failed(StoreBusy("held")))

    with caplog.at_level(logging.WARNING, "penstock.supervisor"):
        assert StallWatch().look(7, snapshot(1), TURN + 5, store)

    assert "it runs jobs that cannot be named (held)." in caplog.text
