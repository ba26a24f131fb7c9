# SPDX-License-Identifier: Apache-2.0
"""`make soak-calendar`: every change of clocks of every place, against a clock on the wall."""

from __future__ import annotations

import argparse
import sys
import time
from zoneinfo import ZoneInfo, available_timezones

from tests.faults.calendar_kinds import calendar_differences, kinds_around
from tests.faults.calendar_world import changing_days, differences, window


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", type=int, default=2008, dest="first")
    parser.add_argument("--years", type=int, default=30)
    arguments = parser.parse_args()
    began = time.monotonic()
    zones = sorted(available_timezones())
    last = arguments.first + arguments.years - 1
    seen: set[int] = set()
    changes = wrong = 0
    for number, name in enumerate(zones, 1):
        zone = ZoneInfo(name)
        for day in changing_days(zone, arguments.first, last):
            changes += 1
            here = window(zone, day)
            place = hash(here)
            if place in seen:
                continue  # another name of the same place
            seen.add(place)
            lines = differences(name, here) + calendar_differences(name, here, kinds_around(day))
            for line in lines:
                wrong += 1
                print(line, flush=True)
        if number % 50 == 0:
            print(f"{number} of {len(zones)} zones, {len(seen):,} changes", flush=True)
    print(
        f"{len(zones)} zones × {arguments.years} years from {arguments.first}: {changes:,} changes "
        f"of clocks, {len(seen):,} of them different, {wrong} differences, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
