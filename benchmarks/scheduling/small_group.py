# SPDX-License-Identifier: Apache-2.0
"""When is it the turn of ten jobs beside a million?"""

from __future__ import annotations

from benchmarks.measuring import fresh
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from benchmarks.scheduling.backlog import fill_groups, run_until_small_began

SMALL = 10
SHARE = 0.05  # of the drain


def measure(setup: Setup) -> Outcome:
    """Count in jobs, not in seconds: how many had begun before the last of the small group."""
    big = setup.size(1_000_000, smoke=50_000)
    fresh(fill_groups, setup.folder, big=big, small=SMALL)
    answer = fresh(run_until_small_began, setup.folder)
    share = answer["begun"] / (big + SMALL)
    return Outcome(
        (
            Check(
                f"small_group: the last of {SMALL} jobs begins, in parts of the drain of {big:,}",
                share,
                Sense.AT_MOST,
                SHARE,
                timing=False,
            ),
        ),
        (
            Table(
                f"{SMALL} jobs that came after {big:,} of another group, one worker, SQLite",
                ("jobs begun up to the last of the small group", "part of the drain"),
                ((answer["begun"], share),),
            ),
        ),
    )
