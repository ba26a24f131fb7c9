# SPDX-License-Identifier: Apache-2.0
"""Is every error of a server one of ours, in one sentence that says what to do?"""

from __future__ import annotations

import psycopg
import pytest

from penstock.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsupported,
)
from penstock.stores.group_commit import Contended
from penstock.stores.postgres import errors

WHERE = "postgresql://h/db"


def said_by_server(state: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)("the server says no.\nDETAIL: more")


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("40001", Contended),  # serialization_failure
        ("40P01", Contended),  # deadlock_detected
        ("55P03", Contended),  # lock_not_available
        ("57014", Contended),  # query_canceled: our statement_timeout
        ("23505", Contended),  # unique_violation
        ("26000", Contended),  # invalid_sql_statement_name: a pooler
        ("57P01", Contended),  # admin_shutdown
        ("53300", Contended),  # too_many_connections
        ("08006", Contended),  # connection_failure
        ("58030", Contended),  # io_error
        ("28P01", StoreUnsupported),  # invalid_password
        ("3D000", StoreUnsupported),  # invalid_catalog_name
        ("42501", StoreUnsupported),  # insufficient_privilege
        ("25006", StoreReadOnly),  # read_only_sql_transaction
        ("53100", StoreFull),  # disk_full
        ("53200", StoreUnavailable),  # out_of_memory
        ("XX001", StoreCorrupt),  # data_corrupted
        ("42P01", StoreCorrupt),  # undefined_table
        ("22012", StoreError),  # division_by_zero: a bug of ours
    ],
)
def test_each_state_has_its_meaning(state: str, kind: type[StoreError]) -> None:
    error = said_by_server(state)

    mapped = errors.as_store_error(error, WHERE, "reading")

    assert type(mapped) is kind
    assert mapped.__cause__ is error
    assert WHERE in str(mapped)
    assert "DETAIL" not in str(mapped)
    assert ".." not in str(mapped)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ('FATAL:  password authentication failed for user "me"', StoreUnsupported),
        ('FATAL:  database "nowhere" does not exist', StoreUnsupported),
        ("connection refused", StoreUnavailable),
        ("FATAL:  sorry, too many clients already", StoreUnavailable),
        ("", StoreUnavailable),
    ],
)
def test_who_gets_no_connection_is_told_whose_move_it_is(said: str, kind: type[StoreError]) -> None:
    refusal = errors.as_final_error(psycopg.OperationalError(said), WHERE, "connecting to")

    assert type(refusal) is kind
    assert WHERE in str(refusal)


def test_a_server_without_connections_left_is_not_called_out_of_reach() -> None:
    said = str(errors.unreachable(WHERE, "FATAL:  sorry, too many clients already"))

    assert "max_connections" in said
    assert "cannot be reached" not in said


@pytest.mark.parametrize("state", ["22P05", "40001", "40P01", "23505", "57014"])
def test_the_server_s_own_refusal_of_a_commit_is_clean(state: str) -> None:
    assert errors.is_clean(said_by_server(state))


@pytest.mark.parametrize(
    "error", [psycopg.OperationalError("gone"), said_by_server("57P01"), said_by_server("08006")]
)
def test_a_lost_connection_says_nothing_about_a_commit(error: psycopg.Error) -> None:
    assert errors.is_lost(error)
    assert not errors.is_clean(error)


def test_an_error_of_the_driver_itself_loses_no_connection() -> None:
    assert not errors.is_lost(psycopg.ProgrammingError("a parameter is missing"))
    assert not errors.is_lost(said_by_server("40001"))


def test_an_error_without_words_is_called_by_its_class() -> None:
    assert errors.first_line(psycopg.OperationalError("\n \n")) == "OperationalError"
