# SPDX-License-Identifier: Apache-2.0
"""Watch repositories: one cannot be reached, then all can; stop, kill -9, start again.

python examples/repo_watch/repo_watch.py [--issues 30]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from forge import Forge, ForgeLimits

HERE = Path(__file__).resolve().parent
FILES = ("pipeline.py", "penstock.toml")
REPOSITORIES = ["penstock/engine", "penstock/docs", "penstock/site"]
UNIT = "schedule:poll_issues:penstock/site"
LIMITS = ForgeLimits(window_seconds=5.0, per_window=400, per_second=20)
PATIENCE_SECONDS = 180.0
LOOK_SECONDS = 0.2
PREFLIGHT_FAILED, INTERRUPTED = 3, 130


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--issues", type=int, default=30, help="opened in each of three stages")
    issues = parser.parse_args().issues
    with (
        tempfile.TemporaryDirectory(prefix="penstock-watch-") as folder,
        Forge(REPOSITORIES[:-1], LIMITS) as forge,
    ):
        for name in FILES:
            shutil.copy(HERE / name, folder)
        return watch(Shell(Path(folder), forge.url), forge, issues)


def watch(shell: Shell, forge: Forge, issues: int) -> int:
    print(f"There is no {REPOSITORIES[-1]} yet.")
    shell.type("penstock run", PREFLIGHT_FAILED)
    forge.add(REPOSITORIES[-1])
    print("\nNow there is.")
    shell.type("penstock run --check", 0)

    daemon = shell.start("penstock run")
    open_issues(forge, issues)
    await_(lambda: shell.done() == issues, "every issue is looked at")
    print("\n^C")
    daemon.send_signal(signal.SIGINT)
    if daemon.wait(PATIENCE_SECONDS) != INTERRUPTED:
        raise SystemExit(f"The daemon ended with {daemon.returncode}, not {INTERRUPTED}.")

    open_issues(forge, issues)  # while nobody is there
    daemon = shell.start("penstock run")
    open_issues(forge, issues)
    await_(lambda: shell.done() > issues, "the first of the new ones is looked at")
    kill_all(daemon)

    daemon = shell.start("penstock run")
    await_(lambda: shell.done() == 3 * issues, "every issue is looked at")
    await_(lambda: shell.gate(UNIT) == "not_due", f"{UNIT} waits for its next tick")
    shell.type(f"penstock why {UNIT}", 0)
    daemon.terminate()
    code = daemon.wait(PATIENCE_SECONDS)
    looked_at = shell.results()
    opened = {
        f"{name}#{number} {title}"
        for name in REPOSITORIES
        for number, title in enumerate(forge.issues(name) or [], start=1)
    }
    print(f"\n{len(opened)} issues were opened; {len(looked_at)} were looked at")
    print(f"missed: {len(opened - set(looked_at))}, repeated: {len(looked_at) - len(opened)}")
    print(f"the forge answered {dict(sorted(forge.replies.items()))}")
    return 0 if code == 0 and sorted(looked_at) == sorted(opened) else 1


def open_issues(forge: Forge, count: int) -> None:
    for number in range(count):
        forge.open_issue(REPOSITORIES[number % len(REPOSITORIES)], f"Question {number}")
    print(f"\n{count} issues are opened.", flush=True)


def kill_all(run: subprocess.Popen[bytes]) -> None:
    """As when the power goes: the supervisor and its worker at once, by kill -9."""
    workers = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    print(f"\n$ kill -9 {run.pid} {' '.join(workers)}", flush=True)
    for pid in (run.pid, *map(int, workers)):
        os.kill(pid, signal.SIGKILL)
    run.wait(PATIENCE_SECONDS)


def await_(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"After {PATIENCE_SECONDS:g} s it is not so that {what}.")
        time.sleep(LOOK_SECONDS)


class Shell:
    """Types commands in one folder, and shows them."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._environment = {
            **os.environ,
            "FORGE_URL": url,
            "NO_PROXY": "127.0.0.1",
            "PATH": programs,
            "PENSTOCK_RUNTIME__LEASE_TTL_SECONDS": "6",  # so that a kill costs seconds
            "PENSTOCK_RUNTIME__BEAT_SECONDS": "2",
        }

    def type(self, command: str, expected: int) -> None:
        print(f"\n$ {command}", flush=True)
        done = subprocess.run(command.split(), cwd=self._folder, env=self._environment, check=False)
        print(f"exit {done.returncode}")
        if done.returncode != expected:
            raise SystemExit(f"{command!r} ended with {done.returncode}, not {expected}.")

    def start(self, command: str) -> subprocess.Popen[bytes]:
        print(f"\n$ {command}", flush=True)
        return subprocess.Popen(command.split(), cwd=self._folder, env=self._environment)

    def done(self) -> int:
        states: dict[str, int] = json.loads(self._read("queue stats --json"))["states"]
        return states["done"]

    def gate(self, key: str) -> str:
        """What a unit stands before."""
        return str(json.loads(self._read(f"why {key} --json"))["gate"])

    def results(self) -> list[str]:
        """What was looked at, as often as it was."""
        jobs = json.loads(self._read("queue list --task look_at --state done --json"))
        return [job["result"] for job in jobs["jobs"]]

    def _read(self, command: str) -> str:
        reply = subprocess.run(
            ["penstock", *command.split()],
            cwd=self._folder,
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return reply.stdout


if __name__ == "__main__":
    sys.exit(main())
