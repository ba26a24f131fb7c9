# SPDX-License-Identifier: Apache-2.0
"""The app of the restart campaign: each end of a job leaves exactly one child behind.

The child's name is another one in each attempt, so that a second end of a job would leave a second
child.
"""

from __future__ import annotations

import asyncio
import secrets

from penstock import Context, Penstock

app = Penstock("restarts")


@app.task(limits={"host": lambda n: f"h{n % 5}"})
async def work(ctx: Context, n: int) -> int:
    await asyncio.sleep(0.001 * (n % 10))
    ctx.enqueue(tally.job(n=n), key=f"{ctx.job.key}/{secrets.token_hex(6)}")
    return n


@app.task()
async def tally(ctx: Context, n: int) -> int:
    return n
