# SPDX-License-Identifier: Apache-2.0
"""Maps errors of the server and of the connection to it to ours."""

from __future__ import annotations

import re

import psycopg
from psycopg import errors as pg

from penstock.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsupported,
)
from penstock.sentences import command
from penstock.stores.group_commit import Contended

# 23505: two tried to insert the same name; the second must see what the first has done.
_IN_THE_WAY = frozenset({"23505", "40001", "40P01", "55P03", "57014"})
#: What psycopg believes to be prepared is not: a pipeline was aborted, or a pooler is in between.
_FORGOTTEN = frozenset({"26000", "42P05"})
_GONE = frozenset({"25P03", "53300", "57P01", "57P02", "57P03", "57P04", "57P05"})
_REFUSED = frozenset({"28000", "28P01", "3D000"})
# libpq gives no state for a connection that is not made: the server's words have to do.
_REFUSALS = re.compile(
    r"authentication failed for user|no password supplied|pg_hba\.conf|is not permitted to log in"
    r"|permission denied for database|(?:database|role) \".*\" does not exist"
)
_EXHAUSTED = re.compile(
    r"too many (clients|connections)|connection slots|no more connections|max_client_conn"
)
_SCHEMA = frozenset({"3F000", "42P01", "42703", "42883", "42704"})


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection can no longer be used."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state[:2] == "08" or state in _GONE or state[:2] == "58" or state in _FORGOTTEN


def is_clean(error: psycopg.Error) -> bool:
    """Whether the server itself said that it did not commit."""
    state = error.sqlstate
    return state is not None and (state[:2] in {"22", "23", "40"} or state == "57014")


def as_store_error(error: psycopg.Error, where: str, doing: str) -> StoreError:
    """One of ours, in a sentence; a plain StoreError is our bug, or a statement that is wrong."""
    mapped = _meaning(error, where, doing)
    mapped.__cause__ = error
    return mapped


def _meaning(error: psycopg.Error, where: str, doing: str) -> StoreError:
    state = error.sqlstate or ""
    said = first_line(error)
    if state in _IN_THE_WAY:
        return Contended(f"Another transaction interfered while {doing} {where}: {said}.")
    if state in _REFUSED or state == "42501" or _is_refusal(error, said):
        return refused(where, said)
    if is_lost(error):
        return Contended(f"The connection to {where} was lost while {doing} it: {said}.")
    if state == "25006" or isinstance(error, pg.ReadOnlySqlTransaction):
        return read_only(where)
    if state in {"53100", "54000"}:
        return StoreFull(
            f"The server of {where} has no space left: {said}. Nothing was changed; make room."
        )
    if state[:2] == "53":
        return StoreUnavailable(f"The server of {where} lacks resources: {said}. Try again.")
    if state[:2] == "XX":
        return StoreCorrupt(
            f"The server found damage while {doing} {where}: {said}. Look at the server's log; "
            "restore a backup if necessary."
        )
    if state in _SCHEMA:
        return StoreCorrupt(
            f"The store {where} is incomplete: {said}. Restore a backup, or run "
            f"'{command('doctor')}' "
            "for details."
        )
    return StoreError(f"A statement failed while {doing} {where}: {said}.")


def _is_refusal(error: psycopg.Error, said: str) -> bool:
    """Whether a server answered, and did not let us in."""
    if error.sqlstate is not None or not isinstance(error, psycopg.OperationalError):
        return False
    return _REFUSALS.search(said) is not None


def read_only(where: str) -> StoreReadOnly:
    """A standby, or a session that may only read."""
    return StoreReadOnly(
        f"The server of {where} can only be read: it is a standby, or read-only by a "
        "setting. Name the primary, for example with both hosts and "
        "target_session_attrs=read-write in the URL."
    )


def as_final_error(error: psycopg.Error, where: str, doing: str) -> StoreError:
    """The same for whoever does not run it again: the store is unreachable, or busy."""
    mapped = as_store_error(error, where, doing)
    if not isinstance(mapped, Contended):
        return mapped
    return unreachable(where, first_line(error)) if is_lost(error) else StoreBusy(str(mapped))


def refused(where: str, said: str) -> StoreError:
    """The server does not let us in, or not far enough."""
    return StoreUnsupported(
        f"The server does not let this user use {where}: {said}. Check user, password, database "
        "and the rights on the schema 'penstock'."
    )


def unreachable(where: str, said: str) -> StoreUnavailable:
    """Nobody answers, or has room for us."""
    if _EXHAUSTED.search(said):
        return StoreUnavailable(
            f"The server of {where} has no connection left: {said}. Raise its max_connections or "
            "the limit of the role or database, or put a pooler in between; a process of Penstock "
            "uses up to four."
        )
    return StoreUnavailable(
        f"The server of {where} cannot be reached: {said}. Check host, port and network, and that "
        "it runs."
    )


def first_line(error: BaseException) -> str:
    """What was said, without what libpq adds below."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
