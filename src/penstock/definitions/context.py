# SPDX-License-Identifier: Apache-2.0
"""The context that a task or a tick is given: its job, log, progress, cursor, enqueue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping
from datetime import datetime
from typing import Any, NoReturn, Protocol, TypeVar, overload

import msgspec

from penstock.clock import Duration, to_datetime
from penstock.definitions.provider import Admission, Provider
from penstock.definitions.request import Enqueued, JobRequest, to_new_job
from penstock.definitions.result import Returning
from penstock.errors import BadAnswer, StrictJsonError, UnknownPreflight, UsageError
from penstock.model import strict_json
from penstock.model.job import BATCH_JOBS_MAX, Edge, JobKind, JobState, NewJob, kind_of_name
from penstock.model.journal import call_of
from penstock.model.schedule import CURSOR_BYTES_MAX
from penstock.model.views import UpstreamRow

R = TypeVar("R")

_NOTHING: Mapping[str, str] = {}
_UNREAD: Any = object()

log = logging.getLogger("penstock.task")


class JobInfo(msgspec.Struct, frozen=True, gc=False):
    """The job that an attempt is about."""

    key: str
    task: str
    attempt: int  # 1 for the first; attempts that were not the job's fault do not count
    partition: str | None


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    """Puts the job's key in front of every line."""

    def process(
        self,
        msg: Any,  # noqa: ANN401 (logging's signature)
        kwargs: MutableMapping[str, Any],
    ) -> tuple[Any, MutableMapping[str, Any]]:
        extra = self.extra or {}
        return f"[{extra.get('job')}] {msg}", kwargs


class PreflightValues(Mapping[str, Any]):
    """What preflights returned, by their names; each is read from its JSON text when asked for."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._read: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<PreflightValues of {', '.join(self._texts) or 'nothing'}>"

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 (JSON is dynamic)
        if name not in self._read:
            text = self._texts.get(name)
            if text is None:
                have = ", ".join(map(repr, self._texts)) or "none"
                raise UnknownPreflight(
                    f"No preflight named {name!r} has a value for this job; there are: {have}."
                )
            self._read[name] = msgspec.json.decode(text)
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


class UpstreamAnswer(Protocol):
    """What a job was enqueued after, as a store answers: for a thread and for a loop."""

    def result(self) -> list[UpstreamRow]: ...

    def __await__(self) -> Generator[object, None, list[UpstreamRow]]: ...


class Context:
    """Given to every task as its first argument; belongs to one attempt."""

    __slots__ = ("_cancelled", "_enqueued", "_log", "_preflight", "_progress", "_upstream", "job")

    def __init__(
        self,
        job: JobInfo,
        preflight: Mapping[str, str] = _NOTHING,
        upstream: Callable[[], UpstreamAnswer] | None = None,
    ) -> None:
        """A context.

        Args:
            job: what the attempt is about.
            preflight: the values that preflights have for it, by name, as strict JSON text.
            upstream: reads what the job was enqueued after; None: it is no job of a task.
        """
        self.job = job
        self._upstream = upstream
        self._preflight: Mapping[str, str] | PreflightValues = preflight
        self._enqueued: list[NewJob] | None = None
        self._log: _JobLog | None = None
        self._progress: tuple[float, float | None] | None = None
        self._cancelled = False

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines name the job."""
        if self._log is None:
            self._log = _JobLog(log, {"job": self.job.key})
        return self._log

    @property
    def cancelled(self) -> bool:
        """True when the attempt must stop: a thread checks this, a coroutine is cancelled."""
        return self._cancelled

    @property
    def preflight(self) -> Mapping[str, Any]:
        """What preflights returned for the partition of this job, by their names.

        A value for its own partition comes first, then one for a coarser partition that it lies
        in, then the global one.
        """
        if not isinstance(self._preflight, PreflightValues):
            self._preflight = PreflightValues(self._preflight)
        return self._preflight

    @overload
    def upstream(self) -> dict[str, Any]: ...

    @overload
    def upstream(self, task: Returning[R]) -> list[R]: ...

    def upstream(self, task: Returning[R] | None = None) -> dict[str, Any] | list[R]:
        """What the jobs returned that this one was enqueued after, in the order of `after`.

        Of a task a list of its results, as the type that it returns; without one all of them as
        JSON values, by key. A job that has not succeeded, or was purged, has none. It reads the
        store; on a loop `await ctx.upstream_async(...)` lets others go on meanwhile.
        """
        return _of_task(self._upstream_rows().result(), task)

    @overload
    async def upstream_async(self) -> dict[str, Any]: ...

    @overload
    async def upstream_async(self, task: Returning[R]) -> list[R]: ...

    async def upstream_async(self, task: Returning[R] | None = None) -> dict[str, Any] | list[R]:
        """The same on an event loop."""
        return _of_task(await self._upstream_rows(), task)

    def _upstream_rows(self) -> UpstreamAnswer:
        if self._upstream is None:
            raise UsageError(
                f"{self.job.key!r} has no upstream: only the jobs of a task are enqueued after "
                "others."
            )
        return self._upstream()

    def progress(self, done: float, total: float | None = None) -> None:
        """Say how far the work is: `why`, `queue show` and the live view tell it while it runs."""
        self._progress = (done, total)

    def admit(
        self,
        provider: Provider,
        *,
        domain: str = "http",
        model: str | None = None,
        tokens: int | None = None,
    ) -> Admission:
        """A permit for one call that is not HTTP: `async with ctx.admit(provider) as call: ...`.

        In a thread it is a plain `with`. How the call ended is read from the error that leaves the
        block, if any; `call.rate_limited(...)`, `.failed()` and `.used(tokens)` say it better.

        Args:
            provider: the one that the call goes to.
            domain: what kind of call it is; domains share the limits of their model.
            model: which of its models; the provider's own name otherwise.
            tokens: how many the call will need, as far as that is known.
        """
        if not isinstance(provider, Provider):
            raise UsageError(
                f"ctx.admit takes a provider, as app.provider(...) gives it, got {provider!r:.200}."
            )
        return provider.clients.admit(model, domain, tokens)

    def reject(self, reply: object = None, reason: str = "") -> NoReturn:
        """Say that an answer of a paid provider is bad: the next attempt buys it anew.

        It ends this attempt, as any exception of a task does: charged. A bug buys nothing again.

        Args:
            reply: the one that is bad, as a client of the provider gave it; else the last one.
            reason: what is wrong with it, for people; not the answer itself.

        Raises:
            BadAnswer: always.
        """
        call = None if reply is None else call_of(reply)
        if reply is not None and call is None:
            raise UsageError(
                f"ctx.reject takes a reply of a paid provider, as its client gave it, and not a "
                f"{type(reply).__name__}; without one it rejects the answer that came last."
            )
        bad = BadAnswer(reason)
        bad.call = call
        raise bad

    def enqueue(
        self,
        request: JobRequest[Any],
        key: str | None = None,
        after: Iterable[str | Edge | Enqueued] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        group: str | None = None,
    ) -> str:
        """Enqueue another job when, and only when, this one succeeds; returns its key.

        It inherits the partition of this one, and is of its group unless it has one of its own.
        A preflight enqueues nothing: it runs before there is any work.
        """
        if kind_of_name(self.job.task) is JobKind.PREFLIGHT:
            raise UsageError(
                f"{self.job.key!r} cannot enqueue a job: preflights run before any work, and again "
                "at every start. Enqueue it in a schedule."
            )
        request = request.with_options(
            key=key, after=after, priority=priority, delay=delay, group=group
        )
        if request.partition is None and self.job.partition is not None:
            request = msgspec.structs.replace(request, partition=self.job.partition)
        job = to_new_job(request)
        if self._enqueued is None:
            self._enqueued = []
        if len(self._enqueued) >= BATCH_JOBS_MAX:
            raise UsageError(
                f"A job may enqueue at most {BATCH_JOBS_MAX:,} others with its end; let some of "
                f"those enqueue the rest."
            )
        self._enqueued.append(job)
        return job.key


