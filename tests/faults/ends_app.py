# SPDX-License-Identifier: Apache-2.0
"""The app of F55: every way in which a body may end badly, as a task of every executor."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from penstock import Context, Penstock

EXECUTORS = ("async", "thread", "process")

app = Penstock("ends")
HUGE = 50 * 1024 * 1024  # characters of the longest message


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class Stubborn(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class NotText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Long(Exception):
    def __str__(self) -> str:
        return "é" * HUGE


class Ticking(Exception):
    """Raises when it is asked for its cause of waiting."""

    @property
    def retry_after(self) -> float:
        raise SystemExit("asked")


def raises(error: Callable[[], BaseException]) -> Callable[[], object]:
    def body() -> object:
        raise error()

    return body


def recurses() -> object:
    return recurses()


def many_groups() -> BaseException:
    """A group of groups: 20 objects that hold 10^20 errors."""
    group: ExceptionGroup[Exception] = ExceptionGroup("leaf", [ConnectionError("x")] * 10)
    for _ in range(20):
        group = ExceptionGroup("more", [group] * 10)
    return group


def own_cause() -> BaseException:
    error = ValueError("holds itself")
    error.__cause__ = error
    return error


def long_name() -> BaseException:
    error: Exception = type("N" * 100_000, (Exception,), {})("short")
    return error


def exits_in_a_thread() -> object:
    thread = threading.Thread(target=sys.exit, args=(3,))
    thread.start()
    thread.join()
    return 1


BAD: dict[str, Callable[[], object]] = {
    "system_exit": raises(lambda: SystemExit(0)),
    "sys_exit": lambda: sys.exit("bye"),
    "keyboard_interrupt": raises(lambda: KeyboardInterrupt()),
    "generator_exit": raises(lambda: GeneratorExit()),
    "base_exception": raises(lambda: BaseException("bare")),
    "cancelled_error": raises(lambda: asyncio.CancelledError("own doing")),
    "stop_iteration": raises(lambda: StopIteration(1)),
    "memory_error": raises(lambda: MemoryError()),
    "recursion_error": recurses,
    "mute": raises(lambda: Mute()),
    "stubborn": raises(lambda: Stubborn()),
    "not_text": raises(lambda: NotText()),
    "long": raises(lambda: Long()),
    "long_argument": raises(lambda: ValueError("x" * HUGE)),
    "unkeepable": raises(lambda: ValueError("\x00 \ud800 \x1b[2J")),
    "group": raises(lambda: ExceptionGroup("both", [ValueError("a"), KeyError("b")])),
    "base_group": raises(lambda: BaseExceptionGroup("worse", [SystemExit(1), ValueError()])),
    "many_groups": raises(many_groups),
    "own_cause": raises(own_cause),
    "long_name": raises(long_name),
    "ticking": raises(lambda: Ticking()),
}
GOOD: dict[str, Callable[[], object]] = {
    "exits_in_a_thread": exits_in_a_thread,
    "fine": lambda: 1,
}
DEADLY: dict[str, Callable[[], object]] = {"leaves": lambda: os._exit(0)}


def define(name: str, body: Callable[[], object], executor: str) -> None:
    """Make a body a task that tells in which process it ran."""

    def note() -> None:
        descriptor = os.open("bodies.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{name} {os.getpid()}\n".encode())
        os.close(descriptor)

    async def looped(ctx: Context) -> Any:
        note()
        return body()

    def threaded(ctx: Context) -> Any:
        note()
        return body()

    function: Callable[..., Any] = looped if executor == "async" else threaded
    options: dict[str, Any] = {"executor": executor} if executor == "process" else {}
    app.task(name=f"{name}_{executor}", max_attempts=1, **options)(function)


for _executor in EXECUTORS:
    for _name, _body in {**BAD, **GOOD, **DEADLY}.items():
        define(_name, _body, _executor)
