# SPDX-License-Identifier: Apache-2.0
"""`make soak-sqlite`: the long versions of the faults of the store file, with their counts."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

from penstock.stores.sqlite import checkpoint
from penstock.stores.sqlite.connection import WAL_BYTES_MAX
from tests.faults import sqlite_world as world
from tests.faults.busy_storm import storm
from tests.faults.test_sqlite_corrupt import make_sound, survey_of_flips
from tests.faults.test_sqlite_fsync import fail_at_each
from tests.faults.test_sqlite_log import READER

FLIPS, FLIP_SEEDS = 200, 5
SYNCS = 50
COMMITS = 20_000
STORM_PROCESSES, STORM_SECONDS = 32, 10.0
LEASE_SECONDS = 30.0


def flips(folder: Path, share: float) -> str:
    """F26: damage at random places."""
    sound = folder / "sound" / "store.db"
    make_sound(sound)
    used = folder / "used"
    used.mkdir()
    told = unseen = 0
    for seed in range(max(round(FLIP_SEEDS * share), 1)):
        outcomes = survey_of_flips(sound, used, FLIPS, seed)
        told, unseen = told + outcomes["told"], unseen + outcomes["unseen"]
    return f"{told + unseen} damaged files: {told} told in one sentence, {unseen} unseen"


def busy(folder: Path, share: float) -> str:
    """F28: a storm of writers."""
    found = storm(folder / "store.db", STORM_PROCESSES, max(STORM_SECONDS * share, 5.0))
    assert found.problems == [], found
    assert found.worst_wait_seconds < LEASE_SECONDS / 3, found
    assert found.least_share >= 0.2, found
    return (
        f"{STORM_PROCESSES} writers, {sum(found.writes)} commits: 0 errors, worst wait "
        f"{found.worst_wait_seconds:.2f} s, least share {found.least_share:.2f}"
    )


def long_reader(folder: Path, share: float) -> str:
    """F29: a reader that stays for many commits."""
    path = folder / "store.db"
    log = path.with_name("store.db-wal")
    with closing(world.open_store(path)) as store:
        world.register(store)
        reader = world.start_python(READER, str(path))
        assert reader.stdout is not None
        reader.stdout.readline()
        commits = round(COMMITS * share)
        for number in range(commits):
            store.enqueue(world.new_jobs(1, 300, prefix=f"n{number}-")).result()
        grown = log.stat().st_size
        reader.communicate("\n", timeout=world.SECONDS)
        for _ in range(3):
            time.sleep(checkpoint.AGAIN_SECONDS)
            store.beat([world.WORKER], 60).result()
        left = log.stat().st_size
    assert left <= WAL_BYTES_MAX, left
    return f"{commits} commits under a reader: log {grown >> 20} MiB, {left >> 20} MiB after it"


def syncs(folder: Path, share: float) -> str:
    """F30: each of the first syncs fails."""
    count = max(round(SYNCS * share), 1)
    with patch.object(checkpoint, "CHECKPOINT_PAGES", 40):  # moving the log fails, too
        seen = sorted(fail_at_each(folder, count))
    return (
        f"each of {count} syncs failed once, none was repeated, nothing promised was lost: {seen}"
    )


def checkpointers(folder: Path, share: float) -> str:
    """F33: two programs move the log while four write."""
    found = storm(folder / "store.db", 4, 600.0 * share, checkpointers=2)
    assert found.problems == [], found
    return f"{sum(found.writes)} commits and {found.checkpoints} checkpoints: the file is sound"


CAMPAIGNS: tuple[Callable[[Path, float], str], ...] = (
    flips,
    busy,
    long_reader,
    syncs,
    checkpointers,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the whole length")
    arguments = parser.parse_args()
    for campaign in CAMPAIGNS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="penstock-sqlite-") as name:
            said = campaign(Path(name), arguments.share)
        print(f"{campaign.__doc__} {said} ({time.monotonic() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
