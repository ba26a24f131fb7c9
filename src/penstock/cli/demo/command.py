# SPDX-License-Identifier: Apache-2.0
"""`penstock demo`: its options, its folder, and the commands to try next."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.demo.story import FAST, FULL, ReaderLeft, Screen
from penstock.clock import SystemClock
from penstock.errors import UsageError
from penstock.terminal_text import escaped, one_line, warn
from penstock.worker.signals import borrowed_signals

EXIT_INTERRUPTED = 130


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="A short story, for CI.")] = False,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep", metavar="DIR", help="Work in this new folder, and leave it for a look."
        ),
    ] = None,
) -> int:
    """See a run meet 429s, die by kill -9, and go on; offline, in under a minute."""
    from penstock.cli.demo.story import Story, StoryStopped  # takes a while to import

    clock, signals = SystemClock(), list[str]()
    screen = Screen(clock)
    # Signals are only noted: an exception in the middle of anything could leave something behind.
    with borrowed_signals(lambda: signals.append("stop")):
        try:
            with _workplace(keep) as folder:
                sizes = FAST if fast else FULL
                problems = Story(sizes, folder, screen, clock, lambda: bool(signals)).tell()
            for line in _next(keep):
                screen.line(line)
        except ReaderLeft:
            return 0
        except StoryStopped:
            screen.close()
            left = "removed" if keep is None else "kept"
            warn(f"Interrupted: the processes of the demo are ended, its folder is {left}.")
            return EXIT_INTERRUPTED
        finally:
            screen.close()
    for problem in problems:
        warn(f"The demo does not add up: {one_line(problem)}. This is our bug: report it.")
    return 1 if problems else 0


@contextmanager
def _workplace(keep: str | None) -> Iterator[Path]:
    """The folder of the demo; it is removed at the end unless --keep names it."""
    if keep is None:
        try:
            folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        except OSError as error:
            raise UsageError(
                f"No temporary folder can be made: {error.strerror}. Name one with --keep DIR."
            ) from None
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    path = Path(keep)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{keep!r} is not an empty folder; name a new one with --keep.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"The folder {keep!r} cannot be made: {error.strerror}. Name another."
        ) from None
    yield path.resolve()


def _next(keep: str | None) -> list[str]:
    """The commands to try next."""
    if keep is None:
        commands = {
            "penstock demo --keep story": "the same, and its folder stays for a look",
            "penstock init hello": "a project of your own",
        }
    else:
        commands = {
            f"cd {escaped(shlex.quote(keep))}": "pipeline.py is all that a user writes",
            "penstock queue stats": "the jobs by state",
            "penstock queue list --state done": "each of them",
            "penstock queue show document-1": "one of them, with its history",
        }
    width = max(map(len, commands))
    told = [f"  {command:<{width}}  # {what}" for command, what in commands.items()]
    return ["", "Next:", *told]
