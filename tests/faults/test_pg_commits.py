# SPDX-License-Identifier: Apache-2.0
"""F36: the connection is cut during a commit. What happened is found out; nothing happens twice."""

from __future__ import annotations

import pytest

from tests.faults.pg_commits import lose_commits
from tests.faults.pg_operations import OPERATIONS
from tests.faults.pg_world import place
from tests.postgres.cluster import Server

ANSWERS_LOST = 200
CUTS = 50


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
