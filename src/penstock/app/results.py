# SPDX-License-Identifier: Apache-2.0
"""Reads what jobs have returned: one by key, waited for if need be, or all of a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import datetime

from penstock.app.queue import Queue
from penstock.clock import Clock, Duration, SystemClock, blocking_sleep, to_micros, to_seconds
from penstock.definitions.request import Enqueued, JobRequest, to_new_job
from penstock.errors import UnknownJob, UsageError
from penstock.model.job import Job, JobId
from penstock.model.views import FIRST_END, EndMark, ResultPage
from penstock.redaction.secrets import redacted
from penstock.stores.protocol import Store

PAGE_RESULTS = 1_000  # of one read
POLL_FIRST_SECONDS = 0.005  # between two looks at a job that has not ended; doubled each time
POLL_MAX_SECONDS = 0.5


class Results:
    """Answers what the jobs of an app have come to. Owns nothing: the queue has the store."""

    def __init__(self, queue: Queue, clock: Clock | None = None) -> None:
        self._queue = queue
        self._clock = clock or SystemClock()

    def job(self, key: str) -> Job:
        """The job of a key; UnknownJob."""
        _refuse_other(key)
        return self._known(key, self._queue.store.job(key).result())

    async def job_async(self, key: str) -> Job:
        """The same on an event loop."""
        _refuse_other(key)
        return self._known(key, await (await self._queue.store_async()).job(key))

    def _known(self, key: str, job: Job | None) -> Job:
        if job is None:
            raise UnknownJob(
                f"There is no job {key!r:.200} in the store {redacted(self._queue.store.url)}: it "
                "was never enqueued there, or it was purged."
            )
        return job

    def ended_job(self, key: str, timeout: Duration | None) -> Job:
        """The job of a key once it has ended, or as it is when time is up."""
        pauses = self._pauses(timeout)
        while not (job := self.job(key)).state.ended:
            pause = next(pauses, None)
            if pause is None:
                break
            blocking_sleep(pause)
        return job

    async def ended_job_async(self, key: str, timeout: Duration | None) -> Job:
        """The same on an event loop."""
        pauses = self._pauses(timeout)
        while not (job := await self.job_async(key)).state.ended:
            pause = next(pauses, None)
            if pause is None:
                break
            await self._clock.sleep(pause)
        return job

    def _pauses(self, timeout: Duration | None) -> Iterator[float]:
        """How long to wait before each further look, until time is up."""
        if timeout is None:
            return
        until = self._clock.monotonic() + to_seconds(timeout)
        pause = POLL_FIRST_SECONDS
        while (left := until - self._clock.monotonic()) > 0:
            yield min(pause, left)
            pause = min(2 * pause, POLL_MAX_SECONDS)

    def results_of(self, task: str, since: datetime | None) -> Iterator[tuple[str, str | None]]:
        """Key and JSON text of every done job of a task, by end; a page is in memory at a time."""
        store, mark, more = self._queue.store, _mark(since), True
        while more:
            page = _page(store, task, mark)
            yield from ((row.key, row.result) for row in page.rows)
            mark, more = page.last, page.more

    async def results_of_async(
        self, task: str, since: datetime | None
    ) -> AsyncIterator[tuple[str, str | None]]:
        """The same on an event loop."""
        store, mark, more = await self._queue.store_async(), _mark(since), True
        while more:
            page = await asyncio.to_thread(_page, store, task, mark)
            for row in page.rows:
                yield row.key, row.result
            mark, more = page.last, page.more


def _refuse_other(key: object) -> None:
    """Raise if this is no key, as somebody without a type checker may have written."""
    if isinstance(key, JobRequest | Enqueued):
        known = to_new_job(key).key if isinstance(key, JobRequest) else key.key
        raise UsageError(
            f"A job is asked for by its key, got {type(key).__name__}; write {known!r}."
        )
    if not isinstance(key, str):
        raise UsageError(f"A key is text, got {key!r:.100}; write {str(key)!r:.100}.")


def _page(store: Store, task: str, after: EndMark) -> ResultPage:
    return store.results(task, after, PAGE_RESULTS).result()


def _mark(since: datetime | None) -> EndMark:
    if since is None:
        return FIRST_END
    given: object = since  # whatever a user without a type checker wrote
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise UsageError(
            f"since= is a datetime with a time zone, such as datetime(2026, 1, 31, tzinfo=UTC), "
            f"got {given!r:.100}."
        )
    return EndMark(to_micros(given.timestamp()) - 1, JobId(2**62))
