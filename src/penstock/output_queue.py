# SPDX-License-Identifier: Apache-2.0
"""Output queue: bytes on their way to stdout, stderr or a pipe, written by a thread of their own.

A pipe that is full, a terminal that was stopped (Ctrl-S) and a log collector that hangs keep a
write waiting for ever. So who has something to say only adds it here: what does not fit is dropped
and counted, and the count is written once the reader goes on.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections import deque
from collections.abc import Callable

from penstock.clock import SystemClock

BYTES_MAX = 1 << 20  # that wait; what comes then is dropped until half of them are written
MOMENT_SECONDS = 0.1  # in which a reader that is there takes what is written
STALLED_SECONDS = 1.0  # at the end of a process: nothing was read for so long, and nothing will be
END_SECONDS = 10.0  # at the end of a process, however slowly it is read

_monotonic = SystemClock.monotonic


class OutputQueue:
    """Owns what waits to be written to one descriptor. Any thread may add to it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Of the same thread, a signal's handler or a finalizer may come in the midst: an RLock.
        self._changed = threading.Condition(threading.RLock())
        self._waiting: deque[bytes] = deque()
        self._size = 0  # bytes that wait, and those that are being written
        self._progress = 0  # bytes that were written
        self._dropped = 0
        self._is_stuck = False  # nobody has read for a moment: nobody waits for that any more
        self._thread: threading.Thread | None = None
        self.is_gone = False  # the last write has failed: nobody reads it any more

    @property
    def is_idle(self) -> bool:
        """All was written."""
        return not self._size

    def write(self, data: bytes) -> None:
        """Add it; a thread without an event loop gives a reader that is there a moment.

        So lines and what others write keep their order, and none is lost with a sudden death.
        """
        self.put(data)
        if not self._is_stuck and asyncio._get_running_loop() is None:
            self._is_stuck = not self.wait(MOMENT_SECONDS, MOMENT_SECONDS)

    def put(self, data: bytes) -> None:
        """Add it, or drop and count it if too much waits already; never waits."""
        with self._changed:
            most = BYTES_MAX // 2 if self._dropped else BYTES_MAX
            if self._size and self._size + len(data) > most:
                self._dropped += 1
                return
            self._note_dropped()
            self._add(data)
            if self._thread is None:
                self._start()
            self._changed.notify_all()

    def wait(self, stalled_seconds: float, seconds: float) -> bool:
        """Wait until all is written; False if nothing moves for so long, or it takes too long."""
        until = _monotonic() + seconds
        with self._changed:
            while self._size:
                before = self._progress
                rest = min(stalled_seconds, until - _monotonic())
                moves = rest > 0 and (self._changed.wait(rest) or self._progress != before)
                if not moves:
                    return self.is_idle
        return True

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="penstock-output", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter ends
            while self._waiting:
                self._write(self._waiting.popleft())
            self._size = 0
        else:
            self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                data = self._waiting.popleft()
            self._write(data)
            with self._changed:
                self._size -= len(data)
                if not self._waiting:
                    self._note_dropped()
                if not self._waiting:
                    self._size, self._is_stuck = 0, False
                self._changed.notify_all()

    def _add(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)

    def _note_dropped(self) -> None:
        count, self._dropped = self._dropped, 0
        if count:
            self._add(f"{_format(count)}\n".encode())

    def _write(self, data: bytes) -> None:
        while data:
            try:
                written = os.write(self._fd, data)
            except BlockingIOError:  # somebody who shares it has made it so
                select.select([], [self._fd], [])
                continue
            except OSError:
                self.is_gone = True
                return
            self.is_gone = False
            data = data[written:]
            self._progress += written


def format_dropped(count: int) -> str:
    """What is said of lines that were dropped."""
    lines = "log line was" if count == 1 else "log lines were"
    return f"{count:,} {lines} dropped, since nobody read them."


_format: Callable[[int], str] = format_dropped


def set_dropped_format(written: Callable[[int], str]) -> None:
    """How a line about dropped ones is written, in the format of the others."""
    global _format
    _format = written


_queues: dict[int, OutputQueue] = {}
os.register_at_fork(after_in_child=_queues.clear)  # their threads are not in the child


def output_queue(fd: int) -> OutputQueue:
    """The queue of a descriptor: one for all who write to it in this process."""
    return _queues.setdefault(fd, OutputQueue(fd))


def settle_output() -> None:
    """Give readers that are there a moment to take what was written."""
    for queue in list(_queues.values()):
        queue.wait(MOMENT_SECONDS, MOMENT_SECONDS)


def end_output() -> None:
    """The process ends: wait while somebody reads what was written, and not for others."""
    patience_seconds = STALLED_SECONDS  # once: two descriptors may well be the same pipe
    for queue in list(_queues.values()):
        if not queue.wait(patience_seconds, END_SECONDS):
            patience_seconds = MOMENT_SECONDS
