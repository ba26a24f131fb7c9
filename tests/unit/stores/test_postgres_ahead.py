# SPDX-License-Identifier: Apache-2.0
"""The next transaction is opened with a commit: what if only one of the two comes off?"""

from __future__ import annotations

import os
import time

import pytest

from penstock.model.job import JobState, NewJob
from penstock.stores.postgres.opening import open_postgres
from tests.postgres.cluster import Server
from tests.postgres.proxy import Proxy

BATCHES, JOBS = 16, 500


@pytest.mark.parametrize("hurt", ["error", "cut", "drop"])
def test_what_was_committed_is_told_and_nothing_is_lost(postgres_server: Server, hurt: str) -> None:
    name = f"ahead_{os.getpid()}_{time.monotonic_ns()}"
    postgres_server.create_database(name)
    with Proxy(postgres_server) as proxy:
        store = open_postgres(proxy.url(name))
        try:
            if hurt == "error":
                proxy.inject_error("40001", when="pg_current_xact_id", n=5, every=2)
            elif hurt == "cut":
                proxy.cut_before(5, "pg_current_xact_id", every=2)
            else:
                proxy.drop_replies(5, "pg_current_xact_id", every=2)
            batches = [
                [NewJob(key=f"{n} {m}", task="t", payload="1", group="g") for m in range(JOBS)]
                for n in range(BATCHES)
            ]
            replies = [store.enqueue(batch) for batch in batches]
            assert [len(reply.result().created) for reply in replies] == [JOBS] * BATCHES
            proxy.forgive()
            assert store.stats().result().states[JobState.QUEUED] == BATCHES * JOBS
            assert store.check().result() == []
        finally:
            store.close()
    postgres_server.ask(f"drop database {name} with (force)")
