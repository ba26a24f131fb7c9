# SPDX-License-Identifier: Apache-2.0
"""`make soak-races`: ends race sweeps at the instant of expiry, and the same end races itself."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.faults.races import race_ack_against_sweep, race_two_acks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    rounds: int = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="penstock-races-") as folder:
        wins = race_ack_against_sweep(Path(folder), rounds)
    print(f"end against sweep: {rounds} rounds, one winner each: {dict(sorted(wins.items()))}")
    with tempfile.TemporaryDirectory(prefix="penstock-races-") as folder:
        race_two_acks(Path(folder), rounds)
    print(f"end against itself: {rounds} rounds, accepted once each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
