# SPDX-License-Identifier: Apache-2.0
"""An hour of a thousand partitions with seeded failures, in virtual time, and longer.

Run by `make soak-daemon`; prints what was counted, and fails at the first thing that does not hold.
"""

from __future__ import annotations

import argparse
import logging
import time

from tests.simulation.daemon_world import HANGING, DaemonWorld

PEACE_SECONDS = 320.0  # longer than the longest back-off


def main() -> None:
    """Run one world and audit it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=3_600.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.process_time()
    world = DaemonWorld(asked.partitions, asked.seed, events_every=10)
    audit = world.run(asked.seconds - PEACE_SECONDS, PEACE_SECONDS)
    audit.safety()
    audit.events()
    fairness, lateness = audit.fairness(), audit.lateness()
    units = audit.units.values()
    print(
        f"{asked.partitions:,} partitions for {asked.seconds:,.0f} s, seed {asked.seed}: "
        f"{sum(unit.ticks for unit in units):,} ticks, {sum(unit.missed for unit in units):,} "
        f"missed, {sum(unit.failed for unit in units):,} failed; Jain {fairness:.4f}, latest "
        f"{lateness * 1000:.1f} ms; {time.process_time() - began:.0f} s of CPU"
    )
    assert fairness >= 0.99
    assert lateness < 0.25
    for host in (HANGING, *world.ill):
        assert world.records[host].tries[-1][2], f"host {host} did not come back"


if __name__ == "__main__":
    main()
