# SPDX-License-Identifier: Apache-2.0
"""Runs a coroutine on an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from penstock.errors import UsageError

LEFTOVER_SECONDS = 0.2  # for bodies that still run when the loop is closed; they were told before

T = TypeVar("T")


def refuse_running_loop() -> None:
    """A loop cannot run inside another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError("app.run() cannot be called on a running loop; await app.run_async() instead.")


def run_on_new_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; bodies that swallow their cancellation are left behind, not waited for."""
    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=LEFTOVER_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
