# SPDX-License-Identifier: Apache-2.0
"""`penstock queue import`: accepts the jobs of a file; bad lines are reported, good ones are kept.

Streaming: a batch is one transaction. A batch that the store refuses is halved and tried again,
until only the line to blame is lost. Keys make a second import of the same file go on where the
first one stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from types import FrameType
from typing import Annotated, Any, BinaryIO, TypeVar

import msgspec
import typer

from penstock.app.app import Penstock
from penstock.cli.completion import complete_task
from penstock.cli.target import COUNTED_MAX, AppOption, JsonOption, StoreOption, Target
from penstock.clock import parse_duration
from penstock.definitions.request import to_new_job
from penstock.errors import EnqueueRefused, NotJson, PayloadError, PenstockError, UsageError
from penstock.model import strict_json
from penstock.model.job import PAYLOAD_BYTES_MAX, Edge, NewJob
from penstock.model.views import EnqueueReport
from penstock.redaction.secrets import redacted
from penstock.stores.retry import repeat_unknown
from penstock.stores.store_future import Reply
from penstock.terminal_text import is_open, one_line, print_document, say, warn

LINE_BYTES_MAX = 2 * 1024 * 1024 + 64 * 1024  # a payload with every character escaped, and the rest
KEPT_BEFORE = "the jobs before are kept. Run the same command again."
BATCH_LINES = 1_000  # of one transaction
BATCH_BYTES = 8 * 1024 * 1024  # of one transaction, as the file spells them
BAD_LINES_SHOWN = 20  # the rest is only counted
_BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"

#: Fields that say something about the job; whatever else a line holds is its payload.
_ABOUT = ("task", "payload", "priority", "after", "delay", "group")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank."""

    number: int
    content: bytes
    bytes_read: int  # its whole length in the file
    is_too_long: bool = False
    indent: int = 0  # characters in front of the content
    is_cut: bool = False  # the file ends without the end of this line


class BadLine(PayloadError):
    """What is wrong with a line, and in which column, counted in characters from 1."""

    def __init__(self, problem: str, column: int) -> None:
        super().__init__(f"column {column}: {problem}")
        self.problem = problem
        self.column = column


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    """Cut a stream into lines; a line that is too long is passed over, not kept."""
    number = 0
    while piece := stream.readline(LINE_BYTES_MAX + 1):
        number += 1
        size, too_long = len(piece), len(piece) > LINE_BYTES_MAX
        while too_long and not piece.endswith(b"\n"):
            piece = stream.readline(LINE_BYTES_MAX)
            size += len(piece)
            if not piece:
                break
        is_cut = not piece.endswith(b"\n")
        content = b"" if too_long else piece.rstrip(_BLANKS)
        if number == 1:
            content = content.removeprefix(_BOM)
        indent = len(content) - len(content.lstrip(_BLANKS))
        if len(content) > indent or too_long:
            yield Line(number, content[indent:], size, too_long, indent, is_cut)


def to_job(line: Line, app: Penstock, default_task: str | None) -> NewJob:
    """Turn a line into a job.

    Raises:
        PenstockError: what is wrong with it, without the line's number.
    """
    if line.is_too_long:
        raise PayloadError(f"{line.bytes_read:,} bytes; a line has at most {LINE_BYTES_MAX:,}")
    fields = _object(line)
    key = _take_key(fields)
    task = fields.pop("task", default_task)
    if not isinstance(task, str):
        raise PayloadError(
            "no task; write a field 'task', or name one with --task"
            if task is None
            else f"the task must be text, got {_shown(task)}"
        )
    said = {name: fields.pop(name) for name in _ABOUT if fields.get(name, _ABOUT) is not _ABOUT}
    payload = _payload(said.get("payload", _ABOUT), fields)
    request = app.registry.find_task(task).job_from_json(payload)
    return to_new_job(
        request.with_options(
            key=key,
            after=_after(said.get("after")),
            priority=_whole("priority", said.get("priority")),
            delay=_delay(said.get("delay")),
            group=_text("group", said.get("group")),
        )
    )


def _object(line: Line) -> dict[str, Any]:
    try:
        text = line.content.decode()
    except UnicodeDecodeError as error:
        before = line.content[: error.start].decode()
        raise BadLine("not UTF-8", line.indent + len(before) + 1) from None
    try:
        document = strict_json.loads(text)
    except NotJson as error:
        hint = "; the file ends inside this line" if line.is_cut else ""
        raise BadLine(f"not JSON: {error.problem}{hint}", line.indent + error.column) from None
    if not isinstance(document, dict):
        raise PayloadError(f"a line must be a JSON object, got {_shown(document)}")
    return document


def _take_key(fields: dict[str, Any]) -> str:
    name = "key" if "key" in fields else "id"
    key = fields.pop(name, None)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if key is None:
        raise PayloadError("no key; write a field 'key' or 'id'")
    if not isinstance(key, str):
        raise PayloadError(f"the {name} must be text or a whole number, got {_shown(key)}")
    return key


