# SPDX-License-Identifier: Apache-2.0
"""What would a retry put back, and a purge forget? Reads only, in short pieces."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from penstock.model.views import FIRST_END, EndMark, RetryCounts
from penstock.stores.protocol import CHORE_SLICE
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.views import SqlReader

ALL = -1  # no limit


def would_retry(reader: SqlReader, task: str | None, max_attempts: int | None) -> RetryCounts:
    """Walk as retry_failed would, with the rows that it would change kept in memory."""
    back: set[int] = set()
    after = 0
    while seen := reader.array("failed_jobs", after, task, max_attempts, CHORE_SLICE):
        back.update(job_id for job_id, _, wanted in seen if wanted)
        after = seen[-1][0]
    failed = len(back)
    heap = [child for job_id in sorted(back) for child in _hanging(reader, job_id)]
    heapify(heap)
    last = 0
    while heap:
        job_id = heappop(heap)
        if job_id == last:
            continue
        last = job_id
        spoilt = reader.array("spoilt_by", as_json([job_id]))
        if all(parent in back for _, parent, _, _ in spoilt):
            back.add(job_id)
            for child in _hanging(reader, job_id):
                heappush(heap, child)
    return RetryCounts(failed, len(back) - failed)


def _hanging(reader: SqlReader, parent_id: int) -> list[int]:
    """Who was skipped because of this job?"""
    return reader.array("skipped_because", parent_id)


def would_purge(reader: SqlReader, before: int) -> int:
    count, mark = 0, FIRST_END
    while seen := reader.array("old_jobs", before, *mark, CHORE_SLICE, ALL):
        count += sum(free for *_, free, _ in seen)
        mark = EndMark(seen[-1][3], seen[-1][0])
    return count
