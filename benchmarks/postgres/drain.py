# SPDX-License-Identifier: Apache-2.0
"""How fast does one worker drain no-op jobs, beside the bare statements?"""

from __future__ import annotations

from benchmarks.measuring import fresh, interleaved, paired_ratio, pick
from benchmarks.postgres import raw
from benchmarks.postgres.server import on_new_database, rounds_of
from benchmarks.queue.drain import drain
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Outcome, Sense, Setup, Table


def measure(setup: Setup) -> Outcome:
    """Drain the same number of jobs with both, in turn."""
    total = setup.size(50_000, smoke=2_048)
    answers = interleaved(
        rounds_of(setup),
        {
            "ours": on_new_database(
                setup.url, lambda url: fresh(drain, setup.folder, url=url, total=total)
            ),
            "raw": on_new_database(
                setup.url, lambda url: fresh(raw.measure, setup.folder, url=url, total=total)
            ),
        },
    )
    ours, bare = answers["ours"], answers["raw"]
    table = Table(
        f"Drain of {total:,} no-op jobs in 8 groups by one worker; bare statements in batches of "
        f"{raw.BATCH}",
        SPREAD_COLUMNS,
        (
            spread("ours: rate", "jobs/s", pick(ours, "rate")),
            spread("ours: CPU of the worker per job", "µs", pick(ours, "cpu_us")),
            spread("ours: enqueue_many", "jobs/s", pick(ours, "enqueue_rate")),
            spread("raw: lease and acknowledge, a commit each", "jobs/s", pick(bare, "rate")),
            spread("raw: lease alone", "jobs/s", pick(bare, "lease_rate")),
        ),
    )
    ratio = paired_ratio(pick(ours, "rate"), pick(bare, "rate"))
    return Outcome((Check("drain: rate, × raw limit", ratio, Sense.AT_LEAST, 0.3),), (table,))
