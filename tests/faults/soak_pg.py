# SPDX-License-Identifier: Apache-2.0
"""`make soak-pg`: crashes of the server under load, and lost answers to commits, with counts."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.pg_commits import Loss, lose_commits
from tests.faults.pg_operations import OPERATIONS
from tests.faults.pg_restarts import Campaign, Outcome
from tests.faults.pg_world import place
from tests.postgres.cluster import Cluster

RHYTHM_SECONDS = 60.0
EVERY_SECONDS = 2.0
CUTS_SHARE = 0.2  # so many connections are cut before a commit, for each answer that is lost
RESUME_SECONDS = 3.0


def restarts(count: int, seed: int) -> Outcome:
    """F35: every two seconds for a minute, then without a rhythm."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-pg-") as name,
        Cluster(durable=True, tcp=True) as cluster,
        Campaign(cluster, Path(name), producers=2) as campaign,
    ):
        campaign.await_work()
        campaign.restart_for(min(RHYTHM_SECONDS, count * EVERY_SECONDS), EVERY_SECONDS)
        while campaign.outcome.restarts < count and not campaign.outcome.broken:
            campaign.restart_often(min(50, count - campaign.outcome.restarts), seed)
            seed += 1
            print(f"{campaign.outcome.restarts} restarts", flush=True)
        return campaign.finish()


def commits(count: int) -> str:
    """F36: each operation loses answers to its commits, and is cut before them."""
    kinds: tuple[tuple[Loss, int], ...] = (
        ("answer lost", count),
        ("cut before", max(round(count * CUTS_SHARE), 1)),
    )
    total = 0
    with Cluster() as cluster:
        for name, kind in OPERATIONS.items():
            for loss, calls in kinds:
                database = f"{name}_{loss.split()[0]}"
                with place(cluster, cluster.create_database(database)) as found:
                    lose_commits(kind, found, loss, calls)
                total += calls
            print(f"{name}: {', '.join(f'{calls} × {loss}' for loss, calls in kinds)}", flush=True)
    return f"{total} commits in doubt: 0 double effects, 0 lost, 0 wrong answers"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=1000)
    parser.add_argument("--commits", type=int, default=5000, help="of each operation")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    logging.getLogger("penstock").setLevel(logging.ERROR)  # that the server is away is no news
    print(f"seed {arguments.seed}", flush=True)
    began = time.monotonic()
    outcome = restarts(arguments.restarts, arguments.seed)
    print("\n".join(outcome.lines()), f"({time.monotonic() - began:.0f} s)", flush=True)
    if not outcome.sound() or outcome.resume(0.99) > RESUME_SECONDS:
        return 1
    began = time.monotonic()
    print(commits(arguments.commits), f"({time.monotonic() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
