# SPDX-License-Identifier: Apache-2.0
"""Does SQLite go the way that each statement was written for, and never over all jobs?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from penstock.stores.sql.statements import read_queries
from penstock.stores.sqlite.open import PACKAGE
from penstock.stores.sqlite.store import SqliteStore

QUERIES = read_queries(PACKAGE)
NO_PLAN = ("begin", "commit", "rollback", "savepoint", "release", "pragma")
LARGE = "jobs|child|attempts|edges|held|calls|answers|accounts|units|preflights|cursors|"
LARGE += "manifests|staged|old|plans"
PLANNED = sorted(
    name
    for name, text in QUERIES.items()
    if text.split()[0] not in NO_PLAN and not name.startswith("check_")
)

#: statement → what its plan must name
INTENDED = {
    "lease_view": ["jobs_due", "jobs_suspect", "workers_alive", "lanes_parked"],
    "worker_row": ["workers USING INDEX sqlite_autoindex_workers_1 (id=?)"],
    "is_ready": ["lanes_ready"],
    "weigh_jobs": ["jobs_ready (lane_id=?)"],
    "take_suspects": ["jobs USING INTEGER PRIMARY KEY"],
    "cap_overrides": ["limits USING PRIMARY KEY (limit_key=?)"],
    "park_lanes": ["lanes USING INTEGER PRIMARY KEY"],
    "open_freed_keys": [
        "held USING PRIMARY KEY (job_id=? AND token=?)",
        "lanes_parked (parked_on=?)",
    ],
    "rearm_job": ["jobs USING INTEGER PRIMARY KEY"],
    "verdict_row": ["jobs USING INTEGER PRIMARY KEY"],
    "drop_settling": ["settling USING INTEGER PRIMARY KEY"],
    "close_edges_of": ["edges_child (child_id=?)"],
    "take_back": ["jobs USING INTEGER PRIMARY KEY"],
    "lane_ids": ["sqlite_autoindex_lanes_1 (spec=?)"],
    "promote_due": ["jobs_due"],
    "next_due": ["jobs_due"],
    "refresh_heads": ["jobs_ready", "lanes USING INTEGER PRIMARY KEY"],
    "ready_heads": ["lanes_ready (app=? AND grp>?)"],
    "ready_lanes": ["lanes_ready (app=? AND grp=?)"],
    "merge_lanes": ["jobs_ready (lane_id=?)"],
    "take_jobs": ["jobs_ready (lane_id=?)", "jobs USING INTEGER PRIMARY KEY"],
    "mark_leased": ["jobs USING INTEGER PRIMARY KEY"],
    "list_suspects": ["jobs_suspect", "jobs_leased"],
    "count_suspects": ["jobs_suspect"],
    "count_holders": ["held_by_key (limit_key=?)"],
    "unpark_lanes": ["lanes_parked (parked_on=?)"],
    "parked_keys": ["lanes_parked (parked_on>?)"],
    "expired_workers": ["workers_alive"],
    "leased_by": ["jobs_leased (worker=?)"],
    "end_jobs": ["jobs USING INTEGER PRIMARY KEY"],
    "end_job": ["jobs USING INTEGER PRIMARY KEY"],
    "fail_job": ["jobs USING INTEGER PRIMARY KEY"],
    "release_job": ["jobs USING INTEGER PRIMARY KEY"],
    "free_keys": ["held USING PRIMARY KEY (job_id=? AND token=?)"],
    "with_dependants": ["edges_open (parent_id=?)"],
    "jobs_by_key": ["jobs_key (key=? AND app=?)"],
    "read_job": ["jobs_key (key=?)"],
    "keys_between": ["jobs_key (key>? AND key<?)"],
    "failed_jobs": ["jobs_unhappy (row_state=? AND id>?)"],
    "old_jobs": ["jobs_ended (finished_at"],
    "edges_to_settle": ["edges_open (parent_id=?)"],
    "close_edges": ["edges USING PRIMARY KEY (parent_id=? AND child_id=?)"],
    "release_children": ["jobs USING INTEGER PRIMARY KEY"],
    "skip_children": ["jobs USING INTEGER PRIMARY KEY"],
    "edges_of_revived": ["edges USING PRIMARY KEY (parent_id=? AND child_id>?)"],
    "next_revivable": ["edges USING PRIMARY KEY (parent_id=?)"],
    "spoilt_by": ["edges_child (child_id=?)"],
    "spoilt_by_forgotten": ["edges USING PRIMARY KEY (parent_id=?)"],
    "next_waiting": ["edges_open"],
    "next_queued": ["jobs_ready", "jobs_due", "jobs_suspect"],
    "next_in_progress": ["jobs_leased"],
    "list_unhappy": ["jobs_unhappy (row_state=? AND id>?)"],
    "oldest_ready": ["jobs_ready (lane_id=? AND priority<?)", "jobs_ready (lane_id>?)"],
    "inbox_of": [
        "workers USING COVERING INDEX sqlite_autoindex_workers_1 (id=?)",
        "detached_by_worker (worker=?)",
        "control_open (target=?)",
    ],
    "read_answer": ["control USING INTEGER PRIMARY KEY"],
    "read_dependencies": ["edges_child (child_id=?)"],
    "read_holders": ["held_by_key (limit_key=?)"],
    "find_calls": ["calls USING INDEX sqlite_autoindex_calls_1 (job_id=? AND fingerprint=?"],
    "job_tokens": ["jobs USING INTEGER PRIMARY KEY"],
    "reopen_calls": ["calls USING INTEGER PRIMARY KEY"],
    "change_calls": ["calls USING INTEGER PRIMARY KEY"],
    "drop_answers": ["answers USING INTEGER PRIMARY KEY"],
    "read_accounts": ["accounts USING PRIMARY KEY (span=? AND period=? AND scope=? AND app=?)"],
    "list_accounts": ["accounts USING PRIMARY KEY (span=?)"],
    "read_calls": ["calls USING INDEX sqlite_autoindex_calls_1 (job_id=?)"],
    "read_call_answer": ["answers USING INTEGER PRIMARY KEY"],
    "sum_calls_of": ["calls USING INDEX sqlite_autoindex_calls_1 (job_id=?)"],
    "sum_in_hand": ["jobs_leased", "calls USING INDEX sqlite_autoindex_calls_1 (job_id=?)"],
    "read_call_counts": ["counters USING PRIMARY KEY (scope=?"],
    "has_old_days": ["accounts USING PRIMARY KEY (span<?)"],
    "forget_day_accounts": ["accounts USING PRIMARY KEY (span<?)"],
    "calls_of_jobs": ["calls USING COVERING INDEX sqlite_autoindex_calls_1 (job_id=?)"],
    "unended_calls": ["calls USING INTEGER PRIMARY KEY"],
    "sum_calls": ["calls USING INTEGER PRIMARY KEY"],
    "drop_calls": ["calls USING INTEGER PRIMARY KEY"],
    "jobs_with_calls": ["calls USING COVERING INDEX sqlite_autoindex_calls_1 (job_id>?)"],
    "find_units": ["jobs_key (key=? AND app=?)", "units USING INTEGER PRIMARY KEY"],
    "change_units": ["units USING INTEGER PRIMARY KEY"],
    "replan_jobs": ["jobs USING INTEGER PRIMARY KEY"],
    "start_units": ["jobs USING INTEGER PRIMARY KEY"],
    "hasten_units": ["jobs USING INTEGER PRIMARY KEY"],
    "cancel_units": ["jobs USING INTEGER PRIMARY KEY"],
    "cancel_failed": ["jobs USING INTEGER PRIMARY KEY"],
    "retire_units": ["units USING INTEGER PRIMARY KEY"],
    "forget_cursors": ["cursors USING PRIMARY KEY (name=?)"],
    "count_ticks": ["units USING INTEGER PRIMARY KEY"],
    "bound_history": [
        "units USING INTEGER PRIMARY KEY",
        "old USING PRIMARY KEY (job_id=? AND token<?)",
        "attempts USING PRIMARY KEY (job_id=? AND token=?)",
    ],
    "leased_units": ["jobs_leased", "units USING INTEGER PRIMARY KEY"],
    "purge_units": ["units USING INTEGER PRIMARY KEY"],
    "list_units": ["units_app (app=? AND key>?)", "jobs USING INTEGER PRIMARY KEY"],
    "list_all_units": ["sqlite_autoindex_units_1 (key>?)", "jobs USING INTEGER PRIMARY KEY"],
    "read_unit": ["sqlite_autoindex_units_1 (key=?)"],
    "read_cursors": ["cursors USING PRIMARY KEY (name=?)"],
    "list_preflights": ["preflights USING PRIMARY KEY (app=? AND unit>?)"],
    "read_preflights": ["kept USING PRIMARY KEY (app=? AND unit=?)"],
    "forget_preflights": ["preflights USING PRIMARY KEY (app=?)"],
    "plan_at": [
        "sqlite_autoindex_plans_1 (id=?)",
        "commits USING PRIMARY KEY (plan_id=? AND level=?)",
    ],
    "drop_replaced": ["manifests_slices (dataset=? AND at=?)"],
    "untidy_slices": ["manifests_staged (plan_id=? AND level=?)", "plans_ended"],
    "number_slices": ["manifests USING INTEGER PRIMARY KEY"],
    "drop_superseded": ["COVERING INDEX manifests_slices (dataset=? AND at=? AND seq<?)"],
    "slice_marks": ["manifests_slices (dataset=? AND at>? AND at<?)"],
    "read_slices": ["manifests_slices (dataset=? AND at>? AND at<?)"],
    "read_ranges": ["manifests_slices (dataset=? AND at>? AND at<?)"],
    "staged_slices": ["manifests_staged (plan_id=?)"],
    "read_documents": ["manifests_files (dataset=? AND id>?)"],
    "leave_plans": ["plans_open (run_id=?)"],
    "list_open_plans": ["plans_open"],
    "open_jobs_of_plan": ["jobs_plan_open (plan_id=?)"],
    "cancel_jobs": ["jobs USING INTEGER PRIMARY KEY"],
    "old_plans": ["plans_ended", "jobs_plan (plan_id=?)", "manifests_staged (plan_id=?)"],
    "count_plan_jobs": [
        "COVERING INDEX jobs_plan (plan_id=?",
        "COVERING INDEX jobs_plan_open (plan_id=?)",
        "COVERING INDEX jobs_plan_unhappy (plan_id=?)",
    ],
    "list_unhappy_of_plan": ["jobs_plan_unhappy (plan_id=? AND id>?)"],
    "list_open_of_plan": ["jobs_plan_open (plan_id=? AND id>?)"],
    "hold_locks": ["locks USING PRIMARY KEY (name=?)"],
    "beat_locks": ["locks_run (run_id=?)"],
    "anything_to_lease": ["jobs_due", "jobs_suspect", "lanes_ready", "workers_alive"],
}


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path: Path = tmp_path_factory.mktemp("plans") / "store.db"
    SqliteStore.open(path, durability="normal").close()
    connection = apsw.Connection(str(path))
    yield connection
    connection.close()


def plan(connection: apsw.Connection, name: str) -> list[str]:
    text = QUERIES[name]
    count = max((int(n) for n in re.findall(r"\?(\d+)", text)), default=0)
    rows = connection.execute(f"explain query plan {text}", ["[]"] * count).fetchall()
    return [str(row[3]) for row in rows]


def test_every_statement_can_be_planned_and_the_list_of_intentions_knows_them() -> None:
    assert set(INTENDED) <= set(QUERIES)
    assert len(PLANNED) > 60


@pytest.mark.parametrize("name", sorted(INTENDED))
def test_a_hot_statement_uses_the_index_that_was_made_for_it(
    name: str, connection: apsw.Connection
) -> None:
    steps = plan(connection, name)

    for part in INTENDED[name]:
        assert any(part in step for step in steps), steps


#: Known to read all jobs; each needs a reason.
SCANS: dict[str, str] = {
    "common_key": "two apps become one; an operator has asked for it",
    "cursors_and_datasets": "the same, or an app takes over what has no owner",
    "list_kept_ends": "a doctor asks; cursors are few",
    "is_app_named": "asked once by an app, while something has no owner; plans are few",
    "is_named_in": "the same",
    "rename_plans": "an app is renamed; plans are few",
    "rename_calls": "an app is renamed; an operator has asked for it",
    "rename_accounts": "the same",
    "forget_accounts": "the same",
    "list_holders": "there are no more holders than leases",
    "raise_tokens": "a restore, on a copy that nobody uses yet",
    "doubtful_calls": "an operator resets a budget",
    "read_newest_calls": "backwards from the newest, and as many as are shown",
    "list_failed_preflights": "the doctor looks once, and checks are as few as partitions",
}


@pytest.mark.parametrize("name", PLANNED)
def test_no_statement_scans_the_jobs(name: str, connection: apsw.Connection) -> None:
    """A partial index of suspects, of due jobs or of leases may be read from end to end."""
    steps = plan(connection, name)

    scans = [step for step in steps if re.match(rf"SCAN ({LARGE})\b", step)]
    harmless = ("jobs_suspect", "jobs_due", "jobs_leased", "VIRTUAL TABLE")
    full = [step for step in scans if not any(part in step for part in harmless)]
    assert bool(full) == (name in SCANS), steps


@pytest.mark.parametrize("name", ["take_jobs", "merge_lanes", "refresh_heads", "ready_heads"])
def test_the_order_of_leasing_comes_from_the_index_and_is_not_sorted(
    name: str, connection: apsw.Connection
) -> None:
    sorted_steps = [step for step in plan(connection, name) if "TEMP B-TREE" in step]

    # merge_lanes merges a few jobs of several lanes; nothing else sorts anything.
    assert len(sorted_steps) <= (name == "merge_lanes"), sorted_steps
