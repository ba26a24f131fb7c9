# SPDX-License-Identifier: Apache-2.0
"""`make demo`: enqueue, run, kill -9 the worker in the middle, and see that nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]


def say(text: str) -> None:
    print(f"\n▶ {text}", flush=True)


def stats(folder: Path) -> dict[str, int]:
    reply = subprocess.run(
        [*PENSTOCK, "queue", "stats", "--json"], cwd=folder, check=True, capture_output=True
    )
    states: dict[str, int] = json.loads(reply.stdout)["states"]
    return states


def worker_of(supervisor: int) -> int | None:
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return int(children[0]) if children else None


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    shutil.copy(HERE / "pipeline.py", folder / "pipeline.py")
    (folder / "penstock.toml").write_text('[limits.host]\n"*" = 4\n')

    say("400 jobs into a SQLite file; each is durable when its batch returns")
    subprocess.run([sys.executable, "pipeline.py"], cwd=folder, check=True)

    say("a worker under its supervisor: at most 4 jobs at once for each of 5 hosts")
    run = subprocess.Popen([*PENSTOCK, "queue", "run", "--drain"], cwd=folder)
    while stats(folder)["done"] < 60 and run.poll() is None:
        time.sleep(0.05)

    worker = worker_of(run.pid)
    if worker is not None:
        say(f"kill -9 of worker {worker}, in the middle of its work")
        os.kill(worker, signal.SIGKILL)
    code = run.wait()

    states = stats(folder)
    say(f"the run ended with exit code {code}")
    print(json.dumps({name: n for name, n in states.items() if n}))
    lost = 400 - states["done"] - states["skipped"]
    print(f"400 accepted, {states['done']} done, {states['skipped']} skipped, {lost} lost")
    command = Path(sys.executable).with_name("penstock")
    print(f"\nLook around: cd {folder} && {command} queue stats")
    return 0 if lost == 0 and code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
