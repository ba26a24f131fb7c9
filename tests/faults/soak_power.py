# SPDX-License-Identifier: Apache-2.0
"""`make soak-power`: thousands of power cuts, with their counts."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.power.log import read_log
from tests.faults.power.replay import Campaign

CUTS_PER_RUN = 500  # then a new run is recorded, with another seed
STEPS = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-power-"))
    print(f"seed {arguments.seed}, folder {folder}", flush=True)
    campaign = Campaign(folder, arguments.seed)
    began = time.monotonic()
    run = 0
    while campaign.report.cuts < arguments.cuts and campaign.report.sound():
        root, log = folder / f"root-{run}", folder / "log"
        root.mkdir()
        seed = str(arguments.seed + run)
        workload = [sys.executable, "-m", "tests.faults.power.workload", str(root), str(log)]
        subprocess.run([*workload, "--seed", seed, "--steps", str(STEPS)], check=True)
        campaign.replay(read_log(log), min(CUTS_PER_RUN, arguments.cuts - campaign.report.cuts))
        shutil.rmtree(root)
        run += 1
        spent = time.monotonic() - began
        print(f"{run} runs, {campaign.report.cuts} cuts, {spent:.0f} s", flush=True)
    report = campaign.report
    print("\n".join(report.lines()), flush=True)
    if not report.sound():
        print(f"The record of the last run is kept in {folder / 'log'}.", flush=True)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