def _of_task(rows: Iterable[UpstreamRow], task: Returning[R] | None) -> dict[str, Any] | list[R]:
    """The results among what a job was enqueued after; of what runs again the last one."""
    done = [row for row in rows if row.state is JobState.DONE or row.result is not None]
    if task is not None:
        return [task.read_result(row.key, row.result) for row in done if row.task == task.name]
    return {row.key: msgspec.json.decode(row.result or "null") for row in done}


class TickContext(Context):
    """Given to a schedule as its first argument; belongs to one try of one occurrence."""

    __slots__ = ("_cursor", "_cursor_text", "_due_at", "missed")

    def __init__(
        self,
        job: JobInfo,
        preflight: Mapping[str, str] = _NOTHING,
        *,
        due_at: int,
        missed: int = 0,
        cursor: str | None = None,
    ) -> None:
        """A context.

        Args:
            job: the unit.
            preflight: the values that preflights have for it, by name, as strict JSON text.
            due_at: the occurrence, in microseconds since 1970 UTC.
            missed: how many occurrences after it have passed already.
            cursor: strict JSON text of what the last good tick left; None: nothing.
        """
        super().__init__(job, preflight)
        self._due_at = due_at
        self._cursor_text = cursor  # as it is kept
        self._cursor: Any = _UNREAD
        self.missed = missed  # occurrences that have passed since `due_at`: this tick is for all

    @property
    def due_at(self) -> datetime:
        """When this occurrence was due, in UTC: the same for every try of it."""
        return to_datetime(self._due_at)

    @property
    def partition(self) -> str | None:
        """The name of its partition; None if the schedule is global."""
        return self.job.partition

    @property
    def cursor(self) -> Any:  # noqa: ANN401 (JSON is dynamic)
        """A JSON value of this unit that outlives the tick; None until one is set.

        It is kept if, and only if, the tick succeeds, in one transaction with the jobs that the
        tick enqueued. What counts is what it holds at the end of the tick: it may be assigned, or
        changed in place.
        """
        if self._cursor is _UNREAD:
            text = self._cursor_text
            self._cursor = None if text is None else msgspec.json.decode(text)
            self._cursor_text = None if text is None else self._written(self._cursor)
        return self._cursor

    @cursor.setter
    def cursor(self, value: Any) -> None:  # noqa: ANN401 (JSON is dynamic)
        self._written(value)
        _ = self.cursor
        self._cursor = value

    def changed_cursor(self, *, at_once: bool = False) -> str | None:
        """The cursor to keep with this tick, as strict JSON text; None if it has not changed.

        With `at_once` NotPlain, if code of its classes would have to be run.
        """
        if self._cursor is _UNREAD:
            return None
        if self._cursor is None and self._cursor_text is None:
            return None
        text = self._written(self._cursor, at_once=at_once)
        return None if text == self._cursor_text else text

    def _written(self, value: object, *, at_once: bool = False) -> str:
        try:
            return strict_json.dumps(value, limit_bytes=CURSOR_BYTES_MAX, at_once=at_once)
        except StrictJsonError as error:
            if at_once and isinstance(error, strict_json.NotPlain):
                raise
            where = "" if error.path == "$" else f" (at {error.path[2:]!r})"
            raise UsageError(
                f"The cursor of {self.job.key!r} must be a JSON value of at most "
                f"{CURSOR_BYTES_MAX:,} bytes{where}: {error.problem}."
            ) from None
