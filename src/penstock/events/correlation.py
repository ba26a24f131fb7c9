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
    task_execution_id: str | None = None  # job id and token


#: Follows child tasks and threads of an attempt.
current: ContextVar[Correlation | None] = ContextVar("penstock_correlation", default=None)
