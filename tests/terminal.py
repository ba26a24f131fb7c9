# SPDX-License-Identifier: Apache-2.0
"""How does a test look at what a program shows on a terminal, and type on it?

A small terminal of our own: it knows the orders that the live view gives, and fails on others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ORDER = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")


class Screen:
    """What a terminal shows: two screens, a cursor that may be hidden, lines that may wrap."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.modes = {"1049": False, "25": True, "7": True, "2004": False}
        self.colours = 0  # orders to change them
        self._screens = {True: self._blank(), False: self._blank()}
        self._row = self._column = 0
        self._aside = (0, 0)
        self._rest = ""
        self.scrolled: list[str] = []  # what has left the first screen at its top

    def _blank(self) -> list[list[str]]:
        return [[" "] * self.columns for _ in range(self.rows)]

    @property
    def is_alternate(self) -> bool:
        return self.modes["1049"]

    def text(self) -> str:
        """The lines of the screen that is shown, without trailing blanks."""
        lines = ["".join(row).rstrip() for row in self._screens[self.is_alternate]]
        return "\n".join(lines).rstrip("\n")

    def resize(self, columns: int, rows: int) -> None:
        """As most terminals do: what does not fit is lost, nothing is wrapped anew."""
        self.columns, self.rows = columns, rows
        for which, old in self._screens.items():
            new = self._blank()
            for row, line in enumerate(old[:rows]):
                new[row][: len(line)] = line[:columns]
                del new[row][columns:]
            self._screens[which] = new
        self._row, self._column = min(self._row, rows - 1), min(self._column, columns - 1)
        self._aside = min(self._aside[0], rows - 1), min(self._aside[1], columns - 1)

    def feed(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                order = _ORDER.match(text, at)
                if order is None:
                    assert len(text) - at < 16, f"an unknown order: {text[at : at + 16]!r}"
                    self._rest = text[at:]
                    return
                self._obey(order[1], order[2], order[3])
                at = order.end()
            else:
                self._show(text[at])
                at += 1

    def _obey(self, private: str, numbers: str, final: str) -> None:
        cells = self._screens[self.is_alternate]
        if private:
            assert numbers in self.modes, f"an unknown mode: {numbers}"
            self.modes[numbers] = final == "h"
            if numbers == "1049":  # each screen has its own cursor
                here = self._row, self._column
                (self._row, self._column), self._aside = self._aside, here
        elif final == "m":
            self.colours += 1
        elif final == "H":
            row, column = (int(n) for n in (numbers or "1;1").split(";"))
            self._row, self._column = min(row, self.rows) - 1, min(column, self.columns) - 1
        elif final == "J" and numbers == "2":
            self._screens[self.is_alternate] = self._blank()
        elif final == "K" and numbers == "2":
            cells[self._row] = [" "] * self.columns
        else:
            raise AssertionError(f"an unknown order: {numbers}{final}")

    def _show(self, character: str) -> None:
        cells = self._screens[self.is_alternate]
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
        elif character.isprintable():
            if self._column >= self.columns:
                if not self.modes["7"]:
                    self._column = self.columns - 1
                else:
                    self._column = 0
                    self._down()
                    cells = self._screens[self.is_alternate]
            cells[self._row][self._column] = character
            self._column += 1
        elif character != "\x07":
            raise AssertionError(f"a terminal was sent {character!r}")

    def _down(self) -> None:
        cells = self._screens[self.is_alternate]
        if self._row < self.rows - 1:
            self._row += 1
            return
        gone = cells.pop(0)
        if not self.is_alternate:
            self.scrolled.append("".join(gone).rstrip())
        cells.append([" "] * self.columns)


class ProgramOnTerminal:
    """A program on a terminal of its own, in the foreground, as a shell would start it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: dict[str, str],
        columns: int = 100,
        rows: int = 30,
    ) -> None:
        self.screen = Screen(columns, rows)
        self._master, self._slave = os.openpty()
        self.written = ""
        self._set_size(columns, rows)
        self.modes_before = termios.tcgetattr(self._slave)
        # The leader of a session gets the first terminal that it opens.
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$@" <"$0" >"$0" 2>"$0"', os.ttyname(self._slave), *command],
            cwd=cwd,
            env=env,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> ProgramOnTerminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    @property
    def modes(self) -> list[Any]:
        """How typing works now."""
        return termios.tcgetattr(self._slave)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        self.read()
        self.screen.resize(columns, rows)
        self._set_size(columns, rows)

    def _set_size(self, columns: int, rows: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)  # the kernel sends SIGWINCH

    def read(self, seconds: float = 0.0) -> str:
        """Show what was written by now; the text of the screen."""
        while select.select([self._master], [], [], seconds)[0]:
            text = os.read(self._master, 65536).decode("utf-8", "replace")
            self.written += text
            self.screen.feed(text)
            seconds = 0.0
        return self.screen.text()

    def wait_for(self, pattern: str, seconds: float = 240.0) -> str:
        """The screen, once it shows something."""
        until = time.monotonic() + seconds
        while not re.search(pattern, text := self.read(0.02), re.MULTILINE):
            assert time.monotonic() < until, f"never seen: {pattern!r}; but:\n{text}"
            assert self.process.poll() is None or self.read(0.2) != text, f"it ended:\n{text}"
        return text

    def ended(self, seconds: float = 240.0) -> int:
        """Wait for its end, reading on: nobody may have to wait for a terminal."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            self.read(0.02)
            assert time.monotonic() < until, f"it does not end:\n{self.screen.text()}"
        self.read(0.02)
        return self.process.returncode
