# SPDX-License-Identifier: Apache-2.0
"""Does PostgreSQL go the way that each statement was written for, whatever it knows of the tables?

Plans are made as the store makes them: with the settings of a write transaction, and generic.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.stores.postgres.open import open_postgres, statements_for
from tests.postgres.cluster import Server

QUERIES = statements_for("full")
ROWS = 20_000
LARGE = {"jobs", "hot", "ended", "edges", "held", "attempts", "lanes", "ready_lanes"} | {
    "calls",
    "answers",
    "accounts",
    "account_changes",
    "units",
    "preflights",
    "cursors",
    "manifests",
    "commits",
    "plans",
}

#: statement → the indexes that its plan must use
INTENDED = {
    "ready_heads": {"ready_lanes_open", "lanes_pkey"},
    "ready_lanes": {"ready_lanes_open", "lanes_pkey"},
    "merge_lanes": {"hot_ready"},
    "weigh_jobs": {"hot_ready"},
    "take_jobs": {"hot_ready", "jobs_pkey"},
    "take_suspects": {"hot_suspect", "jobs_pkey"},
    "list_suspects": {"hot_suspect", "hot_leased"},
    "lease_view": {"hot_due", "hot_suspect", "workers_alive", "ready_lanes_parked"},
    "promote_due": {"hot_due"},
    "worker_row": {"workers_id_key"},
    "inbox_of": {"workers_id_key", "detached_by_worker", "control_open"},
    "read_answer": {"control_pkey"},
    "read_dependencies": {"edges_child"},
    "read_holders": {"held_by_key"},
    "beat_worker": {"workers_id_key"},
    "count_holders": {"held_by_key"},
    "hold_ready_lanes": {"ready_lanes_pkey"},
    "keep_heads": {"ready_lanes_pkey", "lanes_pkey"},
    "refresh_heads": {"lanes_pkey"},
    "drop_empty_lanes": {"ready_lanes_pkey", "hot_ready"},
    "park_lanes": {"ready_lanes_pkey"},
    "unpark_lanes": {"ready_lanes_parked"},
    "parked_keys": {"ready_lanes_parked"},
    "open_freed_keys": {"ready_lanes_parked"},
    "leased_by": {"hot_leased"},
    "leased_by_id": {"hot_leased", "workers_id_key"},
    "end_jobs": {"hot_pkey"},
    "fail_job": {"hot_pkey"},
    "release_job": {"hot_pkey"},
    "rearm_job": {"hot_pkey"},
    "revoke_job": {"hot_pkey"},
    "cancel_job": {"hot_pkey"},
    "open_job": {"hot_pkey", "jobs_key"},
    "free_keys": {"held_pkey"},
    "with_dependants": {"edges_open"},
    "edges_to_settle": {"edges_open", "ended_pkey", "jobs_pkey"},
    "close_edges": {"edges_open", "hot_pkey"},
    "close_edges_of": {"edges_child"},
    "release_children": {"hot_pkey"},
    "skip_children": {"hot_pkey"},
    "hold_jobs": {"jobs_key", "hot_pkey"},
    "jobs_by_key": {"jobs_key", "ended_pkey"},
    "keep_lanes": {"lanes_pkey"},
    "lane_ids": {"lanes_spec_key"},
    "insert_job": {"lanes_spec_key"},
    "failed_jobs": {"ended_unhappy"},
    "requeue_jobs": {"ended_pkey", "jobs_pkey"},
    "hold_parents": {"edges_child", "hot_pkey"},
    "spoilt_by": {"edges_child", "ended_pkey"},
    "old_jobs": {"ended_by_time", "jobs_pkey"},
    "hold_ended": {"ended_pkey"},
    "find_calls": {"calls_job_id_fingerprint_ordinal_key"},
    "job_tokens": {"hot_pkey", "ended_pkey"},
    "reopen_calls": {"calls_pkey"},
    "change_calls": {"calls_pkey"},
    "drop_answers": {"answers_pkey"},
    "read_accounts": {"accounts_pkey", "account_changes_of"},
    "list_accounts": {"accounts_pkey", "account_changes_of"},
    "read_calls": {"calls_job_id_fingerprint_ordinal_key"},
    "read_call_answer": {"calls_job_id_fingerprint_ordinal_key", "answers_pkey"},
    "sum_calls_of": {"calls_job_id_fingerprint_ordinal_key"},
    "sum_in_hand": {"hot_leased", "calls_job_id_fingerprint_ordinal_key"},
    "calls_of_jobs": {"calls_job_id_fingerprint_ordinal_key"},
    "unended_calls": {"calls_pkey"},
    "sum_calls": {"calls_pkey"},
    "drop_calls": {"calls_pkey"},
    "jobs_with_calls": {"calls_job_id_fingerprint_ordinal_key", "hot_pkey", "ended_pkey"},
    "find_units": {"jobs_key", "hot_pkey", "ended_pkey", "units_pkey"},
    "hold_units": {"jobs_key", "hot_pkey"},
    "hold_ended_units": {"jobs_key", "ended_pkey"},
    "change_units": {"units_pkey"},
    "replan_jobs": {"hot_pkey", "jobs_pkey"},
    "start_units": {"hot_pkey"},
    "revive_units": {"ended_pkey", "jobs_pkey"},
    "hasten_units": {"hot_pkey"},
    "cancel_units": {"hot_pkey"},
    "cancel_failed": {"ended_pkey"},
    "retire_units": {"units_pkey"},
    "forget_cursors": {"cursors_pkey"},
    "count_ticks": {"units_pkey"},
    "bound_history": {"units_pkey", "attempts_pkey"},
    "leased_units": {"hot_leased", "units_pkey"},
    "purge_units": {"units_pkey"},
    "list_units": {"units_app", "jobs_pkey", "hot_pkey", "ended_pkey"},
    "list_all_units": {"units_key", "jobs_pkey", "hot_pkey", "ended_pkey"},
    "read_unit": {"units_key"},
    "read_cursors": {"cursors_pkey"},
    "list_preflights": {"preflights_pkey"},
    "read_preflights": {"preflights_pkey"},
    "forget_preflights": {"preflights_pkey"},
    "plan_at": {"plans_id_key", "commits_pkey"},
    "drop_replaced": {"manifests_slices", "manifests_pkey"},
    "untidy_slices": {"manifests_staged"},
    "number_slices": {"manifests_pkey"},
    "drop_superseded": {"manifests_slices", "manifests_pkey"},
    "slice_marks": {"manifests_slices"},
    "read_slices": {"manifests_slices"},
    "read_ranges": {"manifests_slices"},
    "staged_slices": {"manifests_staged"},
    "read_documents": {"manifests_files"},
    "leave_plans": {"plans_open"},
    "open_jobs_of_plan": {"jobs_plan", "hot_pkey"},
    "cancel_jobs": {"hot_pkey"},
    "old_plans": {"plans_ended", "jobs_plan", "manifests_staged"},
    "count_plan_jobs": {"jobs_plan", "hot_pkey", "ended_unhappy"},
    "list_unhappy_of_plan": {"jobs_plan", "ended_unhappy"},
    "list_open_of_plan": {"jobs_plan", "hot_pkey"},
    "beat_locks": {"locks_run"},
}
NO_TABLES = {
    "accept_jobs",
    "insert_jobs",
    "place_jobs",
    "insert_edges",
    "hold_keys",
    "add_calls",
    "keep_answers",
    "insert_units",
}  # these only add

STATES = ("empty", "filled", "filled and analysed", "analysed when empty")


def _fill(connection: psycopg.Connection[Any]) -> None:
    for statement in (
        "insert into penstock.lanes (spec, task, grp, limit_keys) overriding system value "
        "select 's' || n, 't', 'g' || n % 50, '[]' from generate_series(1, 500) n",
        "insert into penstock.ready_lanes (lane_id, task, grp, turn) "
        "select id, task, grp, id from penstock.lanes",
        "insert into penstock.jobs (id, key, lane_id, priority, payload, created_at) "
        f"select n, 'k' || n, n % 500 + 1, 0, '{{}}', n from generate_series(1, {ROWS}) n",
        "insert into penstock.hot "
        "(job_id, lane_id, rank, bytes, row_state, due_at, available_at, updated_at) "
        "select id, lane_id, 0, 2, id % 5, id, id, id from penstock.jobs where id % 2 = 0",
        "insert into penstock.ended (job_id, row_state, token, ended_token, attempts, crashes, "
        "due_at, available_at, finished_at, updated_at) "
        "select id, 5 + id % 4, 1, 1, 1, 0, id, id, id, id from penstock.jobs where id % 2 = 1",
        "insert into penstock.edges (parent_id, child_id, kind, open) "
        f"select n, n + 1, 'success', n % 2 = 0 from generate_series(1, {ROWS} - 1) n",
        "insert into penstock.held (job_id, token, limit_key) "
        "select id, 1, 'l:' || id % 99 from penstock.jobs where id % 5 = 4",
        "insert into penstock.calls (job_id, fingerprint, ordinal, state, token, run_id, day, "
        "task, provider, model, begun_at, ended_at, reserved_micros, reserved_tokens) "
        "select id, 'f' || id, 0, 'open', 1, 'r', 'd', 't', 'p', 'm', id, null, 1, 1 "
        "from penstock.jobs",
        "insert into penstock.units (job_id, key, app, timing) "
        "select id, key, 'a' || id % 9, 't' from penstock.jobs",
        "insert into penstock.preflights (unit, app, name, partition, checked_at) "
        "select key, 'a' || id % 9, 'n', 'p', id from penstock.jobs",
        "insert into penstock.cursors (name, value) select key, '1' from penstock.jobs",
    ):
        connection.execute(statement.encode())


@pytest.fixture(scope="module", params=STATES)
def connection(
    request: pytest.FixtureRequest, postgres_server: Server
) -> Iterator[psycopg.Connection[Any]]:
    name = f"plans_{os.getpid()}_{time.monotonic_ns()}"
    url = postgres_server.create_database(name)
    open_postgres(url).close()
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as made:
        if request.param == "analysed when empty":
            made.execute("analyze")
        if request.param != "empty":
            _fill(made)
        if request.param == "filled and analysed":
            made.execute("analyze")
        yield made
    postgres_server.ask(f"drop database {name} with (force)")


def nodes(connection: psycopg.Connection[Any], name: str) -> list[dict[str, Any]]:
    """The steps of a statement's plan."""
    text = QUERIES[name]
    count = max((int(n) for n in re.findall(r"\$(\d+)", text)), default=0)
    arguments = f"({', '.join(['null'] * count)})" if count else ""
    connection.execute(QUERIES["begin_write"].encode())
    connection.execute(QUERIES["set_up"].encode())
    try:
        connection.execute(f"prepare planned as {text}".encode())
        explained = connection.execute(
            f"explain (format json) execute planned{arguments}".encode()
        ).fetchone()
    finally:
        connection.execute("rollback")
        connection.execute("deallocate all")
    assert explained is not None
    found: list[dict[str, Any]] = []
    plans = [explained[0] if isinstance(explained[0], list) else json.loads(explained[0])]
    waiting = [plan["Plan"] for plan in plans[0]]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += node.get("Plans", [])
    return found


