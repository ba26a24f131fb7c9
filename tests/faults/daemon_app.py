# SPDX-License-Identifier: Apache-2.0
"""The app of the daemon's fault tests: files in its folder say what checks and ticks do."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from penstock import Context, Penstock, TickContext, failpoints

LONG_SECONDS = 3600.0
HANG_SECONDS = 0.05  # between two looks whether it shall go on


def said(name: str, otherwise: str = "") -> str:
    """What a file says; it may change at any moment."""
    try:
        return Path(name).read_text().strip()
    except FileNotFoundError:
        return otherwise


def note(*words: object) -> None:
    """One write, so that lines of several processes do not mix; pid and time come last."""
    line = " ".join(map(str, [*words, os.getpid(), time.monotonic()])) + "\n"
    fd = os.open("bodies.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, line.encode())
    os.close(fd)


app = Penstock("watched")
hosts = app.partitions("host", lambda: said("hosts", "a b").split())
note("import")
if said("import") == "hang":
    time.sleep(LONG_SECONDS)


async def hang(name: str) -> None:
    """As long as it is said."""
    while said(name) == "hang":  # noqa: ASYNC110 (another process says it)
        await asyncio.sleep(HANG_SECONDS)


def misbehave(name: str, how: str) -> None:
    """Whatever does not need a loop."""
    match how:
        case "fail":
            raise ValueError(f"{name} is not there")
        case "node":
            raise ConnectionResetError("gone")
        case "exit":
            sys.exit(5)
        case "block":
            time.sleep(LONG_SECONDS)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die once":
            Path(f"check-{name}").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        case "once":
            Path(f"check-{name}").unlink()
            raise ConnectionResetError("gone for now")


if said("mistake"):

    @app.preflight(over=hosts)  # type: ignore[arg-type]
    async def mistaken(ctx: Context) -> None: ...


if said("checks") != "none":

    @app.preflight(
        over=hosts, hint="Is its name right?", recheck=True, required=said("optional") == ""
    )
    async def reachable(ctx: Context, host: str) -> str:
        note("check", host)
        await hang(f"check-{host}")
        misbehave(host, said(f"check-{host}"))
        return host.upper()

    @app.preflight()
    def token(ctx: Context) -> None:
        note("check", "token")
        misbehave("token", said("check-token"))
        if wanted := int(said("barrier", "0")):  # the last check: then both arm at once
            note("barrier")
            while Path("bodies.log").read_text().count("barrier ") < wanted:
                time.sleep(0.001)


@app.task()
async def event(ctx: Context, host: str, number: int) -> None:
    note("event", host, number)


if said("schedules") != "none":

    @app.every(
        float(said("interval", "0.05")),
        over=hosts,
        max_attempts=int(said("attempts")) if said("attempts") else None,
    )
    async def poll(ctx: TickContext, host: str) -> None:
        number = (ctx.cursor or 0) + 1
        note("tick", host, round(ctx.due_at.timestamp() * 1e6), number)
        failpoints.hit("exec.during")
        await hang(f"tick-{host}")
        misbehave(host, said(f"tick-{host}"))
        ctx.cursor = number
        # A key of its own: if this end counted twice, its event would be there twice.
        ctx.enqueue(event.job(host, number), key=f"{host} {number} {time.monotonic_ns()}")
        note("ticked", host, round(ctx.due_at.timestamp() * 1e6), number)
