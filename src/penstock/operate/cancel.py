# SPDX-License-Identifier: Apache-2.0
"""Cancels jobs that have not ended: some by their keys, or all of a task or a state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from penstock.errors import UsageError
from penstock.model.job import TERMINAL, JobId, JobState
from penstock.operate.actions import SLICE_JOBS, answer, audit, settle, stored_tasks
from penstock.sentences import counted
from penstock.stores.protocol import JobFilter, Store
from penstock.terminal_text import escaped

PASSES_MAX = 5  # over jobs that move from state to state meanwhile
KEYS_SHOWN = 5  # in the audit line
#: Dependants come before what they wait for, so that they are cancelled, not skipped.
_OPEN = (JobState.WAITING, JobState.QUEUED, JobState.IN_PROGRESS)


@dataclass(frozen=True, slots=True)
class CancelledKeys:
    """What became of each key."""

    cancelled: Sequence[str]
    ended: Mapping[str, JobState]  # before; they stay as they are
    unknown: Sequence[str]


@dataclass(frozen=True, slots=True)
class BulkCancel:
    """All open jobs of a task, of a state, or of both; UsageError for a state that has ended."""

    task: str | None = None
    state: JobState | None = None

    def __post_init__(self) -> None:
        if self.state in TERMINAL:
            raise UsageError(f"Jobs in {self.state} have ended; only others can be cancelled.")

    def count(self, store: Store) -> int:
        """How many jobs would be cancelled now."""
        named = stored_tasks(store, self.task)
        return sum(
            counts.get(state, 0)
            for name, counts in store.stats().result().tasks.items()
            if self.task is None or name in named
            for state in self._states
        )

    def run(self, store: Store) -> int:
        """Cancel them, in several passes, and skip their dependants; how many were cancelled."""
        total = 0
        tasks = stored_tasks(store, self.task)
        for _ in range(PASSES_MAX):
            count = sum(
                _cancel_state(store, JobFilter(state=state, task=task))
                for task in tasks
                for state in self._states
            )
            total += count
            if not count:
                break
        settle(store)
        what = f"task {self.task or 'any'}, state {self.state or 'any'}"
        audit(store.url, "Cancelled %s: %s", counted(total, "job"), escaped(what))
        return total

    @property
    def _states(self) -> tuple[JobState, ...]:
        return _OPEN if self.state is None else (self.state,)


def cancel_keys(store: Store, keys: Iterable[str]) -> CancelledKeys:
    """Cancel the jobs of these keys, in slices, and skip their dependants."""
    cancelled: list[str] = []
    ended: dict[str, JobState] = {}
    unknown: list[str] = []
    wanted = list(dict.fromkeys(keys))
    for start in range(0, len(wanted), SLICE_JOBS):
        part = wanted[start : start + SLICE_JOBS]
        stopped = answer(store.cancel(part), store)
        for key in part:
            if key in stopped:
                cancelled.append(key)
            elif (job := store.job(key).result()) is None:
                unknown.append(key)
            else:
                ended[key] = job.state
    settle(store)
    if cancelled:
        some = ", ".join(map(escaped, cancelled[:KEYS_SHOWN]))
        more = ", …" if len(cancelled) > KEYS_SHOWN else ""
        audit(store.url, "Cancelled %s: %s%s", counted(len(cancelled), "job"), some, more)
    return CancelledKeys(cancelled, ended, unknown)


def _cancel_state(store: Store, wanted: JobFilter) -> int:
    count, last = 0, JobId(0)
    while page := store.jobs(wanted, last, SLICE_JOBS).result():
        for app, jobs in groupby(page, attrgetter("app")):
            count += len(answer(store.cancel([job.key for job in jobs], app), store))
        last = page[-1].id
    return count
