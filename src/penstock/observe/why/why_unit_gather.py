# SPDX-License-Identifier: Apache-2.0
"""Where do the facts about a unit of a schedule come from?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.model.schedule import PreflightResult, UnitView
from penstock.observe.why.facts import Facts
from penstock.observe.why.schedule import FailedStart, UnitFacts
from penstock.stores.protocol import Store

PAGE = 1_000  # results of preflights that are read at once
FAILED_SHOWN = 5


def unit_facts(
    store: Store, around: Facts, passed: Callable[[UnitView, int], int]
) -> UnitFacts | None:
    """What is known of a job that is a unit; None if it is none.

    Args:
        store: of the job.
        around: what is known of its row.
        passed: how many occurrences have passed since the one that a unit is at, by its timing.
    """
    unit = store.unit(around.this.job.key).result()
    if unit is None:
        return None
    start = failed_start(store, unit.app, unit.partition)
    return UnitFacts(unit=unit, around=around, start=start, passed=passed(unit, around.now))


def failed_start(store: Store, app: str, partition: str | None) -> FailedStart | None:
    """The checks of the last start that have failed; None if all have passed."""
    own: list[PreflightResult] = []
    others: list[PreflightResult] = []
    count = checked_at = 0
    last = ""
    while page := store.preflights(app, last, PAGE).result():
        last = page[-1].unit
        for result in page:
            if result.error is None:
                continue
            count += 1
            checked_at = max(checked_at, result.checked_at)
            among = own if _concerns(result.partition, partition) else others
            if len(among) < FAILED_SHOWN:
                among.append(msgspec.structs.replace(result, value=None))
    if not count:
        return None
    return FailedStart(
        app=app,
        failed=tuple([*own, *others][:FAILED_SHOWN]),
        count=count,
        checked_at=checked_at,
    )


def _concerns(checked: str, partition: str | None) -> bool:
    """Is a check about a unit's own partition, as far as names tell?"""
    return not checked or (partition is not None and f"/{checked}/" in f"/{partition}/")