def _payload(payload: object, others: dict[str, Any]) -> str:
    if payload is _ABOUT:
        return strict_json.dumps(others, limit_bytes=PAYLOAD_BYTES_MAX)
    if not isinstance(payload, dict):
        raise PayloadError(f"the payload must be an object, got {_shown(payload)}")
    if others:
        raise PayloadError(
            f"unknown field {next(iter(others))!r} beside 'payload'; put it inside, or take it out"
        )
    return strict_json.dumps(payload, limit_bytes=PAYLOAD_BYTES_MAX)


def _after(after: object) -> list[Edge] | None:
    if after is None:
        return None
    listed = after if isinstance(after, list) else [after]
    try:
        return [Edge(x) if isinstance(x, str) else msgspec.convert(x, Edge) for x in listed]
    except msgspec.ValidationError:
        raise PayloadError(f"'after' must be a list of keys, got {_shown(after)}") from None


def _whole(name: str, value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise PayloadError(f"the {name} must be a whole number, got {_shown(value)}")


def _text(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise PayloadError(f"the {name} must be text, got {_shown(value)}")


def _delay(value: object) -> float | None:
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise PayloadError(f"the delay {error}, got {_shown(value)}") from None


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}…"


@contextmanager
def interrupts_between(steps: Iterator[T]) -> Iterator[Iterator[T]]:
    """Hand the steps on; KeyboardInterrupt comes only while one is waited for.

    What is done with a step is done to its end, so that whoever counts has counted right. A second
    Ctrl-C comes through at once. In other threads, and where somebody else handles the signal,
    nothing is changed.
    """
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not ours:
        yield steps
        return
    gate = _Gate()
    signal.signal(signal.SIGINT, gate.note)
    try:
        yield gate.through(steps)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Gate:
    """Knows whether a step is being waited for, and whether the signal came meanwhile."""

    def __init__(self) -> None:
        self._waiting = False
        self._came = False

    def note(self, number: int, frame: FrameType | None) -> None:
        again, self._came = self._came, True
        if self._waiting or again:
            raise KeyboardInterrupt

    def through(self, steps: Iterator[T]) -> Iterator[T]:
        while True:
            self._waiting = True
            if self._came:
                raise KeyboardInterrupt
            try:
                step = next(steps)
            except StopIteration:
                return
            finally:
                self._waiting = False
            yield step


class OnError(StrEnum):
    """What to do after a bad line."""

    SKIP = "skip"
    STOP = "stop"


@dataclass(slots=True)
class Tally:
    """What has become of the lines so far."""

    new: int = 0
    known: int = 0
    differing: int = 0  # keys that stood for another task or other arguments
    bad: int = 0
    last_line: int = 0
    last_bad: int = 0  # the line
    shown: list[dict[str, str | int | None]] = field(default_factory=list)

    def note_bad(self, number: int, error: UsageError) -> None:
        self.bad += 1
        self.last_bad = number
        if len(self.shown) < BAD_LINES_SHOWN:
            column = error.column if isinstance(error, BadLine) else None
            problem = error.problem if isinstance(error, BadLine) else str(error)
            problem = one_line(redacted(problem)).rstrip(".")
            self.shown.append({"line": number, "column": column, "message": problem})
            place = f"line {number}" if column is None else f"line {number}, column {column}"
            warn(f"{place}: {problem}.")

    def __str__(self) -> str:
        others = f" ({self.differing:,} with other arguments)" if self.differing else ""
        return f"{self.new:,} new, {self.known:,} known{others}, {self.bad:,} bad"


class _Stopped(Exception):
    """A bad line was met, and the user wants to stop there."""


@dataclass(slots=True)
class Batch:
    """Jobs of one transaction, with the lines they came from."""

    jobs: list[NewJob] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    size_bytes: int = 0
    reply: Reply[EnqueueReport] | None = None

    def add(self, job: NewJob, line: Line) -> None:
        self.jobs.append(job)
        self.lines.append(line.number)
        self.size_bytes += line.bytes_read

    @property
    def is_full(self) -> bool:
        return len(self.jobs) >= BATCH_LINES or self.size_bytes >= BATCH_BYTES


class Importer:
    """Owns the batches on their way: one is being written while the next is read."""

    def __init__(self, app: Penstock, default_task: str | None, on_error: OnError) -> None:
        self._app = app
        self._store = app.store
        self._default_task = default_task
        self._stops = on_error is OnError.STOP
        self._batch = Batch()
        self._sent: Batch | None = None
        self.tally = Tally()

    def run(self, lines: Iterator[Line], progress: Callable[[int], None]) -> None:
        """Import all lines; in the end nothing is on its way any more, also after Ctrl-C."""
        try:
            for line in lines:
                self._take(line)
                progress(line.bytes_read)
            self._send()
        except _Stopped:
            return
        except (KeyboardInterrupt, OSError):
            with contextlib.suppress(_Stopped):
                self._settle()
            raise
        with contextlib.suppress(_Stopped):
            self._settle()

    def _take(self, line: Line) -> None:
        self.tally.last_line = line.number
        try:
            job = to_job(line, self._app, self._default_task)
        except UsageError as error:
            if self._stops:  # what stands before it is kept
                self._send()
                self._settle()
            self._bad(line.number, error)
            return
        self._batch.add(job, line)
        if self._batch.is_full:
            self._send()

    def _send(self) -> None:
        batch, self._batch = self._batch, Batch()
        if not batch.jobs:
            return
        self._settle()  # first: of two lines with one key the earlier wins, also after a refusal
        batch.reply = self._store.enqueue(batch.jobs)
        self._sent = batch
        if self._stops:
            self._settle()  # nothing behind a bad line may be accepted

    def _settle(self) -> None:
        """Wait for the batch that was sent."""
        batch, self._sent = self._sent, None
        if batch is not None and batch.reply is not None:
            self._accept(batch.jobs, batch.lines, batch.reply)

    def _accept(self, jobs: list[NewJob], lines: list[int], reply: Reply[EnqueueReport]) -> None:
        """Count what was accepted; what was refused is halved until one line is to blame."""
        try:
            store = self._store
            report = repeat_unknown(lambda: store.enqueue(jobs), store, KEPT_BEFORE, reply)
        except EnqueueRefused as error:
            if len(jobs) == 1:
                self._bad(lines[0], error)
                return
            middle = len(jobs) // 2
            for half in (slice(middle), slice(middle, None)):
                self._accept(jobs[half], lines[half], self._store.enqueue(jobs[half]))
            return
        self.tally.new += len(report.created)
        self.tally.known += len(jobs) - len(report.created)
        self.tally.differing += len(report.differing)

    def _bad(self, number: int, error: UsageError) -> None:
        self.tally.note_bad(number, error)
        if self._stops:
            raise _Stopped


def import_jobs(
    file: Annotated[
        str, typer.Argument(metavar="FILE.jsonl", help="A job on each line; - for standard input.")
    ],
    task: Annotated[
        str | None,
        typer.Option(
            "--task", help="The task of lines that name none.", autocompletion=complete_task
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, max=COUNTED_MAX, help="Read at most this many jobs."),
    ] = None,
    on_error: Annotated[
        OnError, typer.Option("--on-error", help="After a bad line: continue, or stop there.")
    ] = OnError.SKIP,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Accept the jobs of a file; the same command again goes on where it stopped."""
    with (
        _opened(file) as stream,
        Target.named(app=app, store=store).opened_app() as opened,
        _progress(stream, shown=not as_json) as progress,
    ):
        if task is not None:
            opened.registry.find_task(task)
        importer = Importer(opened, task, on_error)
        tally = importer.tally
        try:
            with interrupts_between(read_lines(stream)) as lines:
                importer.run(islice(lines, limit), progress)
        except KeyboardInterrupt:
            warn(f"Stopped after line {tally.last_line}: {tally}. The same command goes on there.")
            raise
        except OSError as error:
            raise PenstockError(
                f"{_named(file)} cannot be read after line {tally.last_line}: {error.strerror}; "
                f"{tally}. Fix it, then run the same command again."
            ) from None
    _tell(importer.tally, on_error, as_json)
    return 1 if importer.tally.bad else 0


def _tell(tally: Tally, on_error: OnError, as_json: bool) -> None:
    if tally.bad > len(tally.shown):
        warn(f"{tally.bad - len(tally.shown):,} more bad lines were counted.")
    if tally.bad and on_error is OnError.STOP:
        warn(f"The import stopped at line {tally.last_bad}; what stands before it is kept.")
    if as_json:
        counts = {"new": tally.new, "known": tally.known, "differing": tally.differing}
        print_document({**counts, "bad": tally.bad, "errors": tally.shown})
    else:
        say(str(tally))


def _named(file: str) -> str:
    return "Standard input" if file == "-" else f"The file {file!r}"


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        if not is_open(sys.stdin):
            raise UsageError("Standard input is closed; name a file, or pipe the lines in.")
        yield sys.stdin.buffer
        return
    try:
        stream = open(file, "rb")  # noqa: SIM115 (closed below; an error while reading is another)
    except OSError as error:
        raise UsageError(f"{_named(file)} cannot be read: {error.strerror}.") from None
    with stream:
        if file.lower().endswith((".csv", ".tsv")):
            raise UsageError(
                f"{_named(file)} looks like {file[-3:].upper()}, and jobs come as JSON Lines: one "
                'object a line, such as {"id": "a", "name": "x"}. Convert it first.'
            )
        yield stream


@contextlib.contextmanager
def _progress(stream: BinaryIO, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; nothing elsewhere."""
    if not shown or not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import Progress

    status = os.fstat(stream.fileno())
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    with Progress(console=Console(stderr=True), transient=True) as bar:
        bar_task = bar.add_task("importing", total=total)
        yield lambda size: bar.advance(bar_task, size)
