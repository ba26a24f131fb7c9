# SPDX-License-Identifier: Apache-2.0
"""When is nothing left to do?

A draining worker ends when no job is left: delayed ones and those that others hold are waited
for. Jobs of tasks that nobody alive knows cannot be waited for; they are named instead. Units of
schedules, which never end, do not count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from penstock.clock import MICROSECONDS, Clock
from penstock.errors import TRANSIENT
from penstock.model.job import SCHEDULE, SLICE, TERMINAL, JobState, WorkerId
from penstock.model.lease import BlockedKey, LeaseBatch
from penstock.model.views import Outlook
from penstock.model.worker import FULL_SHOWN
from penstock.stores.protocol import Store
from penstock.stores.retry import StoreRetry

SAY_AFTER_SECONDS = 10.0  # of nothing but waiting for full limits
KEYS_NAMED_MAX = 3
HOLDERS_NAMED_MAX = 3

log = logging.getLogger("penstock.worker")


class FullLimits:
    """Keeps what the last lease call said, and tells once why nothing can be leased.

    A limit of 0 is told at once: it ends by an operator's doing only.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._blocked: tuple[BlockedKey, ...] = ()
        self._empty_since: float | None = None
        self._told: set[str] = set()  # keys, until they have room again

    def note(self, batch: LeaseBatch) -> None:
        """Take in the answer to a lease call."""
        now = self._clock.monotonic()
        self._blocked = batch.blocked
        self._told.intersection_update(blocked.limit_key for blocked in batch.blocked)
        if batch.jobs or not batch.blocked:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = now
        late = self._empty_since is not None and now - self._empty_since >= SAY_AFTER_SECONDS
        self._tell([blocked for blocked in batch.blocked if late or blocked.cap <= 0])

    def _tell(self, found: Sequence[BlockedKey]) -> None:
        news = [blocked for blocked in found if blocked.limit_key not in self._told]
        if news:
            self._told.update(blocked.limit_key for blocked in news)
            log.info("Jobs wait for %s.", _named(news))

    def shown(self) -> dict[str, int]:
        """Some of the limits that held jobs back, and what they allow."""
        return {blocked.limit_key: blocked.cap for blocked in self._blocked[:FULL_SHOWN]}

    def reason(self) -> str:
        """Why ready jobs are not handed out, as far as is known here."""
        return (
            f"waiting for {_named(self._blocked)}" if self._blocked else "others are served first"
        )


def _named(found: Sequence[BlockedKey]) -> str:
    names = "; ".join(_one(blocked) for blocked in found[:KEYS_NAMED_MAX])
    more = len(found) - KEYS_NAMED_MAX
    return names + (f"; and {more} more full limits" if more > 0 else "")


def _one(blocked: BlockedKey) -> str:
    if blocked.cap <= 0:
        return f"the limit {blocked.limit_key!r}, which is 0: nothing runs until it is raised"
    holders = ", ".join(map(repr, blocked.holders[:HOLDERS_NAMED_MAX]))
    more = " and others" if len(blocked.holders) > HOLDERS_NAMED_MAX else ""
    return f"the limit {blocked.limit_key!r} of {blocked.cap}, held by {holders}{more}"


LOOK_SECONDS = 0.2  # between two questions whether anything is left
LOOK_SECONDS_MAX = 1.0  # the same while nobody runs anything
SAY_AGAIN_SECONDS = 3600.0  # the same reason, while it lasts or when it comes again
WAITS = "Looking for what is left has to wait"
PAUSED = "the queue is paused; `penstock queue resume` lets it go on."


_States = Mapping[str, Mapping[JobState, int]]


