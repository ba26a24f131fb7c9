# SPDX-License-Identifier: Apache-2.0
"""Text for terminals: control characters escaped, JSON documents, tables, durations, money.

Keys, messages and results come from anywhere; a control character in them could clear a screen
or hide a line. What people read is escaped here; what machines read is one JSON document on stdout.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TextIO

import msgspec

from penstock.clock import to_datetime
from penstock.errors import PenstockError
from penstock.output_queue import OutputQueue, output_queue
from penstock.redaction.secrets import redacted

#: What JSON leaves as it is and a terminal may obey: DEL, C1 controls, changes of direction, line
#: and paragraph ends, and what cannot be seen at all.
_TERMINAL_ORDERS = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
    "|[\U000e0000-\U000e007f]"
)

LINE_MAX = 110  # columns of a message
_WORDS = re.compile(r"'penstock [^']*'\S*|\S+")

_NOBODY_READS = frozenset({errno.EPIPE, errno.EIO})  # a closed pipe, a terminal that is gone


def escaped(text: str) -> str:
    """The text on one line, with every unprintable character shown as its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def one_line(text: str) -> str:
    """A message on one line: line breaks become spaces, the rest is escaped."""
    return escaped(" ".join(text.split()))


def say(text: str = "") -> bool:
    """Print a line for people on stdout; nobody listening is no error, but answers False."""
    return write(f"{text}\n")


def escaped_lines(text: str) -> str:
    """A text of several lines, such as a traceback, with each of them escaped."""
    return "\n".join(map(escaped, text.rstrip("\n").split("\n")))


def warn(text: str) -> None:
    """Print a line about something on stderr, now, without secrets."""
    print_error(redacted(text))


def warn_sentence(text: str) -> None:
    """Print an error on stderr; on a terminal in lines of at most LINE_MAX columns."""
    for line in folded(text) if sys.stderr.isatty() else [text]:
        warn(line)


def folded(text: str) -> list[str]:
    """Lines of at most LINE_MAX columns, cut between words; a command to type stays in one line."""
    lines = [""]
    for word in _WORDS.findall(text):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > LINE_MAX:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def warn_of_traceback(text: str) -> None:
    """Print a traceback on stderr, without secrets and without orders to a terminal."""
    print_error(escaped_lines(redacted(text)))


def print_error(text: str) -> None:
    """Print on stderr what is safe already."""
    print_line(text, sys.stderr)


def print_line(text: str, stream: TextIO) -> None:
    """Print what is safe already; nobody listening is no error."""
    queue = _queue_of(stream) if _is_queued else None
    try:
        if queue is None:
            print(text, file=stream, flush=True)
        else:
            queue.write(f"{text}\n".encode(stream.encoding or "utf-8", "backslashreplace"))
    except (OSError, ValueError):  # closed, or its reader is gone
        return


_is_queued = False


def queue_output() -> None:
    """From now on no line waits for its reader: this process works, whoever looks at it or not."""
    global _is_queued
    _is_queued = True


def _queue_of(stream: TextIO) -> OutputQueue | None:
    """The queue of a stream; None if it is none of the system's, but stands in for one."""
    try:
        return output_queue(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return None


def print_document(document: Mapping[str, object]) -> None:
    """Print the one JSON document of a command."""
    write(format_document(document, indent=2) + "\n")


def format_document(document: Mapping[str, object], *, indent: int) -> str:
    """A JSON document that a terminal may be shown; an indent of 0 is one line."""
    return safe_json(msgspec.json.format(msgspec.json.encode(document), indent=indent).decode())


def safe_json(text: str) -> str:
    """The same document without a character that a terminal may obey."""
    return _TERMINAL_ORDERS.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def write(text: str) -> bool:
    """Write to stdout as it is; False: nobody reads any more, and what follows goes nowhere."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _NOBODY_READS:
            raise PenstockError(f"Standard output cannot be written: {error.strerror}.") from None
        redirect_to_devnull(sys.stdout)
        return False
    return True


def redirect_to_devnull(stream: TextIO) -> None:
    """Its reader has seen enough: what it holds and gets must not change the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def open_missing_streams() -> None:
    """Give the process the three streams that whoever started it may have closed."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free one: this number. Nobody can read from a stdin that was closed.
            descriptor = os.open(os.devnull, os.O_WRONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (for good)


def is_open(stream: TextIO) -> bool:
    """Whether this stream can be read; not if it was closed when the process began."""
    try:
        how = fcntl.fcntl(stream.fileno(), fcntl.F_GETFL)
    except (OSError, ValueError):  # a test has replaced it
        return not stream.closed
    return how & os.O_ACCMODE != os.O_WRONLY


def escape_unencodable_output() -> None:
    """Show what a stream's encoding cannot hold as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a test may have replaced the stream
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def iso_time(micros: int | None) -> str | None:
    """A stored time as ISO 8601 in UTC."""
    if micros is None:
        return None
    return to_datetime(micros).isoformat(timespec="microseconds").replace("+00:00", "Z")


def format_duration(seconds: float) -> str:
    """A duration for people: 0.4 s, 12 s, 3:20, 2:03:20."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    text = str(timedelta(seconds=round(seconds)))
    return text.removeprefix("0:").removeprefix("0")


def format_table(
    head: Sequence[str], rows: Iterable[Sequence[str | int]], *, left: int = 1
) -> list[str]:
    """Lines of a plain table; the first `left` columns are texts, the others stand on the right."""
    cells = [
        [f"{cell:,}" if isinstance(cell, int) else escaped(cell) for cell in row] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *cells)
    ]


def format_dollars(micros: int) -> str:
    """Money for people: $0.0042, $0.02, $1,204.50."""
    amount = micros / 1_000_000
    if abs(amount) >= 1:
        return f"${amount:,.2f}"
    whole, _, part = f"{amount:.4f}".partition(".")
    return f"${whole}.{part.rstrip('0'):0<2}"


def format_spending(micros: int, tokens: int) -> str:
    """What was spent: money where prices are known, else the tokens that were counted."""
    if micros:
        return format_dollars(micros)
    return f"{tokens:,} tokens" if tokens else "nothing"
