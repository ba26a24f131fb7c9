# SPDX-License-Identifier: Apache-2.0
"""Do batches that come by COPY into one store from two processes lose or double a key?"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.stores.postgres.open import open_postgres
from tests.faults.pg_world import is_sound, states
from tests.processes import REPOSITORY, environment_of_tests

pytestmark = pytest.mark.faults

BATCHES, JOBS = 8, 150
SECONDS = 200.0


def _start(url: str, order: str, first: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.pg_copier", url, order]
        + [str(number) for number in (first, BATCHES, JOBS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=environment_of_tests(),
    )


@pytest.mark.parametrize("apart", [0, BATCHES // 2 * JOBS], ids=["all-the-same", "half-the-same"])
def test_keys_that_two_processes_copy_in_opposite_order_are_there_once(
    postgres_url: str, apart: int
) -> None:
    """Several batches share a transaction, so the two meet in a ring that the server breaks."""
    open_postgres(postgres_url).close()
    both = [_start(postgres_url, "up", 0), _start(postgres_url, "down", apart)]
    try:
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in both:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        created = [json.loads(process.communicate(timeout=SECONDS)[0]) for process in both]
    finally:
        for process in both:
            process.kill()
            process.wait()

    keys = [key for one in created for key in one]
    assert sorted(keys) == [f"k{number:06}" for number in range(apart + BATCHES * JOBS)]
    store = open_postgres(postgres_url)
    try:
        assert states(store) == {"queued": len(keys)}
        assert is_sound(store)
    finally:
        store.close()
