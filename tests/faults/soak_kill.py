# SPDX-License-Identifier: Apache-2.0
"""`make soak-kill`: a long campaign of kill -9, with its counts."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.kill_campaign import Campaign


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-kill-"))
    print(f"seed {arguments.seed}, folder {folder}", flush=True)
    campaign = Campaign(folder, arguments.seed)
    began = time.monotonic()
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    for cycle in range(arguments.cycles):
        campaign.cycle()
        if (cycle + 1) % 50 == 0:
            spent = time.monotonic() - began
            print(
                f"{cycle + 1} cycles, {campaign.outcome.kill_count} kills, {spent:.0f} s",
                flush=True,
            )
        if campaign.outcome.broken or stopped:  # Ctrl-C: what was done so far is counted
            break
    outcome = campaign.finish()
    print("\n".join(outcome.lines()), flush=True)
    if outcome.sound() and not arguments.keep:
        import shutil

        shutil.rmtree(folder)
    return 0 if outcome.sound() else 1


if __name__ == "__main__":
    sys.exit(main())
