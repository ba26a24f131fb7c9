# SPDX-License-Identifier: Apache-2.0
"""A process that works on a store until a failpoint kills it: `victim STORE DEED POINT AT`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from penstock import failpoints
from penstock.operate.rerun import rerun
from penstock.stores.sqlite.store import SqliteStore


def main() -> None:
    path, deed, point, at = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    store = SqliteStore.open(path, durability="normal")
    passed = 0

    def action(name: str) -> None:
        nonlocal passed
        passed += name == point
        if passed == at:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.arm(action)
    if deed == "retry":
        store.retry_failed(None, None).result()
    elif deed == "rerun":
        rerun(store, (), "work", fresh=True)
    elif deed != "settle":
        raise SystemExit(f"There is no deed {deed!r}.")
    while store.settle().result().more:
        continue
    store.close()


if __name__ == "__main__":
    main()
