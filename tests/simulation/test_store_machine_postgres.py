# SPDX-License-Identifier: Apache-2.0
"""Does the store on PostgreSQL answer as its model does? The machine is that of every store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.model.job import Job, JobState
from penstock.stores.postgres.open import open_postgres
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.protocol import Store
from tests.depth import SOAK
from tests.simulation.test_store_machine import PROFILE, StoreMachine

EXAMPLES = 500 if SOAK else 4
# Each example costs a second: a failure is made small in a soak only.
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)


@pytest.mark.timeout(7_200 if SOAK else 600)
def test_the_store_on_postgres_answers_as_its_model_does(
    empty_store: Callable[[], str],
) -> None:
    class PostgresMachine(StoreMachine):
        """The store of a fleet against its model."""

        def open_store(self, folder: Path) -> Store:
            url, clock = empty_store(), self.clock
            return open_postgres(url, durability="normal", server_time=lambda: clock.now_micros)

        def token_of(self, job: Job) -> int:
            if job.state is JobState.DONE:
                return job.token
            store = self.store
            assert isinstance(store, PostgresStore)
            floor = store._read(lambda: store._reader.value("read_meta", "token_floor"))
            return max(job.token, int(floor.result()))

    phases = PROFILE.phases if SOAK else QUICK
    profile = settings(PROFILE, max_examples=EXAMPLES, phases=phases)
    run_state_machine_as_test(PostgresMachine, settings=profile)
