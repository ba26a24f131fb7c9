# SPDX-License-Identifier: Apache-2.0
"""The producer of the kill campaign: enqueues a cycle's jobs and notes each accepted one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock import finished
from penstock.model.job import Edge
from tests.faults.kill_app import app, fan_out, limited, plain, threaded

ACCEPTED = Path("accepted.log")


def main() -> None:
    """argv: cycle, number of jobs."""
    cycle, count = int(sys.argv[1]), int(sys.argv[2])
    descriptor = os.open(ACCEPTED, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    tasks = (plain, plain, limited, threaded, fan_out)
    for n in range(count):
        key = f"c{cycle}-{n}"
        task = tasks[n % len(tasks)]
        after: list[str | Edge] = [f"c{cycle}-{n - 1}"] if n % 7 == 6 else []
        if n % 11 == 10:
            after.append(finished(f"c{cycle}-{n - 2}"))
        delay = 0.05 if n % 13 == 12 else 0.0
        app.enqueue(task.job(n=n), key=key, after=after, delay=delay, group=f"g{n % 4}")
        os.write(descriptor, f"{key}\n".encode())
    app.close()


if __name__ == "__main__":
    main()
