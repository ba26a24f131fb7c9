# SPDX-License-Identifier: Apache-2.0
"""Do both databases call the same statement by the same name?"""

from __future__ import annotations

from importlib.resources import files
from itertools import pairwise

from penstock.stores.sql.statements import read_queries

SQLITE = read_queries("penstock.stores.sqlite")
POSTGRES = read_queries("penstock.stores.postgres")

#: reason → statements that only SQLite has
ONLY_SQLITE = {
    "a file: its format, its health, its log": {
        "application_id",
        "check_file",
        "check_file_fully",
        "check_ready",
        "data_version",
        "first_damage",
        "merge_log",
        "one_file",
        "schema_objects",
    },
    "one transaction holds the operations of many, each with a savepoint": {
        "release_ends",
        "release_savepoint",
        "rollback_ends",
        "rollback_savepoint",
        "savepoint",
        "savepoint_ends",
    },
    "a read is a transaction there": {"begin_read"},
    "reading and leasing are two statements there": {"mark_leased", "mark_solo"},
    "an end and its history are two rows there": {"end_job", "write_history"},
    "ids are given by the store, not by a sequence": {"keys_above", "last_job_id", "note_purged"},
    "tokens are raised in each row": {"raise_tokens"},
    "a session remembers names of lanes only": {"lane_names"},
    "a backup says how many jobs it holds": {"count_jobs"},
    "a statement costs no way there, and a body is one parameter": {"keep_answer"},
}

#: reason → statements that only PostgreSQL has
ONLY_POSTGRES = {
    "many transactions run side by side, so what is decided by is held first": {
        "hold_empty_lanes",
        "hold_ended",
        "hold_ended_units",
        "hold_jobs",
        "hold_lanes",
        "hold_movable",
        "hold_parents",
        "hold_ready_lanes",
        "keep_heads",
        "hold_settling",
        "hold_units",
        "keep_lanes",
        "known_keys",
        "without_unfinished",
    },
    "locks that are no rows": {
        "lock_accounts",
        "lock_caps",
        "lock_datasets",
        "lock_keys",
        "lock_migrations",
        "lock_tables",
        "lock_walk",
        "share_caps",
        "try_lock_accounts",
        "try_lock_keys",
        "try_walk",
    },
    "lanes know no head, but take turns and are forgotten when they are empty": {
        "drop_empty_lanes",
        "next_turn",
        "rotate_lanes",
    },
    "a session remembers all of a lane that does not change": {"lane_facts"},
    "counters and accounts are changes that are merged": {
        "count_account_changes",
        "count_changes",
        "merge_account_changes",
        "rename_account_changes",
        "merge_changes",
    },
    "bodies of a batch go in one way there": {"keep_answers"},
    "others may put their own functions and schemas there": {"own_path", "schema_squatter"},
    "jobs lie in two places": {
        "accept_jobs",
        "check_places",
        "copy_hot",
        "copy_jobs",
        "place_jobs",
        "reserve_ids",
        "revive_units",
    },
    "a server: its life, its clock, the fate of a commit, its word to others": {
        "end_backend",
        "listen",
        "ping",
        "place_of_store",
        "server_time",
        "set_up",
        "tell",
        "transaction_fate",
        "was_called",
        "was_created",
        "was_ended",
        "was_leased",
        "was_tried",
        "who_and_where",
    },
    "the schema is one of several in a database": {
        "begin",
        "make_schema",
        "make_versions",
        "migrate_at_leisure",
        "note_migration",
        "schema_exists",
    },
    "dead rows are removed by a vacuum": {"count_dead", "remove_dead"},
    "what a doctor asks a server": {
        "doctor_connections",
        "doctor_dead",
        "doctor_may_create",
        "doctor_oldest",
        "doctor_rights",
        "doctor_settings",
    },
}


def test_statements_have_the_same_names_but_for_those_with_a_reason() -> None:
    assert SQLITE.keys() - POSTGRES.keys() == set().union(*ONLY_SQLITE.values())
    assert POSTGRES.keys() - SQLITE.keys() == set().union(*ONLY_POSTGRES.values())


def test_every_statement_is_described() -> None:
    for package in ("penstock.stores.sqlite", "penstock.stores.postgres"):
        lines = files(package).joinpath("queries.sql").read_text(encoding="utf-8").splitlines()
        for line, following in pairwise(lines):
            if line.startswith("-- ") and line.endswith(" --"):
                assert following.startswith("-- "), line
