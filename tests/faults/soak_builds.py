# SPDX-License-Identifier: Apache-2.0
"""`make soak-builds`: kill builds at every point, again and again, on SQLite and PostgreSQL."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.build_campaign import BuildCampaign, every_death
from tests.postgres.cluster import Cluster
from tests.postgres.guard import scratch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="on each database")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-builds-", dir=scratch()))
    print(f"seed {arguments.seed}, folder {folder}", flush=True)
    with Cluster() as server:
        broken = _campaign(folder / "sqlite", arguments.seed, None, arguments.kills)
        broken += _campaign(folder / "server", arguments.seed + 1, server.url(), arguments.kills)
    if not broken:
        shutil.rmtree(folder)
    return 1 if broken else 0


def _campaign(folder: Path, seed: int, url: str | None, kills: int) -> list[str]:
    campaign = BuildCampaign(folder, seed, url)
    try:
        for eager, death in every_death(campaign.random):
            if campaign.broken or sum(campaign.kills.values()) >= kills:
                break
            campaign.cycle(death, eager=eager)
        while not campaign.broken and sum(campaign.kills.values()) < kills:
            campaign.cycle()
    finally:
        broken = campaign.finish()
    print(
        f"{folder.name}: {sum(campaign.kills.values())} deaths, {campaign.missed} points not "
        f"reached, {campaign.version} builds, {campaign.looks:,} looks, {len(broken)} broken"
    )
    for who, count in sorted(campaign.kills.items()):
        print(f"  {count:4} {who}")
    for sentence in broken:
        print(f"BROKEN: {sentence}", flush=True)
    return broken


if __name__ == "__main__":
    sys.exit(main())
