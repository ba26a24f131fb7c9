# SPDX-License-Identifier: Apache-2.0
"""The app of the fault tests: tasks that sleep, block, hoard the GIL, or kill their worker."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import resource
import signal
import time
from pathlib import Path

from penstock import Context, Penstock, failpoints

app = Penstock("faults")
REGEX_FIRST = 18  # letters of the first catastrophic match; one more doubles the time


def write_line(name: str, *words: object) -> None:
    """Append a line that stays, whatever happens to this process next."""
    line = " ".join(str(word) for word in words) + "\n"
    descriptor = os.open(Path(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def note(word: str, ctx: Context) -> None:
    write_line("bodies.log", word, ctx.job.key, os.getpid(), f"{time.monotonic():.6f}")


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@app.task()
async def works(ctx: Context, seconds: float = 0.0) -> str:
    note("start", ctx)
    await asyncio.sleep(seconds)
    failpoints.hit("exec.during")
    note("end", ctx)
    return f"result of {ctx.job.key}"


@app.task()
async def works_when_told(ctx: Context) -> None:
    """Ends soon after there is a file called `go`, and not before."""
    note("start", ctx)
    while not Path("go").exists():  # noqa: ASYNC110, ASYNC240 (another process makes it)
        await asyncio.sleep(0.01)
    note("end", ctx)


@app.task()
async def fans_out(ctx: Context, seconds: float = 0.0) -> None:
    note("start", ctx)
    ctx.enqueue(works.job(), key=f"{ctx.job.key}/child")
    await asyncio.sleep(seconds)
    note("end", ctx)


@app.task()
async def sleeps_on_the_loop(ctx: Context, seconds: float) -> None:
    note("start", ctx)
    time.sleep(seconds)  # noqa: ASYNC251 (the fault itself)
    note("end", ctx)


@app.task()
async def spins(ctx: Context, seconds: float) -> None:
    note("start", ctx)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    note("end", ctx)


@app.task()
async def matches(ctx: Context, seconds: float) -> None:
    """One C call that holds the GIL for at least so long, whatever the speed of the machine."""
    note("start", ctx)
    length, took = REGEX_FIRST, 0.0
    while took < seconds:
        began = time.monotonic()
        re.match("(a+)+b", "a" * length)
        took = time.monotonic() - began
        length += 1
    note("end", ctx)


@app.task()
def hoards(ctx: Context, seconds: float) -> None:
    """A C call that keeps the GIL, in a thread."""
    note("start", ctx)
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    note("end", ctx)


@app.task()
async def kills_itself(ctx: Context) -> None:
    note("start", ctx)
    await asyncio.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task()
async def reads_null(ctx: Context) -> None:
    note("start", ctx)
    await asyncio.sleep(0.02)
    ctypes.string_at(0)


@app.task()
async def eats_memory(ctx: Context) -> None:
    """Has no more memory than it has now; what the kernel refuses is a MemoryError."""
    note("start", ctx)
    used = memory_bytes()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


if Path("imports.log").exists():  # a test counts the starts of workers
    write_line("imports.log", os.getpid(), f"{time.monotonic():.6f}")
