# SPDX-License-Identifier: Apache-2.0
"""Which run, job and attempt is this about?"""

from __future__ import annotations

from contextvars import ContextVar

import msgspec


class Correlation(msgspec.Struct, frozen=True, gc=False):
    """Captured when an event is made; a sink never looks it up later."""

    run_id: str
    task: str | None = None
    partition: str | None = None
    group: str | None = None
    job_id: int | None = None
    execution: int | None = None  # which start of it: the token of a job's lease

    @property
    def task_execution_id(self) -> str | None:
        """One start of one task; made when somebody asks, which costs less than for every job."""
        if self.execution is None:
            return None
        return f"{self.task if self.job_id is None else self.job_id}:{self.execution}"


#: Follows child tasks and threads of an attempt.
current: ContextVar[Correlation | None] = ContextVar("penstock_correlation", default=None)
