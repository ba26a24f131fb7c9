# SPDX-License-Identifier: Apache-2.0
"""The app of the partition test: bodies that run until a file is there, and tell when they stop."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from penstock import Context, Penstock
from tests.faults.fault_app import note

app = Penstock("partition")
PAUSE_SECONDS = 0.02


def _may_end() -> bool:
    return Path(os.environ["PENSTOCK_TEST_GO"]).exists()


@app.task()
async def waits(ctx: Context) -> str:
    note("start", ctx)
    try:
        while not _may_end():  # noqa: ASYNC110 (other processes make the file)
            await asyncio.sleep(PAUSE_SECONDS)
    except asyncio.CancelledError:
        note("stop", ctx)
        raise
    note("end", ctx)
    return os.environ["PENSTOCK_TEST_GO"]


@app.task()
def does_not_stop(ctx: Context) -> str:
    note("start", ctx)
    while not _may_end():
        time.sleep(PAUSE_SECONDS)
    note("end", ctx)
    return os.environ["PENSTOCK_TEST_GO"]
