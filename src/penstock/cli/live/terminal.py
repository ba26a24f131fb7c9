# SPDX-License-Identifier: Apache-2.0
"""Takes over a terminal for the live view, and restores it on every path.

The view uses the alternate screen, so that what was there before comes back. Ctrl-C, Ctrl-Z and
Ctrl-\\ stay signals; Ctrl-S does not stop us. Nothing is written to a terminal that is not ours at
the moment (a job in the background); one that takes nothing is drawn on when it goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import termios
from types import FrameType
from typing import Any

from penstock.output_queue import STALLED_SECONDS, output_queue

CLEAR = "\x1b[2J"
CLEAR_LINE = "\x1b[2K"
ENTER = f"\x1b[?1049h\x1b[?25l\x1b[?7l{CLEAR}"  # another screen, no cursor, no wrapped lines
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
#: For terminals that do not know these characters.
_ASCII = str.maketrans({"█": "#", "░": "-", "·": "|", "–": "-", "…": "~", "→": ">", "×": "x"})
SMALLEST = (20, 6)  # what is drawn on a terminal that does not tell its size


class Terminal:
    """Owns the state of one terminal. Main thread only."""

    def __init__(self, output_fd: int, input_fd: int | None, encoding: str = "utf-8") -> None:
        self._out = output_fd
        self._encoding = encoding
        self._in = input_fd
        self._before: list[Any] | None = None  # how typing worked
        self._handlers: dict[int, Any] = {}
        self._drawn: list[str] = []
        self._size = (0, 0)
        self.is_open = False
        self.is_gone = False

    def size(self) -> tuple[int, int]:
        """Columns and rows, now."""
        try:
            columns, rows = os.get_terminal_size(self._out)
        except OSError:
            return SMALLEST
        return (columns, rows) if columns > 0 and rows > 0 else SMALLEST

    @property
    def was_resized(self) -> bool:
        return self.size() != self._size

    def is_ours(self) -> bool:
        """Whether this process group is in the foreground."""
        return in_foreground(self._out)

    def open(self) -> None:
        """Take it over, if it is ours."""
        if self.is_open or self.is_gone or not self.is_ours():
            return
        if not self._handlers:
            atexit.register(self.close)
            for number in (signal.SIGTSTP, signal.SIGQUIT):
                handler = signal.getsignal(number)
                if handler is signal.SIG_DFL or callable(handler):
                    self._handlers[number] = signal.signal(number, self._step_aside)
        self.is_open = True
        self._take_typing()
        self._drawn, self._size = [], (0, 0)
        self._write(ENTER)

    def close(self) -> None:
        """Give it back for good; may be called again, and from anywhere."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
        atexit.unregister(self.close)
        self._leave()

    def typed(self) -> bytes:
        """What was typed; called when there is something to read."""
        if self._in is None or not self.is_open or not in_foreground(self._in):
            return b""
        try:
            data = os.read(self._in, 1024)
        except OSError:
            data = b""
        if not data:
            self._in = None  # its end, or a terminal that is gone: nobody types any more
        return data

    @property
    def typing_fd(self) -> int | None:
        return self._in if self.is_open and self._before is not None else None

    def draw(self, lines: list[str]) -> None:
        """Show these lines, each narrow enough; only what has changed is written."""
        if not self.is_open:
            return
        if not self.is_ours():  # it was put into the background without a signal
            self.is_open = False
            return
        size, clear = self.size(), ""
        if size != self._size:
            clear, self._drawn = CLEAR, []
        if (lines == self._drawn and not clear) or not output_queue(self._out).is_idle:
            return
        self._size = size
        self._write(clear + _changes(self._drawn, lines))
        self._drawn = lines

    def _leave(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        with contextlib.suppress(termios.error, OSError):
            termios.tcflow(self._out, termios.TCOON)  # or what follows would wait for Ctrl-Q
        self._write(LEAVE)
        output_queue(self._out).wait(STALLED_SECONDS, STALLED_SECONDS)
        if self._in is not None and self._before is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(self._in, termios.TCSANOW, self._before)
                termios.tcflush(self._in, termios.TCIFLUSH)  # or the shell would get our keys
        self._before = None

    def _take_typing(self) -> None:
        """Switch off line mode and echo."""
        if self._in is None or not in_foreground(self._in):
            return
        try:
            before = termios.tcgetattr(self._in)
            now = termios.tcgetattr(self._in)
            now[0] &= ~termios.IXON
            now[3] &= ~(termios.ICANON | termios.ECHO)
            now[6][termios.VMIN], now[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._in, termios.TCSANOW, now)
        except (termios.error, OSError):
            return
        self._before = before

    def _step_aside(self, number: int, frame: FrameType | None) -> None:
        """Give the terminal back before a signal stops or ends us; the next drawing takes it."""
        self._leave()
        former = self._handlers.get(number)
        if callable(former):  # the supervisor has more to stop than us
            former(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._step_aside)  # we go on

    def _write(self, text: str) -> None:
        """Write; a terminal that is gone is no reason to end the run."""
        if not self._encoding.lower().startswith("utf"):
            text = text.translate(_ASCII)
        queue = output_queue(self._out)
        queue.write(text.encode(self._encoding, "replace"))
        if queue.is_gone:
            self.is_open, self.is_gone = False, True


def in_foreground(fd: int) -> bool:
    """Whether this process group is in the foreground of a terminal."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False


def _changes(before: list[str], now: list[str]) -> str:
    """What turns one screen into the other."""
    rows = range(max(len(before), len(now)))
    shown = [now[row] if row < len(now) else "" for row in rows]
    known = [before[row] if row < len(before) else None for row in rows]
    return "".join(
        f"\x1b[{row + 1};1H{CLEAR_LINE}{shown[row]}" for row in rows if shown[row] != known[row]
    )
