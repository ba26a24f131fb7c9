# SPDX-License-Identifier: Apache-2.0
"""Buy answers with the OpenAI SDK, kill everything in the middle, run again: what is reused?

python examples/paid_calls/paid_calls.py [--reviews 60]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from model import CountingModel

HERE = Path(__file__).resolve().parent
FILES = ("pipeline.py", "penstock.toml", "reviews.py")
CALLS_EACH = 3  # of a review
MAX_PARALLEL = 8  # as pipeline.py says
LOOK_SECONDS = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--reviews", type=int, default=60)
    reviews = parser.parse_args().reviews
    if importlib.util.find_spec("openai") is None:
        print(
            "This example calls the OpenAI SDK, which is not installed; run `pip install openai`.",
            file=sys.stderr,
        )
        return 2
    model = CountingModel()
    with tempfile.TemporaryDirectory(prefix="penstock-paid-") as folder, model.provider:
        for name in FILES:
            shutil.copy(HERE / name, folder)
        return run_kill_and_run(Shell(Path(folder), model.url), model, reviews)


def run_kill_and_run(shell: Shell, model: CountingModel, reviews: int) -> int:
    total = reviews * CALLS_EACH
    shell.type(f"python reviews.py {reviews} > reviews.jsonl")
    shell.type("penstock queue import reviews.jsonl --task judge")
    run = shell.start("penstock queue run --drain")
    while model.provider.counts.served < total // 2 and run.poll() is None:
        time.sleep(LOOK_SECONDS)
    kill_all(run)
    asked = len(model.prompts)
    done = shell.states()["done"]
    print(f"{done} of {reviews} reviews are done; {asked} calls were sent")

    shell.type("penstock queue run --drain")
    needed = (reviews - done) * CALLS_EACH
    bought = len(set(model.prompts[asked:]))
    again = len(set(model.prompts[:asked]) & set(model.prompts[asked:]))
    print(f"\n{reviews - done} reviews were left, which need {needed} answers")
    print(f"reused {needed - bought}, bought {bought}")
    print(f"asked twice: {again}, the calls in flight at the kill (at most {MAX_PARALLEL})")
    return 0 if shell.states()["done"] == reviews and again <= MAX_PARALLEL else 1


def kill_all(run: subprocess.Popen[bytes]) -> None:
    """As when the power goes: the supervisor and its worker at once, by kill -9."""
    workers = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    print(f"\n$ kill -9 {run.pid} {' '.join(workers)}", flush=True)
    for pid in (run.pid, *map(int, workers)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait()


class Shell:
    """Types commands in one folder, and shows them."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._environment = {
            **os.environ,
            "MODEL_URL": url,
            "OPENAI_API_KEY": "sk-simulated",
            "NO_PROXY": "127.0.0.1",
            "PATH": programs,
        }

    def type(self, command: str) -> None:
        print(f"\n$ {command}", flush=True)
        done = subprocess.run(
            command, shell=True, cwd=self._folder, env=self._environment, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{command!r} ended with {done.returncode}.")

    def start(self, command: str) -> subprocess.Popen[bytes]:
        print(f"\n$ {command}", flush=True)
        return subprocess.Popen(command.split(), cwd=self._folder, env=self._environment)

    def states(self) -> dict[str, int]:
        reply = subprocess.run(
            ["penstock", "queue", "stats", "--json"],
            cwd=self._folder,
            env=self._environment,
            check=True,
            capture_output=True,
        )
        states: dict[str, int] = json.loads(reply.stdout)["states"]
        return states


if __name__ == "__main__":
    sys.exit(main())
