# SPDX-License-Identifier: Apache-2.0
"""What the comparison with the peers shows, and what it says where a peer is missing."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from benchmarks import measuring
from benchmarks.peers import catalogue, comparing, driver
from benchmarks.peers.catalogue import OURS, OURS_ON_POSTGRES, PEERS, POSTGRES_PEERS
from benchmarks.peers.comparing import Measured
from benchmarks.peers.marks import Marks
from benchmarks.queue import peers
from benchmarks.runner import Setup

THEIR_DRIVERS = {"asyncpg", "psycopg", "uvloop"}
FOLDER = Path(catalogue.__file__).parent
SETUP = Setup(smoke=False, folder=Path())


def measured(
    rate: float, *, name: str = "huey", synchronous: str = "FULL", beside: float = 30_000.0
) -> Measured:
    """A peer that was measured beside ours, three times."""
    (entry,) = (entry for entry in (OURS, *PEERS) if entry.name == name)
    drain = {"rate": rate, "journal_mode": "wal", "synchronous": synchronous}
    return Measured(
        entry,
        "1.0",
        drains=[drain] * 3,
        ours=[] if entry is OURS else [{"rate": beside}] * 3,
        latencies=[{"p50": 2.0, "p99": 5.0, "idle_percent": 0.5}],
    )


OURS_MEASURED = measured(30_000.0, name="Penstock")


def test_marks_are_seen_through_another_map_of_the_file(tmp_path: Path) -> None:
    board = Marks.create(tmp_path / "marks", 3)
    other = Marks(tmp_path / "marks")

    for number in (0, 2):
        other.mark(number)

    assert not board.all_begun()
    assert [bool(at) for at in board.times()] == [True, False, True]
    other.mark(1)
    assert board.all_begun()
    board.close()
    other.close()


def test_without_the_environment_the_table_names_the_command_and_nothing_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "READY", tmp_path / "ok")

    outcome = peers.measure(Setup(smoke=True, folder=tmp_path))

    assert outcome.checks == ()
    assert "`make bench-peers`" in str(outcome.tables[0].rows)


@pytest.mark.parametrize(("rate", "ok"), [(4_000.0, True), (4_300.0, False)])
def test_ours_must_be_seven_times_huey(rate: float, ok: bool) -> None:
    # 30,000 / 4,000 = 7.5; 30,000 / 4,300 < 7
    outcome = peers.to_outcome(OURS_MEASURED, [measured(rate)], SETUP)

    (check,) = outcome.checks
    assert "huey" in check.name
    assert check.bound == 7.0
    assert check.ok is ok


def test_huey_and_dbos_have_the_bounds_that_were_promised() -> None:
    assert {entry.name: entry.at_least for entry in PEERS if entry.at_least} == {
        "huey": 7.0,
        "DBOS": 20.0,
    }


def test_a_ratio_is_taken_from_the_runs_of_ours_beside_the_peer() -> None:
    # The machine was slow for both while this peer ran: 3,000 / 1,000, not 30,000 / 1,000.
    outcome = peers.to_outcome(OURS_MEASURED, [measured(1_000.0, beside=3_000.0)], SETUP)

    assert outcome.checks[0].value == 3.0
    assert outcome.tables[0].rows[1][:5] == ("huey", "1.0", 20_000, 1_000.0, 3.0)


def test_a_peer_that_is_not_installed_is_named_and_not_checked() -> None:
    missing = Measured(PEERS[0], None)

    outcome = peers.to_outcome(OURS_MEASURED, [missing], SETUP)

    assert outcome.checks == ()
    row = outcome.tables[0].rows[1]
    assert row[:3] == ("huey", "not installed", "–")
    assert len(row) == len(comparing.SPEED_COLUMNS)


@pytest.mark.parametrize(
    ("synchronous", "promise"),
    [
        ("FULL", "is there"),
        ("EXTRA", "is there"),
        ("NORMAL", "may be lost"),
        ("OFF", "may be lost"),
    ],
)
def test_a_power_cut_is_judged_by_the_pragma_that_was_in_force(
    synchronous: str, promise: str
) -> None:
    outcome = peers.to_outcome(OURS_MEASURED, [measured(1.0, synchronous=synchronous)], SETUP)

    assert outcome.tables[1].rows[1][1:4] == ("wal", synchronous, promise)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [(None, "–"), ({"seconds": None}, "not within 60 s"), ({"seconds": 29.54}, "29.5 s")],
)
def test_a_takeover_is_shown_as_it_was_measured(
    answer: measuring.Answer | None, shown: str
) -> None:
    peer = measured(1.0)
    peer.takeover = answer

    assert peers.to_outcome(OURS_MEASURED, [peer], SETUP).tables[1].rows[1][-1] == shown


def test_only_a_peer_with_a_bound_gets_every_round(tmp_path: Path) -> None:
    full, smoke = (Setup(smoke=smoke, folder=tmp_path) for smoke in (False, True))
    bound, shown = PEERS[0], PEERS[-1]

    assert [comparing.rounds_for(bound, setup) for setup in (full, smoke)] == [full.rounds, 1]
    assert [comparing.rounds_for(shown, setup) for setup in (full, smoke)] == [3, 1]


def test_every_peer_has_a_driver_and_a_version_range() -> None:
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    pinned = {re.split(r"[\[><=]", line)[0] for line in lines if line and not line.startswith("#")}

    assert {entry.package for entry in (*PEERS, *POSTGRES_PEERS)} == pinned - THEIR_DRIVERS
    for entry in (OURS, *PEERS, OURS_ON_POSTGRES, *POSTGRES_PEERS):
        assert "def open_peer(" in (FOLDER / f"{entry.module}.py").read_text()


def test_versions_tell_what_is_missing() -> None:
    assert driver.versions(["pytest", "no-such-package"]) == {
        "pytest": pytest.__version__,
        "no-such-package": None,
    }


def test_pragmas_are_read_by_name() -> None:
    values = {"journal_mode": "wal", "synchronous": 2}

    assert driver.read_pragmas(values.__getitem__) == {
        "journal_mode": "wal",
        "synchronous": "FULL",
    }


@pytest.mark.slow
def test_our_own_driver_drains_durably_and_answers_single_jobs(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=measuring.MEMORY) as memory:
        marks = os.path.join(memory, "marks")
        for name in ("drain", "latency"):
            (tmp_path / name).mkdir()

        drain = measuring.fresh(
            driver.drain,
            tmp_path / "drain",
            peer=driver.target(OURS.module, "."),
            marks=marks,
            total=200,
        )
        latency = measuring.fresh(
            driver.latency,
            tmp_path / "latency",
            peer=driver.target(OURS.module, "."),
            marks=marks,
            count=2,
            seed=1,
            idle_seconds=0.1,
        )

    assert drain["rate"] > 0
    assert (drain["journal_mode"], drain["synchronous"]) == ("wal", "FULL")
    assert 0 < latency["p50"] <= latency["p99"]
