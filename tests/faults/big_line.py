# SPDX-License-Identifier: Apache-2.0
"""Import a line of any length within a bounded address space; the neighbours must be kept."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from penstock.model.job import JobState
from penstock.stores.sqlite.store import SqliteStore

ADDRESS_SPACE_BYTES = 300_000_000
IMPORT = [sys.executable, "-m", "penstock_command", "queue", "import", "-", "--task", "visit"]
CHUNK = b"x" * 2**20
CONFIG = 'app = "shop.py"\nstore = "sqlite:///shop.db"\ndurability = "normal"\n'
APP = """
from penstock import Context, Penstock

app = Penstock("shop")

@app.task()
async def visit(ctx: Context, host: str) -> str:
    return host
"""


def import_big_line(folder: Path, mebibytes: int) -> tuple[subprocess.CompletedProcess[str], int]:
    """A good line, a line of so many MiB, a good line; how the import ended, and jobs kept."""
    (folder / "penstock.toml").write_text(CONFIG)
    (folder / "shop.py").write_text(APP)
    process = subprocess.Popen(
        ["sh", "-c", f'ulimit -v {ADDRESS_SPACE_BYTES // 1024}; exec "$@"', "sh", *IMPORT],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    writer = threading.Thread(target=_feed, args=(process, mebibytes), daemon=True)
    writer.start()
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    code = process.wait(60)
    writer.join(60)
    process.stdout.close()
    process.stderr.close()
    store = SqliteStore.open(folder / "shop.db")
    kept = store.stats().result().states[JobState.QUEUED]
    store.close()
    return subprocess.CompletedProcess([], code, out.decode(), err.decode()), kept


def _feed(process: subprocess.Popen[bytes], mebibytes: int) -> None:
    assert process.stdin is not None
    try:
        with process.stdin as stream:
            stream.write(b'{"id": 1, "host": "a"}\n{"id": 2, "host": "')
            for _ in range(mebibytes):
                stream.write(CHUNK)
            stream.write(b'"}\n{"id": 3, "host": "c"}\n')
    except BrokenPipeError:  # the import ended early; its exit code tells
        return
