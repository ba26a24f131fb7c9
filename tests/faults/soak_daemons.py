# SPDX-License-Identifier: Apache-2.0
"""`make soak-daemons`: start two daemons at once, and kill one of two, again and again."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from tests.faults.campaign_folder import Broken, campaign_folder
from tests.faults.daemon_campaign import DaemonCampaign, race


def races(folder: Path, count: int) -> int:
    """Start two daemons at once so often; how often something did not hold."""
    bad = 0
    for number in range(1, count + 1):
        home = folder / f"race-{number}"
        found = race(home)
        _tell(f"race {number}", found)
        bad += bool(found)
        if not found:
            shutil.rmtree(home)
        if number % 10 == 0:
            print(f"{number} races", flush=True)
    print(f"{count} races: {bad} broken", flush=True)
    return bad


def kills(folder: Path, seed: int, count: int) -> int:
    """Kill one of two daemons so often; how much does not hold."""
    campaign = DaemonCampaign(folder, seed)
    stuck = []
    try:
        for number in range(1, count + 1):
            campaign.cycle()
            if number % 10 == 0:
                print(f"{number} kills", flush=True)
    except AssertionError as error:
        stuck = [f"kill {sum(campaign.kills.values())}: {error}"]
    finally:
        broken = stuck + campaign.finish()
    told = ", ".join(f"{n} {name}" for name, n in sorted(campaign.kills.items()))
    ticks = len(campaign.project.bodies("ticked"))
    print(f"{sum(campaign.kills.values())} kills: {told}; {ticks:,} ticks, {len(broken)} broken")
    _tell("kills", broken)
    return len(broken)


def _tell(where: str, broken: list[str]) -> None:
    for sentence in broken:
        print(f"BROKEN: {where}: {sentence}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--races", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    began = time.monotonic()
    with campaign_folder("daemons", arguments.seed) as folder:
        broken = races(folder, arguments.races)
        broken += kills(folder / "campaign", arguments.seed, arguments.kills)
        print(f"{broken} broken, {time.monotonic() - began:.0f} s", flush=True)
        if broken:
            raise Broken
    return 0


if __name__ == "__main__":
    sys.exit(main())
