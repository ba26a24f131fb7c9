# SPDX-License-Identifier: Apache-2.0
"""Records which files and functions of ours a plain job passes, from `enqueue` until it is done.

A worker runs inside this program on an SQLite file and is idle when a job is enqueued. What every
one of the recorded jobs passed is its way; what only some passed belongs to the clock. Prints
JSON: each file with its functions.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import Any

from penstock import Context, Penstock

SETTLE_SECONDS = 0.6  # the worker is idle again
OURS = f"{os.sep}penstock{os.sep}"

app = Penstock("walk")
passed: set[tuple[str, str]] = set()
recorded: set[int] = set()  # threads
records = threading.Event()  # every thread but the main one


@app.task()
async def walk(ctx: Context, number: int) -> int:
    return number


def note(frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401 (of the interpreter)
    if event != "call":
        return
    here = threading.get_ident()
    main = threading.main_thread().ident
    if (here == main and here in recorded) or (here != main and records.is_set()):
        _, ours, place = frame.f_code.co_filename.rpartition(f"{os.sep}src{OURS}")
        if ours:
            passed.add((place, frame.f_code.co_qualname))


class Watcher:
    """A process that says when no job is open, by none of our code and none of our locks."""

    SCRIPT = """
import sqlite3, sys, time
file = sqlite3.connect("file:.penstock/walk.db?mode=ro", uri=True)
for line in sys.stdin:
    while file.execute("SELECT count(*) FROM jobs WHERE finished_at IS NULL").fetchone()[0]:
        time.sleep(0.002)
    print("done", flush=True)
"""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def wait(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"look\n")
        self._process.stdin.flush()
        self._process.stdout.readline()


def walk_once(number: int, watcher: Watcher) -> set[tuple[str, str]]:
    time.sleep(SETTLE_SECONDS)
    passed.clear()
    records.set()
    recorded.add(threading.get_ident())
    app.enqueue(walk.job(number))
    recorded.clear()
    watcher.wait()
    records.clear()
    return set(passed)


def main() -> None:
    threading.setprofile(note)
    threading.Thread(target=lambda: asyncio.run(app.run_async()), daemon=True).start()
    sys.setprofile(note)
    app.enqueue(walk.job(-1))
    watcher = Watcher()
    walks = [walk_once(number, watcher) for number in range(int(sys.argv[1]) + 1)]
    every = set.intersection(*walks[1:])
    way: dict[str, list[str]] = {}
    for file, name in sorted(every):
        way.setdefault(file, []).append(name)
    print(json.dumps(way), flush=True)
    os._exit(0)  # the worker has nothing to lose


if __name__ == "__main__":
    main()
