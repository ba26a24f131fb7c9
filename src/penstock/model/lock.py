# SPDX-License-Identifier: Apache-2.0
"""Who may build a dataset now, and which plan is on its way?"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class LockView(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset's lock."""

    name: str
    run_id: str
    mark: str  # of the process that took it, see process_mark
    token: int  # grows with every taking
    taken_at: int
    alive: bool  # it was renewed in time


class LocksTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What came of asking for locks: all of them, or none and who holds them."""

    taken: bool
    held: tuple[LockView, ...] = ()  # by others, where none was taken
    left: tuple[str, ...] = ()  # plans whose run lost a lock by this; they change nothing more


class PlanState(StrEnum):
    """Where a plan is."""

    DRAFT = "draft"  # not all of its jobs are enqueued: none may run
    RUNNING = "running"
    LEFT = "left"  # its run is gone; whoever has the locks may adopt or abandon it
    ENDED = "ended"
    ABANDONED = "abandoned"


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, as a store keeps it."""

    id: str
    app: str
    digest: str  # of request and definitions: who asks the same may go on with it
    state: PlanState = PlanState.DRAFT
    run_id: str
    root: str  # the id of the output root
    document: str  # strict JSON, for people: targets, ranges, mode, counts
    levels: int
    jobs: int
    created_at: int = 0  # set by the store
    begun_at: int | None = None
    ended_at: int | None = None


class LevelStates(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one level of a plan, counted, barriers and gates left out."""

    level: int
    states: dict[str, int]
    committed: bool
