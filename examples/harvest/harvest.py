# SPDX-License-Identifier: Apache-2.0
"""Harvest an archive whose limits are hidden, twice: find them, then begin with them.

python examples/harvest/harvest.py [--documents 2000]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from archive import BURST, CONNECTIONS, PER_SECOND, archive

HERE = Path(__file__).resolve().parent
LOOK_SECONDS = 2.0  # between looks at a run
PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--documents", type=int, default=2_000, help="in the first run")
    documents = parser.parse_args().documents
    folder = Path(tempfile.mkdtemp(prefix="penstock-harvest-"))
    shutil.copy(HERE / "pipeline.py", folder / "pipeline.py")
    try:
        with archive() as (url, what):
            say(
                f"{what} hides: at most {CONNECTIONS} calls at once, {PER_SECOND} a second "
                f"(burst {BURST})"
            )
            environment = {**os.environ, "HARVEST_URL": url}
            harvest(folder, environment, range(documents))
            say("what was learned: penstock providers --json")
            print(json.dumps(learned(folder, environment), indent=2))
            say("a second run begins with it")
            harvest(folder, environment, range(documents, documents + documents // 4))
    finally:
        shutil.rmtree(folder)
    return 0


def harvest(folder: Path, environment: dict[str, str], numbers: range) -> None:
    lines = "".join(
        json.dumps({"key": f"document:{number}", "payload": {"number": number}}) + "\n"
        for number in numbers
    )
    call(folder, environment, "queue", "import", "-", "--task", "fetch", text=lines)
    say(f"{len(numbers)} documents: penstock queue run --drain")
    began = time.monotonic()
    with subprocess.Popen(
        [*PENSTOCK, "queue", "run", "--drain"], cwd=folder, env=environment
    ) as running:
        while not ended_within(running, LOOK_SECONDS):
            for row in learned(folder, environment)["providers"]:
                if live := row["live"]:
                    print(
                        f"  {time.monotonic() - began:4.1f} s: limit {live['limit']}, "
                        f"in flight {live['in_flight']}, refused so far {live['refused']}, "
                        f"by {live['mode']}",
                        flush=True,
                    )
    if running.returncode != 0:
        raise SystemExit(f"The run ended with {running.returncode}.")
    took = time.monotonic() - began
    say(f"{len(numbers)} documents in {took:.1f} s: {len(numbers) / took:.0f} a second")


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def learned(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What the store and its workers know of the provider."""
    reply = subprocess.run(
        [*PENSTOCK, "providers", "--json"],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
    document: dict[str, Any] = json.loads(reply.stdout)
    return document


def call(folder: Path, environment: dict[str, str], *words: str, text: str | None = None) -> None:
    subprocess.run(
        [*PENSTOCK, *words], cwd=folder, env=environment, check=True, input=text, text=True
    )


def say(text: str) -> None:
    print(f"\n▶ {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
