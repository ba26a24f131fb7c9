# SPDX-License-Identifier: Apache-2.0
"""`make soak-points`: a process dies some hundred times at each named point."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.point_deaths import PRODUCER_POINTS, WORKER_POINTS, producer_dies, worker_dies
from tests.faults.zygote import Zygote


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=500, help="deaths at each point")
    cycles: int = parser.parse_args().cycles
    deaths = dict.fromkeys(PRODUCER_POINTS, producer_dies)
    deaths.update((point, worker_dies) for point in WORKER_POINTS)
    with tempfile.TemporaryDirectory(prefix="penstock-points-") as home:
        zygote = Zygote(Path(home))
        for point, die in deaths.items():
            began = time.monotonic()
            for _ in range(cycles):
                with tempfile.TemporaryDirectory(dir=home) as folder:
                    die(zygote, Path(folder), point)
            spent = time.monotonic() - began
            print(f"{point}: {cycles} deaths, each as it must be, {spent:.0f} s", flush=True)
        zygote.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
