# SPDX-License-Identifier: Apache-2.0
"""The app of the long run: a little of everything that a queue is used for."""

from __future__ import annotations

import asyncio
import time

from penstock import Context, Penstock

app = Penstock("flat")


@app.task()
async def looped(ctx: Context, n: int) -> dict[str, int]:
    await asyncio.sleep(0.001)
    return {"n": n}


@app.task()
def threaded(ctx: Context, n: int) -> str:
    time.sleep(0.001)
    return "x" * (n % 500)


@app.task(max_attempts=1)
async def fails(ctx: Context, n: int) -> None:
    raise ValueError(f"job {n} always fails")


@app.task(max_attempts=3)
async def stumbles(ctx: Context, n: int) -> int:
    if ctx.job.attempt == 1:
        raise LookupError("not yet")
    return n


@app.task()
async def fans_out(ctx: Context, n: int) -> None:
    for child in range(3):
        ctx.enqueue(looped.job(n=n), key=f"{ctx.job.key}/{child}")


@app.task(limits={"host": lambda n: f"h{n % 7}"})
async def limited(ctx: Context, n: int) -> None:
    await asyncio.sleep(0.002)


MIX = (looped, looped, threaded, limited, looped, fans_out, fails, stumbles, looped, threaded)
