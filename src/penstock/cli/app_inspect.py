# SPDX-License-Identifier: Apache-2.0
"""Inspects an app from outside: imports it in a child process, or parses its file.

Completion and the doctor must not execute what a user wrote in their own process: the first has no
time for it, the second is run when it does not work. Constants can be parsed all the same.
"""

from __future__ import annotations

import ast
import inspect
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.app.app import Penstock
from penstock.config.budgets import budgets_of, unpriced_providers
from penstock.config.find_app import DEFAULT_FILE, find_app
from penstock.config.load import load_settings
from penstock.errors import PenstockError

IMPORT_SECONDS = 30.0
APP_CLASS = "Penstock"
SOURCE_BYTES_MAX = 1024 * 1024


class AppFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an import found; `problem` is one sentence if it failed."""

    name: str | None = None
    tasks: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    store_url: str | None = None
    providers: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # where its tasks are written
    unpriced: tuple[str, ...] = ()  # paid, with a budget of dollars over them, and no price at all
    budgets: int = 0
    problem: str | None = None
    details: str | None = None  # a traceback


class _Order(msgspec.Struct, frozen=True):
    flags: dict[str, str]
    folder: str


def probe_app(
    flags: dict[str, str], folder: Path, named: str, seconds: float = IMPORT_SECONDS
) -> AppFacts:
    """Import the app in a child process; `named` is what messages call it."""
    order = msgspec.json.encode(_Order(flags, str(folder)))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "penstock.cli.app_inspect"],
        cwd=folder,
        stdin=subprocess.PIPE,  # everybody on the machine can read arguments
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as child:
        try:
            said, _ = child.communicate(order, timeout=seconds)
        except subprocess.TimeoutExpired:
            return AppFacts(
                problem=f"The app {named!r} was not imported within {seconds:g} s; find out what "
                f"it waits for, with 'python {named}'."
            )
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
    try:
        return msgspec.json.decode(said, type=AppFacts)
    except msgspec.DecodeError:
        return AppFacts(
            problem=f"The app {named!r} ended its process while it was imported "
            f"({_end(child.returncode)}); find out where, with 'python -X faulthandler {named}'."
        )


def _end(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def main() -> None:
    """The child process: import the app, and write the result to the original stdout."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=_Order)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    answer = os.dup(1)
    os.dup2(2, 1)  # what the app prints is no answer
    with os.fdopen(answer, "wb") as asker:
        asker.write(msgspec.json.encode(_import(order)))
    os._exit(0)  # threads that the app has started need not end


def _file_of(function: object) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)  # type: ignore[arg-type]
    return "" if code is None else str(code.co_filename)


def _import(order: _Order) -> AppFacts:
    folder = Path(order.folder)
    try:
        named = load_settings(order.flags, os.environ, folder, {}).settings.app
        app = find_app(named, folder, Penstock)
        loaded = app.load(order.flags, folder=folder)
        return AppFacts(
            name=app.name,
            tasks=tuple(app.tasks),
            datasets=tuple(app.datasets),
            store_url=app.store_url(loaded),
            providers=tuple(app.providers),
            unpriced=tuple(unpriced_providers(loaded.settings)),
            budgets=len(budgets_of(loaded.settings)),
            files=tuple(sorted({_file_of(task.function) for task in app.tasks.values()})),
        )
    except (PenstockError, KeyboardInterrupt) as error:
        return AppFacts(problem=str(error) or "interrupted", details=traceback.format_exc())


@dataclass(frozen=True, slots=True)
class AppOutline:
    """What could be parsed; empty where nothing could."""

    name: str | None = None
    tasks: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()


def outline_of(named: str | None, folder: Path) -> AppOutline:
    """Read the app named by a file or `module:attribute` as text."""
    name = named or DEFAULT_FILE
    if not name.endswith(".py"):
        name = name.partition(":")[0].replace(".", "/") + ".py"
    try:
        if not (folder / name).is_file():  # a pipe would be waited for
            return AppOutline()
        with (folder / name).open("rb") as file:
            tree = ast.parse(file.read(SOURCE_BYTES_MAX))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return AppOutline()
    tasks, datasets = (tuple(_marked(tree, mark)) for mark in ("task", "dataset"))
    return AppOutline(_app_name(tree), tasks, datasets)


def _app_name(tree: ast.Module) -> str | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_part(node.func) == APP_CLASS and node.args:
            return _text(node.args[0])
    return None


def _marked(tree: ast.Module, decorator: str) -> list[str]:
    """The names of functions that a decorator of the app makes something of."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and _last_part(mark.func) == decorator:
                given = [_text(word.value) for word in mark.keywords if word.arg == "name"]
                found.append((given and given[0]) or node.name)
    return found


def _last_part(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


if __name__ == "__main__":
    main()
