# SPDX-License-Identifier: Apache-2.0
"""Make a table with a model, kill everything in the middle, go on: what is bought again?

python examples/reviews/reviews.py [--rows 500]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from model import simulated_model

HERE = Path(__file__).resolve().parent
FILES = ("pipeline.py", "penstock.toml")
CALLS_EACH = 2  # of a row
MAX_PARALLEL = 16  # as pipeline.py says
LOOK_SECONDS = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=500)
    rows = parser.parse_args().rows
    model = simulated_model()
    with tempfile.TemporaryDirectory(prefix="penstock-reviews-") as folder, model:
        for name in FILES:
            shutil.copy(HERE / name, folder)
        shell = Shell(Path(folder), f"{model.url}/v1")
        generate = f"penstock table generate --rows {rows}"
        run = shell.start(generate)
        while model.counts.served < rows * CALLS_EACH // 2 and run.poll() is None:
            time.sleep(LOOK_SECONDS)
        kill_all(run)
        print(f"{model.counts.served} answers were sent before the kill", flush=True)

        shell.type(generate)
        shell.type("penstock table show")
        shell.type("penstock table export --to hf --file hub")
        names = sorted(str(path.relative_to(folder)) for path in Path(folder, "hub").rglob("*.*"))
        print("\n".join(names))
        again = model.counts.served - rows * CALLS_EACH
        made = json.loads(shell.output("penstock table show --json"))["rows"]
    print(f"\n{made} rows, {rows * CALLS_EACH} answers needed; bought again: {max(0, again)}")
    print(f"(the calls in flight at the kill, at most {MAX_PARALLEL})")
    return 0 if made == rows and again <= MAX_PARALLEL else 1


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
            "NO_PROXY": "127.0.0.1",
            "PATH": programs,
        }

    def start(self, command: str) -> subprocess.Popen[bytes]:
        print(f"\n$ {command}", flush=True)
        return subprocess.Popen(command.split(), cwd=self._folder, env=self._environment)

    def type(self, command: str) -> None:
        code = self.start(command).wait()
        if code != 0:
            raise SystemExit(f"{command!r} ended with {code}.")

    def output(self, command: str) -> str:
        return subprocess.run(
            command.split(),
            cwd=self._folder,
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout


if __name__ == "__main__":
    sys.exit(main())
