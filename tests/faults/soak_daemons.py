# SPDX-License-Identifier: Apache-2.0
"""`make soak-daemons`: start two daemons at once, and kill one of two, again and again."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.daemon_campaign import DaemonCampaign, race


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--races", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-daemons-"))
    print(f"seed {arguments.seed}, folder {folder}", flush=True)
    broken: list[str] = []
    for number in range(arguments.races):
        broken += race(folder / f"race-{number}")
        shutil.rmtree(folder / f"race-{number}", ignore_errors=not broken)
        if broken:
            break
    print(f"{arguments.races} races: {len(broken)} broken", flush=True)
    campaign = DaemonCampaign(folder / "campaign", arguments.seed)
    try:
        for _ in range(arguments.kills):
            campaign.cycle()
    finally:
        broken += campaign.finish()
    kills = ", ".join(f"{n} {name}" for name, n in sorted(campaign.kills.items()))
    print(f"kills: {kills}; {len(campaign.project.bodies('ticked')):,} ticks", flush=True)
    for sentence in broken:
        print(f"BROKEN: {sentence}", flush=True)
    if not broken:
        shutil.rmtree(folder)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