class Drain:
    """Owns the question whether a draining worker may end."""

    def __init__(
        self,
        store: Store,
        tasks: Iterable[str],
        run_id: str,
        clock: Clock,
        retry: StoreRetry,
        ends: bool = True,
        until: str | None = None,
    ) -> None:
        self._store = store
        self._tasks = frozenset(tasks)
        self._run_id = run_id
        self._clock = clock
        self._retry = retry
        self.ends = ends  # with the work; else only a budget ends it
        self._until = until  # the key of the job whose end is the end; None: of all
        self._waiting_since: float | None = None
        self._said: dict[str, float] = {}  # which reasons, and when
        self.full = FullLimits(clock)
        self.next_due_at: int | None = None
        self.outlook: Outlook | None = None  # as it was last seen
        self.finished = False
        self.is_out_of_money = False  # all that could be done waits for a budget
        self.left_behind = 0  # open jobs of tasks nobody knows, and what waits for them

    def note(self, batch: LeaseBatch) -> None:
        """Take in what a lease call said about what it did not hand out."""
        self.next_due_at = batch.next_due_at
        self.full.note(batch)
        if batch.paused:
            self._say(PAUSED)
        else:
            self._said.pop(PAUSED, None)

    def due(self, at: int) -> None:
        """Something will be due that the last lease call could not know of."""
        if self.next_due_at is None or at < self.next_due_at:
            self.next_due_at = at

    async def look(self, worker: WorkerId, held: frozenset[str] = frozenset()) -> None:
        """Ask the store what is left; one that cannot answer now is waited for.

        Args:
            worker: who asks.
            held: tasks that a budget holds back.
        """
        try:
            outlook = await self._store.outlook(worker, self._run_id)
            last = None if self._until is None else await self._store.job(self._until)
        except TRANSIENT as error:
            self._retry.refused(WAITS, error)
            return
        self._retry.answered(WAITS)
        self.outlook = outlook
        self.is_out_of_money = bool(held) and self._is_held_back(outlook, held)
        if self.is_out_of_money or not self.ends:
            return
        self.next_due_at = outlook.next_due_at
        if self._until is not None:
            self.finished = last is None or last.state in TERMINAL
            if not self.finished:
                self._say_reason(outlook, outlook.open_by_task)
            return
        known, unknown = self._split(outlook)
        stuck = known > 0 and self._is_stuck(outlook)
        self.finished = known == 0 or stuck
        if self.finished:
            self.left_behind = sum(unknown.values()) + (known if stuck else 0)
            self._tell_left(unknown, known if stuck else 0)
        else:
            self._say_reason(outlook, _jobs(outlook))

    def pause_seconds(self) -> float:
        """How long until it is worth to look again."""
        outlook = self.outlook
        if not self.ends or outlook is None or outlook.suspects:
            return LOOK_SECONDS
        if any(states.get(JobState.IN_PROGRESS) for states in outlook.open_by_task.values()):
            return LOOK_SECONDS
        if outlook.next_due_at is None:
            return LOOK_SECONDS_MAX
        until_due = outlook.next_due_at / MICROSECONDS - self._clock.now()
        return min(max(until_due, LOOK_SECONDS), LOOK_SECONDS_MAX)

    def _split(self, outlook: Outlook) -> tuple[int, dict[str, int]]:
        known, unknown = 0, {}
        for task, states in _jobs(outlook).items():
            count = sum(states.values())
            if task in self._tasks or task in outlook.served_elsewhere:
                known += count
            elif count:
                unknown[task] = count
        return known, unknown

    def _is_held_back(self, outlook: Outlook, held: frozenset[str]) -> bool:
        """Nobody runs anything, and whatever could be taken is of tasks that are held back."""
        ours = {
            task: states
            for task, states in (_jobs(outlook) if self.ends else outlook.open_by_task).items()
            if task in self._tasks
            or (task in outlook.served_elsewhere and not task.startswith(SCHEDULE))
        }
        if any(states.get(JobState.IN_PROGRESS) for states in ours.values()):
            return False
        queued = {task for task, states in ours.items() if states.get(JobState.QUEUED)}
        return bool(queued) and queued <= held

    def _is_stuck(self, outlook: Outlook) -> bool:
        """Everything we could do waits for jobs that nobody can do."""
        return not any(
            states.get(state)
            for task, states in _jobs(outlook).items()
            if task in self._tasks or task in outlook.served_elsewhere
            for state in (JobState.QUEUED, JobState.IN_PROGRESS)
        ) and any(
            states.get(JobState.QUEUED)
            for task, states in _jobs(outlook).items()
            if task not in self._tasks
        )

    def _tell_left(self, unknown: dict[str, int], stuck: int) -> None:
        for task, count in sorted(unknown.items()):
            log.warning(
                "%d job(s) of task %r are left: this app does not define it, and no other "
                "worker does.",
                count,
                task,
            )
        if stuck:
            log.warning("%d job(s) wait for those and are left as well.", stuck)

    def _say_reason(self, outlook: Outlook, jobs: _States) -> None:
        """Say once why we wait, if it takes long."""
        now = self._clock.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < SAY_AFTER_SECONDS and not outlook.paused:
            return
        self._say(self._reason(outlook, jobs))

    def _say(self, reason: str) -> None:
        kind = "".join(c for c in reason if not c.isdigit())  # that a number falls is no news
        now = self._clock.monotonic()
        if now >= self._said.get(kind, -SAY_AGAIN_SECONDS) + SAY_AGAIN_SECONDS:
            log.info("Waiting: %s", reason)
            self._said[kind] = now

    def _reason(self, outlook: Outlook, jobs: _States) -> str:
        if outlook.paused:
            return PAUSED
        count = {
            state: sum(states.get(state, 0) for states in jobs.values())
            for state in (JobState.IN_PROGRESS, JobState.QUEUED)
        }
        if count[JobState.IN_PROGRESS]:
            return f"{count[JobState.IN_PROGRESS]} job(s) are held by other workers."
        if outlook.suspects:
            return f"{outlook.suspects} job(s) run alone after a crash."
        if outlook.next_due_at is not None:
            left = max(0.0, outlook.next_due_at / MICROSECONDS - self._clock.now())
            return f"{count[JobState.QUEUED]} job(s) are delayed, the next for about {left:.0f} s."
        return f"{count[JobState.QUEUED]} job(s) are queued: {self.full.reason()}."


def _jobs(outlook: Outlook) -> dict[str, dict[JobState, int]]:
    """What is open, by task; units of schedules never end, and builds wait for their own jobs."""
    return {
        task: states
        for task, states in outlook.open_by_task.items()
        if not task.startswith((SCHEDULE, SLICE))
    }
