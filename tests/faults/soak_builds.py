# SPDX-License-Identifier: Apache-2.0
"""`make soak-builds`: kill builds at every point, again and again, on SQLite and PostgreSQL."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from tests.faults.build_campaign import BuildCampaign, every_death
from tests.faults.campaign_folder import Broken, campaign_folder
from tests.postgres.cluster import Cluster

TOLD_EVERY = 20  # deaths


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="on each database")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    began = time.monotonic()
    with campaign_folder("builds", arguments.seed) as folder, Cluster() as server:
        broken = _both(folder, server, arguments.seed, arguments.kills)
        print(f"{broken} broken, {time.monotonic() - began:.0f} s", flush=True)
        if broken:
            raise Broken
    return 0


def _both(folder: Path, server: Cluster, seed: int, kills: int) -> int:
    """How much does not hold, on both databases."""
    places = {"sqlite": None, "server": server.url()}
    campaigns = [
        BuildCampaign(folder / name, seed + number, url)
        for number, (name, url) in enumerate(places.items())
    ]
    threads, over = ThreadPoolExecutor(len(campaigns)), Event()
    try:
        running = [threads.submit(_campaign, campaign, kills, over) for campaign in campaigns]
        return sum(len(campaign.result()) for campaign in running)
    finally:
        over.set()
        threads.shutdown(wait=False)
        for campaign in campaigns:
            campaign.finish()


def _campaign(campaign: BuildCampaign, kills: int, over: Event) -> list[str]:
    name = campaign.folder.name
    deaths = every_death(campaign.random)
    told = 0
    try:
        while not campaign.broken and (killed := sum(campaign.kills.values())) < kills:
            if killed >= told + TOLD_EVERY:
                told = killed
                print(f"{name}: {killed} deaths", flush=True)
            eager, *planned = next(deaths, (None,))
            campaign.cycle(*planned, eager=eager)
    finally:
        broken = campaign.finish()
    if over.is_set():
        return []  # it was interrupted: its builds were killed, and prove nothing
    print(
        f"{name}: {sum(campaign.kills.values())} deaths, {campaign.missed} points not "
        f"reached, {campaign.version} builds, {campaign.looks:,} looks, {len(broken)} broken"
    )
    for who, count in sorted(campaign.kills.items()):
        print(f"  {count:4} {who}")
    for sentence in broken:
        print(f"BROKEN: {name}: {sentence}", flush=True)
    return broken


if __name__ == "__main__":
    sys.exit(main())
