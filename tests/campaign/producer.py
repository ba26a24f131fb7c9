# SPDX-License-Identifier: Apache-2.0
"""Hands over one batch after the other, and watches what ends meanwhile; it may be killed."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock import Penstock
from penstock.errors import PenstockError, StoreUnavailable
from tests.campaign.shop import FOLDER, Batch, Line, make_app

LOOK_BACK = timedelta(seconds=20)


class Witness:
    """Tells the ledger of every result once, as soon as it can be read."""

    def __init__(self, app: Penstock, line: Line) -> None:
        self._app = app
        self._line = line
        self._told: set[str] = set()

    def look(self) -> None:
        since = datetime.now(UTC) - LOOK_BACK
        seen = {
            key: result["execution"]
            for task in self._app.tasks.values()
            if hasattr(task, "results")  # which versions that others bring may not have
            for key, result in task.results(since=since)
            if key not in self._told
        }
        if seen:
            self._line.tell(seen=seen, app=self._app.name)
            self._told |= set(seen)


class Producer:
    """Hands over until the ledger says that it is enough; a server that is away is waited for."""

    def __init__(self, name: str) -> None:
        self._app = make_app(name)
        self._line = Line()
        self._witness = Witness(self._app, self._line)
        self._done = Path(os.environ[FOLDER], f"{name}.batches")
        self._number = int(self._done.read_text()) if self._done.exists() else 0

    def work(self) -> None:
        while (wish := self._line.tell(wish=self._app.name)) != "enough":
            try:
                if wish == "more":
                    self._hand_over()
                self._witness.look()
            except StoreUnavailable:  # or unknown: to repeat it does no harm
                wish = "wait"
            if wish == "wait":
                time.sleep(0.1)

    def _hand_over(self) -> None:
        batch = Batch(self._app, self._app.name, self._number)
        facts = {"app": self._app.name, "batch": self._number}
        self._line.tell(offered=batch.keys(), **facts)
        self._app.enqueue_many(batch.requests)
        self._line.tell(accepted=batch.keys(), counted=batch.counted, **facts)
        self._number += 1
        self._done.with_suffix(".new").write_text(str(self._number))
        os.replace(self._done.with_suffix(".new"), self._done)


if __name__ == "__main__":
    try:
        Producer(sys.argv[1]).work()
    except PenstockError as refused:
        sys.exit(str(refused))
