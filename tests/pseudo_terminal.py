# SPDX-License-Identifier: Apache-2.0
"""How does a test see what a command writes to a terminal?"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROWS, COLUMNS = 40, 120


class OnTerminal:
    """A command whose streams are a terminal; what it writes is read from here."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process = process
        self._ours = ours
        self.seen = b""

    def read_until(self, text: bytes | None) -> None:
        """Read up to a word, or (None) until nobody can write any more."""
        while text is None or text not in self.seen:
            try:
                part = os.read(self._ours, 4096)
            except OSError:
                return
            if not part:
                return
            self.seen += part


@contextmanager
def on_terminal(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None
) -> Iterator[OnTerminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**env, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield OnTerminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
