# SPDX-License-Identifier: Apache-2.0
"""What does a task's body know about its job?"""

from __future__ import annotations

import logging
from collections.abc import Iterable, MutableMapping
from typing import Any

import msgspec

from penstock.clock import Duration
from penstock.definitions.provider import Admission, Provider
from penstock.definitions.request import Enqueued, JobRequest, to_new_job
from penstock.errors import UsageError
from penstock.model.job import BATCH_JOBS_MAX, Edge, NewJob

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


class Context:
    """Given to every task as its first argument; belongs to one attempt."""

    __slots__ = ("_cancelled", "_enqueued", "_log", "_progress", "job")

    def __init__(self, job: JobInfo) -> None:
        self.job = job
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
        """True when the attempt shall stop: a thread looks here, a coroutine is cancelled."""
        return self._cancelled

    def progress(self, done: float, total: float | None = None) -> None:
        """Say how far the work is; `penstock why` and `queue show` tell it while it runs."""
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
            provider: whom the call goes to.
            domain: what kind of call it is; domains share the limits of their model.
            model: which of its models; the provider's own name otherwise.
            tokens: how many the call will need, as far as that is known.
        """
        if not isinstance(provider, Provider):
            raise UsageError(
                f"ctx.admit takes a provider, as app.provider(...) gives it, got {provider!r:.200}."
            )
        return provider.clients.admit(model, domain, tokens)

    def enqueue(
        self,
        request: JobRequest[Any],
        key: str | None = None,
        after: Iterable[str | Edge | Enqueued] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        group: str | None = None,
    ) -> str:
        """Enqueue another job when, and only when, this one ends well; gives its key."""
        job = to_new_job(
            request.with_options(key=key, after=after, priority=priority, delay=delay, group=group)
        )
        if self._enqueued is None:
            self._enqueued = []
        if len(self._enqueued) >= BATCH_JOBS_MAX:
            raise UsageError(
                f"A job may enqueue at most {BATCH_JOBS_MAX:,} others with its end; let some of "
                f"those enqueue the rest."
            )
        self._enqueued.append(job)
        return job.key
