# SPDX-License-Identifier: Apache-2.0
"""Can another process read what a worker ran, even after its death?"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator

import pytest

from penstock.model.job import JobId, WorkerId
from penstock.model.lease import JobRef
from penstock.worker import slot_table
from penstock.worker.slot_table import SlotRecord, SlotTable


@pytest.fixture
def table() -> Iterator[SlotTable]:
    table = SlotTable.create(4)
    yield table
    table.close()


def test_a_fresh_table_says_that_nothing_runs(table: SlotTable) -> None:
    snapshot = table.snapshot()

    assert snapshot.worker is None
    assert (table.lease_until(), snapshot.loop_turn_monotonic) == (0.0, 0.0)
    assert snapshot.running == ()


def test_what_one_side_writes_the_other_side_reads(table: SlotTable) -> None:
    other = SlotTable.attach(table.fd)
    table.set_worker(WorkerId("w-0123456789abcdef"))
    table.occupy(2, 7, 3, 12.5, 1)
    table.occupy(0, 9, 1, 0.0, 3)
    table.turn(99.0)
    other.set_lease_until(42.0)

    snapshot = other.snapshot()

    assert snapshot.worker == "w-0123456789abcdef"
    assert snapshot.running == (
        SlotRecord(JobRef(JobId(9), 1), 0.0, 3),
        SlotRecord(JobRef(JobId(7), 3), 12.5, 1),
    )
    assert snapshot.loop_turn_monotonic == other.last_turn() == 99.0
    assert table.lease_until() == 42.0
    assert other.slots == 4
    other.close()


def test_a_vacated_slot_is_empty_and_can_be_used_again(table: SlotTable) -> None:
    table.occupy(1, 7, 3, 1.0, 3)
    table.vacate(1)
    assert table.snapshot().running == ()

    table.occupy(1, 8, 1, 2.0, 3)

    assert table.snapshot().running == (SlotRecord(JobRef(JobId(8), 1), 2.0, 3),)


def test_a_new_name_leaves_nothing_of_a_longer_old_one(table: SlotTable) -> None:
    table.set_worker(WorkerId("w-a-rather-long-name"))

    table.set_worker(WorkerId("w-1"))

    assert table.snapshot().worker == "w-1"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_table_outlives_a_killed_worker(table: SlotTable) -> None:
    child = os.fork()
    if child == 0:  # pragma: no cover (another process)
        table.set_worker(WorkerId("w-dead"))
        table.occupy(0, 11, 2, 5.0, 3)
        table.occupy(1, 12, 1, 6.0, 3)
        table.vacate(0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)

    snapshot = table.snapshot()

    assert snapshot.worker == "w-dead"
    assert snapshot.running == (SlotRecord(JobRef(JobId(12), 1), 6.0, 3),)


class _Torn(Exception):
    """The writer died here."""


@pytest.mark.parametrize("writes", range(3))
def test_a_record_that_is_torn_by_death_is_never_read(
    writes: int, table: SlotTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's id is written last and cleared first: after any number of writes a record is
    either the whole new one or none at all; never an old job with a new token."""
    table.occupy(0, 7, 3, 1.0, 3)
    table.vacate(0)
    left = [writes]

    def counting(original: struct.Struct) -> object:
        class Counting:
            size = original.size
            unpack_from = original.unpack_from

            @staticmethod
            def pack_into(*args: object) -> None:
                if not left[0]:
                    raise _Torn
                left[0] -= 1
                original.pack_into(*args)  # type: ignore[arg-type]

        return Counting

    monkeypatch.setattr(slot_table, "_RECORD", counting(slot_table._RECORD))
    monkeypatch.setattr(slot_table, "_JOB", counting(slot_table._JOB))

    try:
        table.occupy(0, 8, 1, 2.0, 3)
    except _Torn:
        assert table.snapshot().running == ()
    else:
        assert table.snapshot().running == (SlotRecord(JobRef(JobId(8), 1), 2.0, 3),)


def test_a_closed_table_cannot_be_read() -> None:
    table = SlotTable.create(1)
    table.close()

    table.vacate(0)  # a body that was left behind may still end

    with pytest.raises(ValueError, match="closed"):
        table.snapshot()
