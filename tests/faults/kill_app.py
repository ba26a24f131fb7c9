# SPDX-License-Identifier: Apache-2.0
"""The app of the kill campaign: each start and end of a body leaves a line that stays."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from penstock import Context, Penstock, failpoints

app = Penstock("kill")
LOG = Path("bodies.log")


def note(word: str, ctx: Context) -> None:
    line = f"{word} {ctx.job.key} {time.monotonic():.6f}\n".encode()
    descriptor = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line)
    os.close(descriptor)


@app.task()
async def plain(ctx: Context, n: int) -> int:
    note("start", ctx)
    await asyncio.sleep(0.001 * (n % 20))
    failpoints.hit("exec.during")
    note("end", ctx)
    return n


@app.task(limits={"host": lambda n: f"h{n % 3}"})
async def limited(ctx: Context, n: int) -> int:
    note("start", ctx)
    await asyncio.sleep(0.002)
    note("end", ctx)
    return n


@app.task()
def threaded(ctx: Context, n: int) -> int:
    note("start", ctx)
    time.sleep(0.002)
    note("end", ctx)
    return n


@app.task()
async def fan_out(ctx: Context, n: int) -> int:
    note("start", ctx)
    for i in range(3):
        ctx.enqueue(plain.job(n=n + i), key=f"{ctx.job.key}/child-{i}")
    note("end", ctx)
    return n
