# SPDX-License-Identifier: Apache-2.0
"""What does the memory store keep of runs?"""

from __future__ import annotations

from collections.abc import Collection

from penstock.model.job import WorkerId
from penstock.model.run import RunPart
from penstock.stores.protocol import RUNS_KEPT


class Runs:
    """Owns the last word of each worker about its part of a run."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[WorkerId, RunPart]] = {}  # the one that has begun last is last

    def save(self, part: RunPart, going_on: Collection[str]) -> list[str]:
        """Keep a part; the runs that are forgotten for it, none that goes on."""
        self._parts.setdefault(part.run_id, {})[part.worker] = part
        gone = [run_id for run_id in list(self._parts)[:-RUNS_KEPT] if run_id not in going_on]
        for run_id in gone:
            del self._parts[run_id]
        return gone

    def newest(self, limit: int) -> list[str]:
        return list(reversed(self._parts))[:limit]

    def parts(self, run_id: str | None) -> list[RunPart]:
        if run_id is None:
            run_id = next(reversed(self._parts), "")
        parts = self._parts.get(run_id, {})
        return [parts[worker] for worker in sorted(parts)]
