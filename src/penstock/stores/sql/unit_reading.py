# SPDX-License-Identifier: Apache-2.0
"""What does a store tell of schedules, their cursors and their preflights?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock.model.job import AttemptError, JobState
from penstock.model.schedule import PreflightResult, UnitView
from penstock.stores.sql.row_state import PUBLIC
from penstock.stores.sql.statements import Row, Statements, as_json

UNITS_READ = 1_000  # at once
ILL_UNITS_MAX = 1_000  # that are told of
FAILED_CHECKS_MAX = 1_000  # that are told of

_decode_error = msgspec.json.Decoder(AttemptError).decode


def units_of(reader: Statements, app: str | None, after_key: str, limit: int) -> list[UnitView]:
    if app is None:
        rows = reader.rows("list_all_units", after_key, limit)
    else:
        rows = reader.rows("list_units", app, after_key, limit)
    return [_view(row) for row in rows]


def unit_of(reader: Statements, key: str) -> UnitView | None:
    row = reader.row("read_unit", key)
    return None if row is None else _view(row)


def ill_units_of(reader: Statements) -> tuple[UnitView, ...]:
    """Units whose last try failed, or that have ended in error; a bounded number of each app."""
    found: list[UnitView] = []
    last = ""
    while len(found) < ILL_UNITS_MAX and (page := units_of(reader, None, last, UNITS_READ)):
        last = page[-1].key
        found += [unit for unit in page if unit.is_failing or unit.state is JobState.ERROR]
    return tuple(found[:ILL_UNITS_MAX])


def cursors_of(reader: Statements, names: Sequence[str]) -> dict[str, str]:
    return dict(reader.array("read_cursors", as_json(names)))


def preflights_of(
    reader: Statements, app: str, after_unit: str, limit: int
) -> list[PreflightResult]:
    return [_result(row) for row in reader.rows("list_preflights", app, after_unit, limit)]


def failed_checks_of(reader: Statements) -> tuple[PreflightResult, ...]:
    """Checks that did not pass at the last start of their app; a bounded number."""
    return tuple(_result(row) for row in reader.rows("list_failed_preflights", FAILED_CHECKS_MAX))


def _result(row: Row) -> PreflightResult:
    unit, name, partition, value, error, checked_at = row
    return PreflightResult(
        unit=unit,
        name=name,
        partition=partition,
        value=value,
        error=None if error is None else _decode_error(error),
        checked_at=checked_at,
    )


def broken_units(reader: Statements) -> Iterator[str]:
    """Every broken invariant of units, as sentences."""
    for (sentence,) in reader.rows("check_units"):
        yield f"{sentence}."


def _view(row: Row) -> UnitView:
    return UnitView(
        key=row[0],
        app=row[1],
        task=row[2],
        partition=row[3],
        timing=row[4],
        state=PUBLIC[row[5]],
        due_at=row[6],
        available_at=row[7],
        attempts=row[8],
        deferred_since=row[9],
        last_error=None if row[10] is None else _decode_error(row[10]),
        ticks=row[11],
        missed=row[12],
        failed=row[13],
        last_tick_at=row[14],
        retired_at=row[15],
    )
