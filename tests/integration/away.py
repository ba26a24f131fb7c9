# SPDX-License-Identifier: Apache-2.0
"""The real entry points over a store that is away while a file named `away` lies in the folder.

As a server does it: nobody can open it, and whoever has it open waits for answers, and is refused
after a while.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, cast

from penstock.errors import StoreUnavailable
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply, aside

FILE = "away"
REFUSED_SECONDS = 2.0
SENTENCE = "The server of postgresql://me@h/db cannot be reached: it is a test. Check that it runs."
THROUGH = frozenset({"url", "close", "wait_for_work"})


def is_away() -> bool:
    return os.path.exists(FILE)


class AwayStore:
    """Stands before a real store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, call: str) -> Any:
        there = getattr(self._store, call)
        if call in THROUGH:
            return there

        def ask(*arguments: Any) -> Reply[Any]:
            if not is_away():
                return cast("Reply[Any]", there(*arguments))
            return aside(lambda: self._later(there, arguments))

        return ask

    def _later(self, there: Any, arguments: tuple[Any, ...]) -> Any:
        until = time.monotonic() + REFUSED_SECONDS
        while is_away():
            if time.monotonic() > until:
                raise StoreUnavailable(SENTENCE)
            time.sleep(0.02)
        return there(*arguments).result()


def main() -> None:
    from penstock.app import queue
    from penstock.cli import target
    from penstock.cli.commands import run_supervised
    from penstock.processes import worker
    from penstock.stores.open import open_store as open_really
    from penstock.supervisor import worker_handle

    def open_store(url: str, **options: Any) -> Store:
        if is_away():
            raise StoreUnavailable(SENTENCE)
        return cast("Store", AwayStore(open_really(url, **options)))

    for asks in (queue, run_supervised, target, worker):
        vars(asks)["open_store"] = open_store
    if "PENSTOCK_TEST_WAIT" in os.environ:
        vars(worker)["STORE_WAIT_SECONDS"] = float(os.environ["PENSTOCK_TEST_WAIT"])
    worker_handle.worker_command[:] = [sys.executable, "-m", "tests.integration.away", "worker"]
    if sys.argv.pop(1) == "worker":
        worker.main()
    else:
        from penstock.cli import main as cli

        cli.run()


if __name__ == "__main__":
    main()
