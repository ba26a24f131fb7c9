# SPDX-License-Identifier: Apache-2.0
"""F36: what became of a commit is asked by its number; a crashed server gives numbers out again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import psycopg
import pytest

from penstock.model.views import EnqueueReport
from penstock.stores import group_commit
from penstock.stores.postgres import session
from tests.faults.pg_operations import OPERATIONS
from tests.faults.pg_world import SECONDS, Place, is_sound, new_jobs, place
from tests.postgres.cluster import Cluster
from tests.postgres.fixtures import MakeCluster
from tests.waiting import wait_until

_TRIES = 5
_LAZY: dict[str, str | int] = {"wal_writer_delay": "10s", "autovacuum": "off"}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call waits for its server however long a busy machine takes to start it."""
    monkeypatch.setattr(group_commit, "AGAIN_SECONDS", SECONDS)
    monkeypatch.setattr(session, "AGAIN_SECONDS", SECONDS)


def _restart(cluster: Cluster) -> None:
    cluster.restart_immediate()


def _crash(cluster: Cluster) -> None:
    """One of the server's processes is killed; the first one stays and starts the others anew."""
    with cluster.connect() as victim, cluster.connect() as witness:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        wait_until(lambda: not _answers(witness))
    wait_until(lambda: _is_up(cluster))


def _answers(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    try:
        connection.execute("select 1")
    except psycopg.OperationalError:
        return False
    return True


def _is_up(cluster: Cluster) -> bool:
    try:
        return bool(cluster.ask("select true"))
    except psycopg.OperationalError:
        return False


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("crash", [_restart, _crash])
def test_f36_a_commit_of_another_transaction_with_the_same_number_is_not_taken_for_ours(
    crash: Callable[[Cluster], None], times: int, make_cluster: MakeCluster
) -> None:
    """Nothing of our transaction is on the disk when the server crashes; its number goes to others.

    Only after they have committed is the server asked what became of ours. The server may have
    written its log just then, for reasons of its own: then the number is not given out again, and
    we try once more.
    """
    cluster = make_cluster(settings=_LAZY)
    cluster.create_database("numbers")
    with place(cluster, cluster.url("numbers")) as found:
        found.store.enqueue(new_jobs(1, "first-")).result(SECONDS)
        given_again, tries = False, 0
        while not given_again:
            tries += 1
            assert tries <= _TRIES, "no number was given out again"
            given_again = _lose_number(cluster, found, crash, times, f"try-{tries}-")

        assert found.ask("select count(*) from penstock.hot") == 1 + 2 * tries
        assert is_sound(found.store)


def _lose_number(
    cluster: Cluster, found: Place, crash: Callable[[Cluster], None], times: int, prefix: str
) -> bool:
    """A call whose commit is cut off by a crash; whether its number went to somebody else."""
    jobs = new_jobs(2, prefix)
    reports: list[EnqueueReport] = []
    found.ask("checkpoint")
    before = found.proxy.counts.cut_before
    found.proxy.cut_before_commits(1)
    found.proxy.refuse()
    caller = threading.Thread(
        target=lambda: reports.append(found.store.enqueue(jobs).result(SECONDS))
    )
    number = int(str(found.ask("select pg_snapshot_xmax(pg_current_snapshot())::text")))

    caller.start()
    wait_until(lambda: found.proxy.counts.cut_before > before)
    crash(cluster)
    while int(str(found.ask("select pg_current_xact_id()::text"))) <= number + 2:
        pass
    for _ in range(times - 1):  # and once more, so that nobody knows where it began anew
        found.ask("checkpoint")
        crash(cluster)
    status = found.ask("select pg_xact_status(%s::text::xid8)", str(number))
    found.proxy.accept()
    caller.join(SECONDS)
    assert [report.created for report in reports] == [{job.key for job in jobs}]
    return status == "committed"


@pytest.mark.parametrize("name", ["enqueue", "lease", "ack", "fail_and_retry"])
def test_f36_a_commit_is_found_to_be_done_by_what_it_has_written(
    name: str, make_cluster: MakeCluster
) -> None:
    """The server has crashed since: its word about the number of a transaction is not enough."""
    cluster = make_cluster(durable=True)
    cluster.create_database("numbers")
    with place(cluster, cluster.url("numbers")) as found:
        operation = OPERATIONS[name](found, 3)
        operation.call()
        found.proxy.drop_commit_replies(1)
        found.proxy.refuse()
        caller = threading.Thread(target=operation.call)

        caller.start()
        wait_until(lambda: found.proxy.counts.replies_dropped == 1)
        cluster.restart_immediate()
        found.proxy.accept()
        caller.join(SECONDS)
        operation.call()

        assert operation.calls == 3
        operation.audit()


@pytest.mark.parametrize("crash", [_restart, _crash])
def test_f36_a_commit_is_found_to_be_done_after_a_crash(
    crash: Callable[[Cluster], None], make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(durable=True)
    cluster.create_database("numbers")
    with place(cluster, cluster.url("numbers")) as found:
        found.proxy.drop_commit_replies(1)
        found.proxy.refuse()
        reports: list[EnqueueReport] = []
        caller = threading.Thread(
            target=lambda: reports.append(found.store.enqueue(new_jobs(2)).result(SECONDS))
        )

        caller.start()
        wait_until(lambda: found.proxy.counts.replies_dropped == 1)
        crash(cluster)
        found.proxy.accept()
        caller.join(SECONDS)

        assert [report.created for report in reports] == [{"k0", "k1"}]
        assert found.ask("select count(*) from penstock.hot") == 2
        assert is_sound(found.store)
