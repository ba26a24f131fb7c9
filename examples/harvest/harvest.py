# SPDX-License-Identifier: Apache-2.0
"""Harvest an archive whose limits are hidden, twice: find them, then begin with them.

python examples/harvest/harvest.py [--documents 2000]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from archive import BURST, CONNECTIONS, PER_SECOND, archive

HERE = Path(__file__).resolve().parent
FILES = ("pipeline.py", "documents.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--documents", type=int, default=2_000, help="in the first run")
    documents = parser.parse_args().documents
    with tempfile.TemporaryDirectory(prefix="penstock-harvest-") as folder, archive() as found:
        url, what = found
        for name in FILES:
            shutil.copy(HERE / name, folder)
        print(
            f"{what} hides: at most {CONNECTIONS} calls at once, {PER_SECOND} a second "
            f"(burst {BURST})"
        )
        shell = Shell(Path(folder), url)
        shell.harvest(0, documents)
        shell.type("penstock providers --json")
        shell.harvest(documents, documents + documents // 4)
    return 0


class Shell:
    """Types commands in one folder, and shows them."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._environment = {**os.environ, "HARVEST_URL": url, "PATH": programs}

    def harvest(self, first: int, end: int) -> None:
        self.type(f"python documents.py {first} {end} > documents.jsonl")
        self.type("penstock queue import documents.jsonl --task fetch")
        began = time.monotonic()
        self.type("penstock queue run --drain")
        took = time.monotonic() - began
        print(f"{end - first} documents in {took:.1f} s: {(end - first) / took:.0f} a second")

    def type(self, command: str) -> None:
        print(f"\n$ {command}", flush=True)
        done = subprocess.run(
            command, shell=True, cwd=self._folder, env=self._environment, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{command!r} ended with {done.returncode}.")


if __name__ == "__main__":
    sys.exit(main())
