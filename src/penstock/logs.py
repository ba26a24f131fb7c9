# SPDX-License-Identifier: Apache-2.0
"""Logging set-up: text or JSON lines on stderr, with secrets redacted.

Every line of ours, of libraries and of tasks is written here: without secrets, and on one line.
In a process that works, no line waits for its reader (`queue_output`).
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType

import msgspec

from penstock.output_queue import format_dropped, set_dropped_format
from penstock.redaction.content_guard import LOG_ATTRIBUTE, QUOTED
from penstock.redaction.secrets import REDACTED, redacted
from penstock.terminal_text import (
    escaped,
    escaped_lines,
    print_error,
    safe_json,
    warn_of_traceback,
)

GROUP_ERRORS_MAX = 100  # of one group, with a traceback each
SHOWN_LENGTH = 32 * 1024  # characters of each end of a traceback; a message may have any length
MARGIN = 8 * 1024  # characters beside each that are looked at too
HTTP_LIBRARIES = ("httpx2", "httpx")
TELL_TALES = ("openai", "anthropic", "httpcore2", "httpcore")

_OURS = "penstock."
_MARK = re.compile(f"{re.escape(QUOTED)}|{re.escape(REDACTED)}")


class LogLevel(StrEnum):
    """The least level of lines that are shown."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def set_up_logging(level: str, log_format: str) -> None:
    """Send every logger's lines to stderr; earlier set-ups are replaced."""
    handler = _CurrentStderr()
    lines = _JsonLines() if log_format == "json" else _TextLines()
    handler.setFormatter(lines)
    set_dropped_format(lambda count: lines.format(_dropped(count)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # asyncio tells about itself at info and debug, which is nobody's news here.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    for library in HTTP_LIBRARIES:  # a line for every request, which only --log-level debug shows
        least = logging.NOTSET if root.level <= logging.DEBUG else logging.WARNING
        logging.getLogger(library).setLevel(least)
    for library in TELL_TALES:  # at debug they write out prompts, and every header of a reply
        logging.getLogger(library).setLevel(max(root.level, logging.INFO))


class _CurrentStderr(logging.Handler):
    """Writes to what stderr is now: a live display puts itself in front of it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print_error(self.format(record))
        except Exception:  # a message that does not fit its arguments
            warn_of_traceback(traceback.format_exc())


def _dropped(count: int) -> logging.LogRecord:
    said = format_dropped(count)
    return logging.LogRecord("penstock.log", logging.WARNING, "", 0, said, None, None)


def layer_of(logger: str) -> str:
    """What a line is named by: `worker` for `penstock.worker`, others by their own name."""
    return logger.removeprefix(_OURS)


def _time_of(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextLines(logging.Formatter):
    """`2026-01-05T12:04:10.123Z WARNING worker: …`, one line each; only a traceback has more."""

    def format(self, record: logging.LogRecord) -> str:
        speaker = escaped(f"{record.levelname} {layer_of(record.name)}")
        line = f"{_time_of(record)} {speaker}: {escaped(redacted(record.getMessage()))}"
        if record.exc_info:
            line += "\n" + escaped_lines(_traceback(self, record.exc_info, record))
        return line


class _JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "at": _time_of(record),
            "level": record.levelname.lower(),
            "layer": _encodable(layer_of(record.name)),
            "message": _encodable(redacted(record.getMessage())),
        }
        if record.exc_info:
            document["error"] = _encodable(_traceback(self, record.exc_info, record))
        return safe_json(msgspec.json.encode(document).decode())


def _traceback(formatter: logging.Formatter, raised: _Raised, record: logging.LogRecord) -> str:
    """A traceback without secrets and quotes; of a long one where it began, and what it says."""
    _, error, trace = raised
    if error is not None and _holds_many(error):  # to write all of them out may take for ever
        said = f"{type(error).__qualname__}: {error}, too many to show"
        text = "".join([*traceback.format_tb(trace), said])
    else:
        text = formatter.formatException(raised)
    without = getattr(record, LOG_ATTRIBUTE, None) or _as_it_is
    if len(text) <= 2 * (SHOWN_LENGTH + MARGIN):
        text = without(redacted(text))  # before it is cut, or half a secret would be left
        if len(text) <= 2 * SHOWN_LENGTH:
            return text
        head, tail = text[:SHOWN_LENGTH], text[-SHOWN_LENGTH:]
    else:
        head, tail = _ends_of(text, lambda end: without(redacted(end)))
    return f"{head}\n… {len(text) - len(head) - len(tail):,} characters …\n{tail}"


def _as_it_is(text: str) -> str:
    return text


def _ends_of(text: str, cleaned: Callable[[str], str]) -> tuple[str, str]:
    """Both ends of a text that is too long to be looked at as a whole.

    A margin beside each is looked at too. It is not shown, since half a secret may stand there,
    but up to a mark: that stands for a whole one.
    """
    length = len(text)
    blank = text.rfind(" ", SHOWN_LENGTH, SHOWN_LENGTH + MARGIN)
    head = cleaned(text[: blank if blank >= 0 else SHOWN_LENGTH + MARGIN])
    blank = text.find(" ", length - SHOWN_LENGTH - MARGIN, length - SHOWN_LENGTH)
    tail = cleaned(text[blank if blank >= 0 else length - SHOWN_LENGTH - MARGIN :])
    marked = [match.span() for match in _MARK.finditer(head)]
    head = head[: max(len(head) - MARGIN, marked[-1][1] if marked else 0)]
    first = _MARK.search(tail)
    tail = tail[min(MARGIN, first.start() if first else MARGIN) :]
    return head[:SHOWN_LENGTH], tail[-SHOWN_LENGTH:]


def _holds_many(error: BaseException) -> bool:
    """Whether a group holds more errors than anybody would read, inner groups included."""
    todo, seen = [error], 0
    while todo and seen <= GROUP_ERRORS_MAX:
        inner = todo.pop()
        seen += 1
        if isinstance(inner, BaseExceptionGroup):
            todo += inner.exceptions[:GROUP_ERRORS_MAX]
    return seen > GROUP_ERRORS_MAX


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
