# SPDX-License-Identifier: Apache-2.0
"""`make soak-campaign`: kill everything at random beside two apps on one store, and audit."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.campaign.crew import Crew, Store
from tests.campaign.oracle import Evidence, Oracle, sentences
from tests.campaign.shop import FOLDER
from tests.campaign.skew import Skew, check_out
from tests.postgres.cluster import Cluster
from tests.postgres.guard import scratch

KILLS_PER_ROUND = 15
PROGRAMS = Path(sys.executable).parent


BACK_ENDS = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = %s"


@contextlib.contextmanager
def store_of(kind: str, folder: Path) -> Iterator[Store]:
    """A new store; a server restarts and ends connections now and then."""
    if kind == "sqlite":
        yield Store(f"sqlite:///{folder}/store.db")
        return
    with Cluster(durable=True) as cluster:
        name = "campaign"
        disturbances = {
            "crash of the server": cluster.restart_immediate,
            "end of all connections": lambda: cluster.ask(BACK_ENDS, name),
        }
        yield Store(cluster.create_database(name), disturbances)


class Round:
    """One store, from its first job to the audit."""

    def __init__(self, kind: str, seed: int, freezes: bool = False) -> None:
        self.kind = kind
        self.seed = seed
        self._freezes = freezes
        self.evidence = Evidence()
        self.counts: dict[str, int] = {}
        self.harm: dict[str, list[str]] = {}

    def play(self, kills: int, is_short: bool = False) -> bool:
        """Kill so often, then work on what is left; whether all went well."""

        def storm(crew: Crew) -> None:
            crew.storm(kills, is_short)
            crew.calm(is_short)

        return self._judge(storm)

    def skew(self, other: Path, other_is_first: bool) -> dict[str, str]:
        """Let two versions work at once; how each of them fared."""
        fates: dict[str, str] = {}

        def together(crew: Crew) -> None:
            both = (other, PROGRAMS) if other_is_first else (PROGRAMS, other)
            skew = Skew(crew, *both)
            skew.play(PROGRAMS)
            fates.update(skew.fates)

        self._judge(together)
        return fates

    def _judge(self, happen: Callable[[Crew], None]) -> bool:
        """Whether all went well; what did not is printed, and its evidence stays."""
        prefix = f"campaign-{self.kind}-{self.seed}-"
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=scratch()))
        with store_of(self.kind, folder) as store:
            crew = Crew(folder, store, self.seed, PROGRAMS, self._freezes)
            try:
                happen(crew)
                crew.write_down_what_is_told()
            finally:
                crew.close()
        self.evidence = Evidence.read(folder)
        oracle = Oracle(self.evidence)
        self.counts = oracle.counts()
        self.harm = {**oracle.judge(), "unexpected": crew.unexpected}
        is_well = not any(self.harm.values())
        if is_well:
            shutil.rmtree(folder)
        else:
            print(f"evidence: {folder}", *sentences(self.harm), sep="\n", flush=True)
        return is_well


def campaign(kind: str, kills: int, seed: int, record: Path | None) -> Counter[str]:
    """As many rounds as it takes; what they counted, harm included."""
    total: Counter[str] = Counter()
    began = time.monotonic()
    while total["kills"] < kills:
        played = Round(kind, seed, freezes=seed % 3 == 0)
        played.play(min(KILLS_PER_ROUND, kills - total["kills"]))
        harm = {kind: len(cases) for kind, cases in played.harm.items()}
        total.update(played.counts)
        total.update(harm)
        told = {"seed": seed, "store": kind, **played.counts, **harm}
        told["load"] = round(os.getloadavg()[0], 1)
        print(json.dumps(told), flush=True)
        if record is not None:
            with record.open("a") as file:
                file.write(json.dumps(told) + "\n")
        seed += 1
    print(f"{kind}: {json.dumps(total)} in {time.monotonic() - began:.0f} s", flush=True)
    return total


def skew(ref: str, seed: int) -> int:
    """Two versions at once, on each database, each of them first; how many cases of harm."""
    harm = 0
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        other = check_out(ref, Path(folder, "other"))
        for kind in ("sqlite", "postgres"):
            for other_is_first in (True, False):
                played = Round(kind, seed)
                fates = played.skew(other, other_is_first)
                found = {name: len(cases) for name, cases in played.harm.items() if cases}
                harm += sum(found.values())
                order = f"{ref} first" if other_is_first else f"{ref} second"
                told = {"store": kind, "order": order, **played.counts, "harm": found, **fates}
                print(json.dumps(told, indent=2), flush=True)
    return harm


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sqlite", type=int, default=0, metavar="KILLS")
    parser.add_argument("--postgres", type=int, default=0, metavar="KILLS")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each has its own")
    parser.add_argument("--record", type=Path, help="a file to which each round adds a line")
    parser.add_argument("--skew", metavar="REF", help="another version, beside this one")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and what was started ends with it
    harm = skew(given.skew, given.seed) if given.skew else 0
    for kind in ("sqlite", "postgres"):
        if kills := getattr(given, kind):
            total = campaign(kind, kills, given.seed, given.record)
            harm += sum(total[name] for name in HARMS)
    return 1 if harm else 0


#: What may not happen, not even once.
HARMS = (
    "lost",
    "ended twice",
    "ended wrongly",
    "stuck",
    "leaked",
    "out of order",
    "limits exceeded",
    "ran beside itself",
    "ran again unprovoked",
    "by another app",
    "bought twice",
    "overspent",
    "accounts differ",
    "unexpected",
)

if __name__ == "__main__":
    os.environ.pop(FOLDER, None)
    sys.exit(main())
