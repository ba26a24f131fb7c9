# SPDX-License-Identifier: Apache-2.0
"""Where do log lines go, and which layer speaks?"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from penstock.cli.text import escaped

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

_OURS = "penstock."


def set_up_logging(level: str, log_format: str) -> None:
    """Send every logger's lines to stderr; earlier set-ups are replaced."""
    handler = _CurrentStderr()
    handler.setFormatter(_JsonLines() if log_format == "json" else _TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # asyncio tells about itself at info and debug, which is nobody's news here.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is now: a live display puts itself in front of it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """A line that cannot be written is lost; the work is not disturbed."""


def layer_of(logger: str) -> str:
    """What a line is named by: `worker` for `penstock.worker`, others by their own name."""
    return logger.removeprefix(_OURS)


def _time_of(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextLines(logging.Formatter):
    """`2026-01-05T12:04:10.123Z WARNING worker: …`, one line each; only a traceback has more."""

    def format(self, record: logging.LogRecord) -> str:
        level, layer = record.levelname, layer_of(record.name)
        line = f"{_time_of(record)} {level} {layer}: {escaped(record.getMessage())}"
        if record.exc_info:
            details = self.formatException(record.exc_info).splitlines()
            line = "\n".join([line, *map(escaped, details)])
        return line


class _JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "at": _time_of(record),
            "level": record.levelname.lower(),
            "layer": layer_of(record.name),
            "message": _encodable(record.getMessage()),
        }
        if record.exc_info:
            document["error"] = _encodable(self.formatException(record.exc_info))
        return msgspec.json.encode(document).decode()


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
