# SPDX-License-Identifier: Apache-2.0
"""Failpoints: places where a fault-injection test makes the engine crash or wait.

Named points on the paths that must be crash-safe. They do nothing unless a test launcher arms
them by calling `arm`; nothing in a release does, and no environment variable can.
"""

from __future__ import annotations

from collections.abc import Callable

#: Every point that exists; a test compares. `exec.during` is passed by bodies of test apps only.
POINTS = frozenset(
    {
        "migrate.begin",
        "migrate.step",
        "migrate.in_tx",
        "migrate.committed",
        "enqueue.begin",
        "enqueue.in_tx",
        "enqueue.committed",
        "lease.in_tx",
        "lease.committed",
        "exec.before",
        "exec.during",
        "exec.after",
        "ack.in_tx",
        "ack.committed",
        "arm.in_tx",
        "arm.committed",
        "register.in_tx",
        "beat.in_tx",
        "sweep.in_tx",
        "reap.in_tx",
        "settle.in_tx",
        "retry.in_tx",
        "rerun.in_tx",
        "revive.in_tx",
        "intend.in_tx",
        "intend.committed",
        "answered.in_tx",
        "answered.committed",
        "dataset.part_written",
        "dataset.part_synced",
        "dataset.renamed",
        "dataset.dir_synced",
        "plan.in_tx",
        "lock.in_tx",
        "dataset.staged",
        "dataset.level_committed",
        "commit.begin",
        "checkpoint.begin",
    }
)

_armed: Callable[[str], None] | None = None


def arm(action: Callable[[str], None] | None) -> None:
    """Call `action` with the name of every point that is passed; None disarms."""
    global _armed
    _armed = action


def hit(point: str) -> None:
    """Pass a point."""
    if _armed is not None:
        _armed(point)
