# SPDX-License-Identifier: Apache-2.0
"""`make soak-signals`: every signal, once and twice, at every stage of a run."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults.signal_matrix import Case, all_cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="runs side by side")
    arguments = parser.parse_args()
    began, broken, count = time.monotonic(), [], 0
    for number in range(arguments.rounds):
        with (
            tempfile.TemporaryDirectory(prefix="penstock-signals-") as folder,
            ThreadPoolExecutor(arguments.at_once) as pool,
        ):
            cases = [
                Case(Path(folder) / f"case-{n}", stage, signals)
                for n, (stage, signals) in enumerate(all_cases())
            ]
            for found in pool.map(Case.broken, cases):
                broken += found
            count += len(cases)
        spent = time.monotonic() - began
        print(f"round {number + 1}: {count} cases, {len(broken)} broken, {spent:.0f} s", flush=True)
    for sentence in broken:
        print(f"BROKEN: {sentence}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
