# SPDX-License-Identifier: Apache-2.0
"""`make soak-pg-races`: every pair of operations interleaved, and fleets that do everything."""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time

from tests.faults.pg_campaign import run_campaign
from tests.faults.pg_pairs import ACTS, at_random, fleet, preempt
from tests.postgres.cluster import Cluster

POINTS_MAX = 60
CAMPAIGN_SECONDS = 60.0


def _pairs(cluster: Cluster, seconds: float, seed: int) -> int:
    """Interleave pairs, each at every statement and at random, until time is over; how many."""
    chance = random.Random(seed)
    pairs = list(itertools.permutations(sorted(ACTS), 2))
    chance.shuffle(pairs)
    until = time.monotonic() + seconds
    runs = 0
    with fleet(cluster.create_database("pairs")) as world:
        for first, second in pairs:
            allowed = world.serial(first, second)
            ways = [preempt(point) for point in range(1, POINTS_MAX)]
            ways += [at_random(chance.randrange(2**32)) for _ in range(3)]
            for number, way in enumerate(ways, start=1):
                if time.monotonic() > until:
                    return runs
                got = world.together(first, second, way)
                assert got in allowed, f"{first} × {second}, way {number}, seed {seed}: {got}"
                runs += 1
                if number < POINTS_MAX - 1 and number > world.statements_of():
                    break
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    half = options.seconds / 2
    print(f"seed {options.seed}")
    with Cluster(settings={"deadlock_timeout": "50ms"}) as cluster:
        runs = _pairs(cluster, half, options.seed)
    print(f"{runs} interleavings of pairs ended as one after the other")
    with Cluster() as cluster:
        until = time.monotonic() + half
        for number in itertools.count():
            if time.monotonic() > until:
                break
            calls = run_campaign(
                cluster.create_database(f"fleet{number}"),
                clients=4 + number % 5,
                seconds=min(half, CAMPAIGN_SECONDS),
                seed=options.seed + number,
            )
            print(f"a fleet, nothing lost or repeated: {dict(sorted(calls.items()))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
