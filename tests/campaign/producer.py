# SPDX-License-Identifier: Apache-2.0
"""Hands over one batch after the other, and watches what ends meanwhile; it may be killed."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock import Penstock
from penstock.errors import PenstockError
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


def main(name: str) -> None:
    """Hand over until the ledger says that it is enough."""
    app = make_app(name)
    line = Line()
    witness = Witness(app, line)
    done = Path(os.environ[FOLDER], f"{name}.batches")
    number = int(done.read_text()) if done.exists() else 0
    wish = line.tell(wish=name)
    while wish != "enough":
        if wish == "more":
            batch = Batch(app, name, number)
            line.tell(offered=batch.keys(), app=name, batch=number)
            app.enqueue_many(batch.requests)
            line.tell(accepted=batch.keys(), counted=batch.counted, app=name, batch=number)
            number += 1
            done.with_suffix(".new").write_text(str(number))
            os.replace(done.with_suffix(".new"), done)
        else:
            time.sleep(0.1)
        witness.look()
        wish = line.tell(wish=name)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except PenstockError as refused:
        sys.exit(str(refused))
