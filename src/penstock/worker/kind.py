# SPDX-License-Identifier: Apache-2.0
"""What a kind of job answers: what its jobs need first, what a body may know, what an end means.

Before the body: `reader`, `context`, `before`, `remote_order`. After it: `EndRules` (in
`attempt.py`), `refused`, `releases_stale`, `ended`. For drain and log: `recurs`, `named`,
`error_level`. Where only the name of a task is known, as in counts of the store (`drain.py`,
`accounting.py`), `kind_of_name` of `model/job.py` says which kind its jobs are of.

A kind lives with its subject: the plain one in `job_kind.py`, ticks in `schedules/`, slices and
steps in `builds/`. The wiring maps each task to its kind; the worker knows no other but the plain.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.definitions.context import Context
from penstock.definitions.task import Task
from penstock.errors import PenstockError
from penstock.model.job import LeasedJob
from penstock.model.lease import JobEnd, JobFailure, JobRef
from penstock.worker.attempt import Attempt, AttemptEnd, EndRules, TaskLimits


class Window(Protocol):
    """What a reader may ask of the prefetch window."""

    def hold_back(self, name: str) -> None:
        """Lease no more jobs of a task, and give those back that have not started."""
        ...

    def let_go(self, name: str) -> None:
        """Lease jobs of a task again."""
        ...

    def give_back(self, end: JobFailure | JobRef) -> None:
        """End the lease of a job that never entered."""
        ...


class JobReader(Protocol):
    """Reads what leased jobs need before they enter the prefetch window, all of them at once."""

    async def prepare(self, jobs: Sequence[LeasedJob], wanted: Callable[[], bool]) -> None:
        """Set `job.brought` of each; raises a transient error if they are wanted no longer."""
        ...

    def enters(self, job: LeasedJob, window: Window) -> bool:
        """Whether a job that was read for may start; if not, it was given back."""
        ...


class Kind(EndRules, Protocol):
    """A kind of job. What it says of ends is in `attempt.EndRules`."""

    @property
    def reader(self) -> JobReader | None:
        """Prepares its jobs; None: they need nothing."""
        ...

    @property
    def recurs(self) -> bool:
        """Its jobs are armed again after each end: a drain does not wait for them."""
        ...

    @property
    def releases_stale(self) -> bool:
        """An end that the store calls stale says nothing of its lease, which is let go."""
        ...

    @property
    def error_level(self) -> int:
        """At which a job that ended in error is logged."""
        ...

    def named(self, job: LeasedJob) -> str:
        """What people call a job, at the beginning of a sentence."""
        ...

    def context(self, job: LeasedJob, started_at: int) -> Context:
        """What the body may know."""
        ...

    def before(self, attempt: Attempt) -> Coroutine[Any, Any, None] | None:
        """What must be awaited before the body, in its attempt; None: nothing."""
        ...

    def remote_order(self, context: Context) -> str | None:
        """What a body needs besides its payload if it runs in another process."""
        ...

    def refused(self, end: JobEnd, error: PenstockError) -> JobEnd | JobFailure:
        """What becomes of an end whose effects the store has refused."""
        ...

    def ended(self, job: LeasedJob, end: AttemptEnd) -> str | None:
        """What follows for the run: None, or the sentence with which it ends."""
        ...


class ServedTask(NamedTuple):
    """A task, what holds for its attempts, and the kind of its jobs."""

    task: Task[..., Any]
    limits: TaskLimits
    kind: Kind
