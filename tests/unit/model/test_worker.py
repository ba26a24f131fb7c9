# SPDX-License-Identifier: Apache-2.0
"""Is a status small, and can it be read by other versions?"""

from __future__ import annotations

import msgspec

from penstock.model.job import NAME_LENGTH_MAX
from penstock.model.worker import (
    CAPS_SHOWN,
    GROUPS_SHOWN,
    LINES_SHOWN,
    STATUS_BYTES_MAX,
    TASKS_SHOWN,
    BlockedTasks,
    GroupUse,
    LeasePhase,
    LeaseReport,
    SlotUse,
    WorkerStatus,
    read_lease_report,
    read_status,
)

LINE = BlockedTasks("no_capacity", "capacity", "async", 3, 2, 7, {"limit": 4.0}, 9)
STATUS = WorkerStatus(
    captured_at=5,
    slots={"async": SlotUse(4, 2), "free": SlotUse(None, 1)},
    task_slots={"fetch": "async"},
    running=2,
    waiting=3,
    groups={"g": GroupUse(2, 3, 1)},
    groups_total=1,
    blocked=(LINE,),
    caps={"host:*": 4},
)


def largest() -> WorkerStatus:
    """As many of everything as may be told, each with the longest name there can be."""
    name = "\u0001" * (NAME_LENGTH_MAX - 4)  # six bytes each
    return WorkerStatus(
        captured_at=1,
        task_slots={f"{name}{n}": "async" for n in range(TASKS_SHOWN)},
        groups={f"{name}{n}": GroupUse(1, 1) for n in range(GROUPS_SHOWN)},
        groups_total=GROUPS_SHOWN,
        blocked=(LINE,) * LINES_SHOWN,
        caps={f"{name}{n}": n for n in range(CAPS_SHOWN)},
        running=7,
    )


def test_what_is_written_is_what_is_read() -> None:
    standing = LeaseReport(standing=LeasePhase.WAITING, status=STATUS, denied=LINE)

    assert read_status(STATUS.encoded()) == STATUS
    assert read_lease_report(standing.encoded()) == standing


def test_a_document_is_never_larger_than_its_bound() -> None:
    status = largest()
    answer = LeaseReport(standing=LeasePhase.RUNNING, status=status)

    assert len(msgspec.json.encode(status)) > STATUS_BYTES_MAX
    assert len(status.encoded().encode()) <= STATUS_BYTES_MAX
    assert len(answer.encoded().encode()) <= STATUS_BYTES_MAX
    read = read_lease_report(answer.encoded())
    assert read is not None
    assert (read.status.running, read.status.groups_total) == (7, GROUPS_SHOWN)


def test_fields_of_a_later_version_are_passed_over() -> None:
    text = STATUS.encoded()[:-1] + ',"pressure":{"acme":1}}'

    assert read_status(text) == STATUS


def test_what_cannot_be_understood_is_no_status() -> None:
    for text in (None, "", "{}", "[]", '{"captured_at":"x"}', "not json"):
        assert read_status(text) is None
        assert read_lease_report(text) is None


def test_two_moments_that_differ_in_their_time_only_are_the_same() -> None:
    later = msgspec.structs.replace(STATUS, captured_at=6)

    assert later.same(STATUS)
    assert not later.same(msgspec.structs.replace(STATUS, running=1))
