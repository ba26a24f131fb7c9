# SPDX-License-Identifier: Apache-2.0
"""What the section on PostgreSQL concludes from its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers import catalogue
from benchmarks.peers.catalogue import OURS_ON_POSTGRES, PGQUEUER, POSTGRES_PEERS
from benchmarks.peers.comparing import Measured
from benchmarks.postgres import churn, peers, pinned
from benchmarks.postgres.churn import Passed
from benchmarks.postgres.sizes import TableSize, hot_mib
from benchmarks.runner import Check, Kind, Outcome, Setup

SETUP = Setup(smoke=False, folder=Path())
HOT = TableSize("jobs", 10.0, 5.0, hot=True, dead_rows=0)
HISTORY = TableSize("history", 300.0, 100.0, hot=False, dead_rows=0)


def check(outcome: Outcome, words: str) -> Check:
    (found,) = (check for check in outcome.checks if words in check.name)
    return found


def passed(rates: Sequence[float] = (1.0,) * 12, table: TableSize = HOT) -> Passed:
    return Passed(tuple(rates), (1.0,), [HISTORY, table])


def test_a_slice_has_a_part_of_all_jobs_in_the_order_in_which_they_began() -> None:
    begun = [0.0, 1.0, 2.0, 3.0, 4.0, 4.5, 5.0, 5.5, 6.0]

    assert churn.slice_rates([*reversed(begun)], slices=2) == (1.0, 2.0)


@pytest.mark.parametrize(("last", "ok"), [(1.0, True), (0.8, False)])
def test_the_last_third_must_be_as_fast_as_the_first(last: float, ok: bool) -> None:
    seen = passed([1.0] * 4 + [0.1] * 4 + [last] * 4)

    outcome = churn.to_outcome(passed(), seen, 10, 40, 5)

    assert check(outcome, "last third").ok is ok
    assert check(outcome, "last third").value == pytest.approx(last)


@pytest.mark.parametrize(("mib", "ok"), [(17.0, True), (18.0, False)])
def test_hot_tables_may_not_grow_and_history_may(mib: float, ok: bool) -> None:
    grown = replace(HOT, table_mib=mib)  # 15 MiB before, of which 5 are indexes

    outcome = churn.to_outcome(passed(), passed(table=grown), 10, 40, 5)

    assert check(outcome, "hot tables").ok is ok
    assert hot_mib([HISTORY, grown]) == mib + 5.0


def test_small_hot_tables_may_grow_a_little() -> None:
    tiny, small = (replace(HOT, table_mib=mib, index_mib=0.0) for mib in (0.1, 8.0))

    outcome = churn.to_outcome(passed(table=tiny), passed(table=small), 10, 40, 5)

    assert check(outcome, "hot tables").ok


@pytest.mark.parametrize(("slow", "ok"), [(1, True), (2, False)])
def test_one_lease_in_a_hundred_may_be_slow(slow: int, ok: bool) -> None:
    waits = [1.0] * (200 - slow) + [80.0] * slow

    assert check(pinned.to_outcome(waits, waits, 100, 100), "p99").ok is ok


def test_figures_without_dead_rows_do_not_count() -> None:
    assert not check(pinned.to_outcome([1.0], [1.0], 100, 99), "dead rows that").ok


def test_the_peers_have_the_bounds_that_were_promised() -> None:
    assert {entry.name: (entry.at_least, entry.goal) for entry in POSTGRES_PEERS} == {
        "PgQueuer": (1.3, 1.6),
        "Procrastinate": (20.0, None),
        "DBOS": (20.0, None),
    }


@pytest.mark.parametrize(("ours", "verdicts"), [(1.2, [False, False]), (1.4, [True, False])])
def test_a_goal_is_told_apart_from_a_bound(ours: float, verdicts: list[bool]) -> None:
    outcome = peers.to_outcome(measured(1.0), [measured(1.0, ours)], [], SETUP)

    assert [check.ok for check in outcome.checks] == verdicts
    assert [check.kind for check in outcome.checks] == [Kind.BOUND, Kind.GOAL]


def test_every_setting_that_was_tried_is_shown() -> None:
    trial = [("PgQueuer", "batch 100", 1.0, 2, "yes"), ("PgQueuer", "batch 10", 0.5, 2, "")]

    outcome = peers.to_outcome(measured(1.0), [measured(1.0, 1.4)], [trial], SETUP)

    assert outcome.tables[0].rows == tuple(trial)


def test_without_the_environment_nothing_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "READY", tmp_path / "ok")

    outcome = peers.measure(Setup(smoke=True, folder=tmp_path))

    assert outcome.checks == ()
    assert "not measured" in str(outcome.tables[0].rows)


def measured(rate: float, beside: float | None = None) -> Measured:
    """PgQueuer, measured beside ours; or ours."""
    drain = {"rate": rate, "fsync": "on", "synchronous_commit": "on"}
    return Measured(
        OURS_ON_POSTGRES if beside is None else PGQUEUER,
        "1.0",
        drains=[drain] * 3,
        ours=[] if beside is None else [{"rate": beside}] * 3,
        latencies=[{"p50": 2.0, "p99": 5.0, "idle_percent": 0.5}],
    )
