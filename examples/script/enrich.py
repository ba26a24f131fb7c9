# SPDX-License-Identifier: Apache-2.0
"""A plain script that replaces a loop over a list, so that it can be killed and started again.

    for name, born in people:                # before: a crash at row 900 starts at row 1
        rows.append(enrich(name, born))

Run it as often as you like: what is done stays done, and only new or changed rows cost anything.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from penstock import Context, Penstock, RunProgress

app = Penstock("enrich")

PEOPLE = [("Ada Lovelace", 1815), ("Alan Turing", 1912), ("Grace Hopper", 1906)]


@app.task(key="person:{name}", max_attempts=5)
def enrich(ctx: Context, name: str, born: int) -> dict[str, str | int]:
    """Call the slow, flaky or paid thing here; plain blocking code runs in a thread."""
    first, _, last = name.rpartition(" ")
    return {"first": first, "last": last, "century": born // 100 + 1}


def show(progress: RunProgress) -> None:
    """Say how far it is, about once a second."""
    print(f"{progress.ended} ended, {progress.left} left", file=sys.stderr)


def main(out: Path) -> None:
    """Accept what is new, do what is left, and write all results."""
    accepted = app.enqueue_many(enrich.job(name=name, born=born) for name, born in PEOPLE)
    report = app.run(drain=True, on_progress=show)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["first", "last", "century"])
        writer.writeheader()
        writer.writerows(row for _, row in enrich.results())
    print(f"{accepted.created} new, {report.done} done in this run, written to {out}")
    if report.errors:
        sys.exit(f"{report.errors} failed: see 'penstock queue list enrich.py --state error'")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "people.csv"))
