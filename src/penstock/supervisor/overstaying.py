# SPDX-License-Identifier: Apache-2.0
"""Which workers do not end by themselves, and are killed?"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from penstock.supervisor import protocol
from penstock.supervisor.worker_handle import Child
from penstock.worker.heartbeat import margin

OVERDUE_SECONDS = 8.0  # a worker that cannot stop an attempt this long after its limit is killed
OVERRUN_SECONDS = 0.5  # bodies have at least this long to stop when their lease is over

log = logging.getLogger("penstock.supervisor")


def kill_overstaying(children: Iterable[Child], now: float, hello: protocol.Hello | None) -> bool:
    """Kill who was told to end and does not, or cannot stop an attempt; was one forced to end?"""
    # Half of the time by which a worker stops before the store lets others have its jobs.
    half = margin(hello.lease_ttl_seconds) / 2 if hello else 0.0
    patience_seconds = max(half, OVERRUN_SECONDS)
    forced = False
    for child in children:
        if now >= child.kill_at_monotonic:
            log.error("Worker %d does not end and is killed.", child.process.pid)
            forced = forced or child.holds_work
            child.kill()
        elif not child.overdue and (overdue := child.past_limit(now - OVERDUE_SECONDS)):
            log.error(
                "Worker %d cannot stop an attempt that is past its time limit and is killed.",
                child.process.pid,
            )
            child.overdue = overdue
            child.kill()
        elif not child.outlived_lease and child.outlives_lease(now, patience_seconds):
            log.error(
                "Worker %d runs on after the end of its lease and is killed.", child.process.pid
            )
            child.kill()
    return forced