def test_hot_statements_use_the_indexes_that_were_made_for_them(
    connection: psycopg.Connection[Any],
) -> None:
    missing = {}
    for name, intended in INTENDED.items():
        used = {step["Index Name"] for step in nodes(connection, name) if "Index Name" in step}
        if not intended <= used:
            missing[name] = intended - used

    assert missing == {}


def test_no_statement_of_a_worker_reads_a_whole_table(connection: psycopg.Connection[Any]) -> None:
    read = {
        (name, step["Relation Name"])
        for name in {*INTENDED, *NO_TABLES}
        for step in nodes(connection, name)
        if step["Node Type"] == "Seq Scan" and step["Relation Name"] in LARGE
    }

    assert read == set()


@pytest.mark.parametrize("name", ["take_jobs", "ready_heads", "promote_due"])
def test_the_order_of_leasing_comes_from_the_index(
    name: str, connection: psycopg.Connection[Any]
) -> None:
    keys = [step["Sort Key"] for step in nodes(connection, name) if "Sort" in step["Node Type"]]

    assert [key for key in keys if key != ["found.n"]] == []  # of no more than eight groups


@pytest.mark.parametrize("name", ["take_jobs", "promote_due", "take_suspects"])
def test_what_is_taken_is_found_again_by_its_place(
    name: str, connection: psycopg.Connection[Any]
) -> None:
    assert "Tid Scan" in {step["Node Type"] for step in nodes(connection, name)}
