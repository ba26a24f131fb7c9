# SPDX-License-Identifier: Apache-2.0
"""The app of the builds' fault tests: files in its folder say its version and what bodies do.

Level 0 is `east` and `west`, level 1 `pair`, level 2 `week` in batches of two; `alone` needs
nothing. A slice tells its name, its version, and the same of the slices that it was built from. If
the file `keep` says how often, a daemon keeps all of them current.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path

from penstock import Context, Penstock, Slices
from penstock.calendars import Custom

HOLD_SECONDS = 0.01  # between two looks


def said(name: str, otherwise: str = "") -> str:
    """What a file says; it may change at any moment."""
    try:
        return Path(name).read_text().strip()
    except FileNotFoundError:
        return otherwise


DAYS = Custom([date(2023, 12, 31), date(2024, 1, 1), date(2024, 1, 2), date(2024, 1, 3)])
VERSION = said("version", "1")
app = Penstock("built")
with Path("imports.log").open("a") as imports:
    imports.write(f"{os.getpid()}\n")


def begin(dataset: str, at: datetime) -> str:
    """Note that a body has begun; one write, so that lines of several processes do not mix."""
    name = f"{dataset}@{at:%Y-%m-%d}"
    fd = os.open("bodies.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, f"{name} {VERSION} {os.getpid()}\n".encode())
    os.close(fd)
    if name in said("fail").split():
        raise ValueError(f"{name} shall fail")
    return name


def content(name: str, *needed: Slices) -> bytes:
    told = [json.loads(one.bytes()) for slices in needed for one in slices]
    origins = [(one["name"], one["version"]) for one in told]
    return json.dumps({"name": name, "version": VERSION, "from": origins}).encode()


@app.dataset(calendar=DAYS, version=VERSION, max_attempts=1)
async def east(ctx: Context, at: datetime) -> bytes:
    name = begin("east", at)
    while name in said("hold").split():  # noqa: ASYNC110 (another process says when it is enough)
        await asyncio.sleep(HOLD_SECONDS)
    return content(name)


@app.dataset(calendar=DAYS, version=VERSION, max_attempts=1)
def west(ctx: Context, at: datetime) -> bytes:
    return content(begin("west", at))


@app.dataset(
    calendar=DAYS,
    version=VERSION,
    needs=[east.lookback(2), west.exact()],
    max_attempts=1,
)
def pair(ctx: Context, at: datetime, east: Slices, west: Slices) -> bytes:
    name = begin("pair", at)
    while name in said("hold").split() and not ctx.cancelled:
        time.sleep(HOLD_SECONDS)
    return content(name, east, west)


@app.dataset(calendar=DAYS, version=VERSION, needs=[pair.exact()], batch=2, max_attempts=1)
def week(ctx: Context, at: Sequence[datetime], pair: Slices) -> dict[datetime, bytes]:
    return {moment: content(begin("week", moment), pair.of(moment)) for moment in at}


@app.dataset(calendar=DAYS, version=VERSION, max_attempts=1)
def alone(ctx: Context, at: datetime) -> bytes:
    return content(begin("alone", at))


if every := said("keep"):
    app.keep_current(week, alone, since="2024-01-01", every=every)
