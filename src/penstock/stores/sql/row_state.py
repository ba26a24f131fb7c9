# SPDX-License-Identifier: Apache-2.0
"""The states of a row in a database, finer than those that people see.

`queued` is three states of a row, so that the ready index holds due jobs only.
"""

from __future__ import annotations

from enum import IntEnum

from penstock.model.job import JobState


class RowState(IntEnum):
    """The column `row_state`; the numbers stand in the indexes of schema.sql."""

    WAITING = 0
    DELAYED = 1  # queued, not due
    READY = 2  # queued, due
    SUSPECT = 3  # queued, must run in quarantine
    IN_PROGRESS = 4
    DONE = 5
    SKIPPED = 6
    ERROR = 7
    CANCELLED = 8


PUBLIC: dict[int, JobState] = {
    RowState.WAITING: JobState.WAITING,
    RowState.DELAYED: JobState.QUEUED,
    RowState.READY: JobState.QUEUED,
    RowState.SUSPECT: JobState.QUEUED,
    RowState.IN_PROGRESS: JobState.IN_PROGRESS,
    RowState.DONE: JobState.DONE,
    RowState.SKIPPED: JobState.SKIPPED,
    RowState.ERROR: JobState.ERROR,
    RowState.CANCELLED: JobState.CANCELLED,
}

OF_STATE: dict[JobState, RowState] = {
    JobState.WAITING: RowState.WAITING,
    JobState.IN_PROGRESS: RowState.IN_PROGRESS,
    JobState.DONE: RowState.DONE,
    JobState.SKIPPED: RowState.SKIPPED,
    JobState.ERROR: RowState.ERROR,
    JobState.CANCELLED: RowState.CANCELLED,
}
