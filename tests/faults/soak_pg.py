# SPDX-License-Identifier: Apache-2.0
"""`make soak-pg`: crashes of the server under load, and lost answers to commits, with counts."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.faults.campaign_folder import Broken, campaign_folder
from tests.faults.pg_commits import Loss, lose_commits
from tests.faults.pg_operations import OPERATIONS
from tests.faults.pg_restarts import Campaign, Outcome
from tests.faults.pg_world import place
from tests.postgres.cluster import Cluster

RHYTHM_SECONDS = 60.0
EVERY_SECONDS = 2.0
CUTS_SHARE = 0.2  # so many connections are cut before a commit, for each answer that is lost
RESUME_SECONDS = 3.0
QUIET = 2.0  # a load of so much for each core; beyond it, the machine decides how soon work goes on
SOUND = "0 double effects, 0 lost, 0 wrong answers"


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


def crashes(count: int, seed: int, folder: Path) -> bool:
    """Crash the server so often, and say what came out."""
    began = time.monotonic()
    outcome = restarts(count, seed, folder)
    print("\n".join(outcome.lines()), f"({time.monotonic() - began:.0f} s)", flush=True)
    load, cores = os.getloadavg()[2], os.cpu_count() or 1
    in_time = outcome.resume(0.99) <= RESUME_SECONDS
    if not in_time:
        verdict = "MISSED" if load <= QUIET * cores else "not judged on a busy machine"
        print(
            f"p99 of at most {RESUME_SECONDS:g} s until work goes on: {verdict} (load {load:.0f} "
            f"on {cores} cores)",
            flush=True,
        )
        in_time = load > QUIET * cores
    return outcome.sound() and in_time


def commits(count: int) -> bool:
    """F36: all operations, at once, lose answers to their commits, and are cut before them."""
    kinds: tuple[tuple[Loss, int], ...] = (
        ("answer lost", count),
        ("cut before", max(round(count * CUTS_SHARE), 1)),
    )
    began = time.monotonic()
    with Cluster() as cluster, _threads(len(OPERATIONS)) as threads:
        cells = {
            threads.submit(_lose, cluster, cluster.create_database(f"{name}_{calls}"), *cell): cell
            for name in OPERATIONS
            for loss, calls in kinds
            for cell in [(name, loss, calls)]
        }
        for ended in as_completed(cells):
            name, loss, calls = cells[ended]
            told = f"{ended.result()} ({time.monotonic() - began:.0f} s)"
            print(f"{name}: {calls} × {loss}: {told}", flush=True)
    broken = sum(cell.result() != SOUND for cell in cells)
    total = sum(calls for *_, calls in cells.values())
    print(f"{total} commits in doubt, {broken} of {len(cells)} kinds broken", flush=True)
    return not broken


@contextlib.contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that nobody waits for at an interruption."""
    threads = ThreadPoolExecutor(count)
    try:
        yield threads
    finally:
        threads.shutdown(wait=False)


def _lose(cluster: Cluster, url: str, name: str, loss: Loss, calls: int) -> str:
    """Each happens once and is answered as if nothing had been lost, or what is wrong."""
    try:
        with place(cluster, url) as found:
            lose_commits(OPERATIONS[name], found, loss, calls)
    except AssertionError as error:
        return f"BROKEN: {error!r}"
    return SOUND


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=1000)
    parser.add_argument("--commits", type=int, default=2000, help="of each operation")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    logging.getLogger("penstock").setLevel(logging.ERROR)  # that the server is away is no news
    with campaign_folder("restarts", arguments.seed) as folder:
        went_on = crashes(arguments.restarts, arguments.seed, folder)
        found_out = commits(arguments.commits)
        if not (went_on and found_out):
            raise Broken
    return 0


if __name__ == "__main__":
    sys.exit(main())
