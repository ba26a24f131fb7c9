# SPDX-License-Identifier: Apache-2.0
"""F36: the connection is cut during a commit. What happened is found out; nothing happens twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import StoreUnknown
from penstock.model.job import WorkerId
from penstock.model.lease import Verdict
from penstock.stores.postgres import session
from tests.faults.pg_commits import lose_commits
from tests.faults.pg_operations import OPERATIONS
from tests.faults.pg_world import (
    SECONDS,
    done,
    is_sound,
    lease,
    new_jobs,
    one_sentence,
    place,
    register,
    states,
)
from tests.postgres.cluster import Server

ANSWERS_LOST = 40  # of each operation; `make soak-pg` loses 2,000
CUTS = 10


@pytest.mark.parametrize("name", OPERATIONS)
def test_f36_a_lost_answer_to_a_commit_is_found_out(
    name: str, postgres_server: Server, postgres_url: str
) -> None:
    with place(postgres_server, postgres_url) as found:
        lose_commits(OPERATIONS[name], found, "answer lost", ANSWERS_LOST)


@pytest.mark.parametrize("name", OPERATIONS)
def test_f36_a_call_that_is_cut_before_its_commit_is_run_again(
    name: str, postgres_server: Server, postgres_url: str
) -> None:
    with place(postgres_server, postgres_url) as found:
        lose_commits(OPERATIONS[name], found, "cut before", CUTS)


def test_f36_callers_who_share_a_transaction_each_get_their_own_answer(
    postgres_server: Server, postgres_url: str
) -> None:
    """Eight workers on one store; every third commit loses its answer, every fifth is cut."""
    callers, rounds = 8, 8
    with place(postgres_server, postgres_url) as found:
        found.proxy.drop_commit_replies(1000, every=3)
        found.proxy.cut_before_commits(1000, every=5)

        def work(number: int) -> None:
            worker = WorkerId(f"w-{number}")
            register(found.store, worker)
            for turn in range(rounds):
                jobs = new_jobs(2, f"{number}-{turn}-")
                report = found.store.enqueue(jobs).result(SECONDS)
                assert report.created == {job.key for job in jobs}
                leased = lease(found.store, 2, worker)
                ends = [done(job) for job in leased]
                assert found.store.ack(worker, ends).result(SECONDS) == [Verdict.ACCEPTED] * 2

        with ThreadPoolExecutor(callers) as pool:
            for answer in [pool.submit(work, number) for number in range(callers)]:
                answer.result()

        assert found.proxy.counts.replies_dropped > 1  # they share commits, on a busy machine most
        assert found.proxy.counts.cut_before > 1
        found.proxy.forgive()
        assert states(found.store) == {"done": 2 * callers * rounds}
        assert found.leased() == set()
        assert is_sound(found.store)


def test_f36_what_nobody_can_tell_is_said_and_may_be_repeated(
    postgres_server: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "AGAIN_SECONDS", 0.2)
    with place(postgres_server, postgres_url) as found:
        found.proxy.drop_commit_replies(1)
        found.proxy.refuse()

        with pytest.raises(StoreUnknown) as refusal:
            found.store.enqueue(new_jobs(2)).result(SECONDS)

        one_sentence(refusal.value, found.store.url, "Repeat the call")
        found.proxy.accept()
        assert found.store.enqueue(new_jobs(3)).result(SECONDS).created == {"k2"}
        assert is_sound(found.store)
