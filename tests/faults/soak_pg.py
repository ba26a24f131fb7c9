# SPDX-License-Identifier: Apache-2.0
"""`make soak-pg`: crashes of the server under load, and lost answers to commits, with counts."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.pg_commits import Loss, lose_commits
from tests.faults.pg_operations import OPERATIONS
from tests.faults.pg_restarts import Campaign, Outcome
from tests.faults.pg_world import place
from tests.postgres.cluster import Cluster
from tests.postgres.guard import scratch

RHYTHM_SECONDS = 60.0
EVERY_SECONDS = 2.0
CUTS_SHARE = 0.2  # so many connections are cut before a commit, for each answer that is lost
RESUME_SECONDS = 3.0


def restarts(count: int, seed: int, folder: Path) -> Outcome:
    """F35: every two seconds for a minute, then without a rhythm."""
    with (
        Cluster(durable=True, tcp=True) as cluster,
        Campaign(cluster, folder, producers=2) as campaign,
    ):
        campaign.await_work()
        campaign.restart_for(min(RHYTHM_SECONDS, count * EVERY_SECONDS), EVERY_SECONDS)
        while campaign.outcome.restarts < count and not campaign.outcome.broken:
            campaign.restart_often(min(50, count - campaign.outcome.restarts), seed)
            seed += 1
            print(f"{campaign.outcome.restarts} restarts", flush=True)
        return campaign.finish()


def crashes(count: int, seed: int) -> bool:
    """Crash the server so often, and say what came out; the logs of the runs stay if it is bad."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-restarts-", dir=scratch()))
    print(f"seed {seed}, folder {folder}", flush=True)
    began = time.monotonic()
    outcome = restarts(count, seed, folder)
    print("\n".join(outcome.lines()), f"({time.monotonic() - began:.0f} s)", flush=True)
    in_time = outcome.resume(0.99) <= RESUME_SECONDS
    if not in_time:
        load, cores = os.getloadavg()[1], os.cpu_count()
        print(
            f"MISSED: p99 of at most {RESUME_SECONDS:g} s until work goes on, at a load of "
            f"{load:.0f} on {cores} cores",
            flush=True,
        )
    if outcome.sound() and in_time:
        shutil.rmtree(folder)
    return outcome.sound() and in_time


def commits(count: int) -> bool:
    """F36: each operation loses answers to its commits, and is cut before them."""
    kinds: tuple[tuple[Loss, int], ...] = (
        ("answer lost", count),
        ("cut before", max(round(count * CUTS_SHARE), 1)),
    )
    began = time.monotonic()
    total = 0
    broken = []
    with Cluster() as cluster:
        for name, kind in OPERATIONS.items():
            for loss, calls in kinds:
                database = f"{name}_{loss.split()[0]}"
                try:
                    with place(cluster, cluster.create_database(database)) as found:
                        lose_commits(kind, found, loss, calls)
                except AssertionError as error:
                    broken.append(f"{name}, {loss}: {error!r}")
                    print(f"BROKEN: {broken[-1]}", flush=True)
                total += calls
            told = ", ".join(f"{calls} × {loss}" for loss, calls in kinds)
            print(f"{name}: {told} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{total} commits in doubt: {len(broken)} operations broken", flush=True)
    return not broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=1000)
    parser.add_argument("--commits", type=int, default=5000, help="of each operation")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    logging.getLogger("penstock").setLevel(logging.ERROR)  # that the server is away is no news
    went_on = crashes(arguments.restarts, arguments.seed)
    found_out = commits(arguments.commits)
    return 0 if went_on and found_out else 1


if __name__ == "__main__":
    sys.exit(main())
