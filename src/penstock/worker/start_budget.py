# SPDX-License-Identifier: Apache-2.0
"""Start budget (`--max-jobs`): how many jobs the processes of one run may still start.

A counter of the kernel (an eventfd as a semaphore), which all workers of the run inherit: whichever
process takes the last one, none starts another, also if one of them is killed in between.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import UsageError

JOBS_MAX = 1_000_000_000


class StartBudget:
    """Owns one process's handle of the counter. Knows no jobs."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    @classmethod
    def of(cls, jobs: int) -> StartBudget:
        """A new counter; child processes inherit its descriptor where they are told to."""
        return cls(os.eventfd(jobs, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE))

    @property
    def is_used_up(self) -> bool:
        """Whether nobody may start anything more."""
        return not self._poll.poll(0)

    def take(self) -> bool:
        """Take one start; False if none is left."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return False
        return True

    def give_back(self) -> None:
        """What was to start did not."""
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        os.close(self.fd)


@contextmanager
def start_budget(jobs: int | None) -> Iterator[StartBudget | None]:
    """The budget of an embedded run; None: it may start any number. UsageError if that is none."""
    if jobs is None:
        yield None
        return
    given: object = jobs  # whatever a user without a type checker wrote
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= JOBS_MAX:
        raise UsageError(
            f"max_jobs must be a whole number from 1 to {JOBS_MAX:,}, got {given!r:.80}; leave it "
            "out to start any number of jobs."
        )
    budget = StartBudget.of(given)
    try:
        yield budget
    finally:
        budget.close()
