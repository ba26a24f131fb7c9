# SPDX-License-Identifier: Apache-2.0
"""`make soak-journal`: kill -9 of runs whose calls cost money, on both stores, with counts."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.stores.open import open_store
from penstock.stores.protocol import Store
from tests.faults.journal_campaign import Campaign
from tests.forked import Forked
from tests.postgres.cluster import Cluster

STORES = ("sqlite", "postgres")


@contextlib.contextmanager
def place(kind: str, folder: Path) -> Iterator[tuple[str, Callable[[], Store]]]:
    """A new store of a kind: its URL, and how it is opened."""
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            url = f"sqlite:///{folder / 'journal.db'}"
        else:
            cluster = stack.enter_context(Cluster(durable=True))
            url = cluster.create_database("journal")
        yield url, lambda: open_store(url, folder=folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8, help="jobs at once, with 3 calls each")
    parser.add_argument("--store", choices=STORES, help="one of them; both by default")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    is_sound = True
    for kind in [arguments.store] if arguments.store else STORES:
        with tempfile.TemporaryDirectory(prefix="penstock-journal-") as name:
            folder = Path(name)
            with place(kind, folder) as (url, open_store):
                outcome = Campaign(
                    folder,
                    url,
                    open_store,
                    seed=arguments.seed,
                    calls=arguments.calls,
                    kills=arguments.kills,
                    slots=arguments.slots,
                    popen=Forked,
                ).run()
            print(f"{kind}: " + "\n  ".join(outcome.lines()), flush=True)
            if not outcome.sound():
                is_sound = False
                print((folder / "processes.log").read_text()[-5_000:], flush=True)
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
