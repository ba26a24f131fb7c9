# SPDX-License-Identifier: Apache-2.0
"""A job request: a validated call of a task before it is enqueued, its key and options."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Iterable
from typing import Generic, Protocol, TypeVar

import msgspec

from penstock.clock import Duration, to_seconds
from penstock.errors import UsageError
from penstock.model.job import KEY_LENGTH_MAX, Edge, NewJob
from penstock.model.names import check_name, check_text

R = TypeVar("R")

PRIORITY_MAX = 2**31 - 1


class SyncConnection(Protocol):
    """A `psycopg.Connection` of the user's, whose transaction jobs are enqueued in."""

    def commit(self) -> None: ...


class AsyncConnection(Protocol):
    """The same as a `psycopg.AsyncConnection`."""

    def commit(self) -> Awaitable[None]: ...


class JobRequest(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """A validated call of a task, ready to be enqueued: what `task.job(...)` gives."""

    task: str
    payload: str  # strict JSON text of the arguments
    limit_keys: tuple[str, ...] = ()
    key: str | None = None
    group: str | None = None  # as named; None: its partition, else the next, else its task
    identity_group: str | None = None  # of its task's metadata
    priority: int = 0
    delay_seconds: float = 0.0
    after: tuple[Edge, ...] = ()
    partition: str | None = None

    def with_options(
        self,
        *,
        key: str | None = None,
        after: Iterable[str | Edge | Enqueued] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        group: str | None = None,
    ) -> JobRequest[R]:
        """The same call under another key, order or time; what is not named stays."""
        return JobRequest(
            task=self.task,
            payload=self.payload,
            limit_keys=self.limit_keys,
            key=self.key if key is None else key,
            group=self.group if group is None else group,
            identity_group=self.identity_group,
            priority=self.priority if priority is None else priority,
            delay_seconds=self.delay_seconds if delay is None else to_seconds(delay),
            after=self.after if after is None else _edges(after),
            partition=self.partition,
        )


class Enqueued(msgspec.Struct, frozen=True):
    """What became of one job."""

    key: str
    created: bool  # False: the key was known; the first one wins
    differs: bool = False  # it was known for another task or other arguments, which stay


class EnqueuedMany(msgspec.Struct, frozen=True):
    """What became of many jobs."""

    created: int
    existing: int
    differing: int = 0  # keys that stood for another task or other arguments; the first one wins


def to_new_job(request: JobRequest[R]) -> NewJob:
    """Check what the user said about a job and turn it into what a store takes."""
    key = request.key
    if key is None:
        digest = hashlib.blake2b(request.payload.encode(), digest_size=16).hexdigest()
        key = f"{request.task}:{digest}"
    elif not isinstance(key, str):
        raise UsageError(f"A key is text, got {key!r}; write key={str(key)!r}.")
    elif not key or len(key) > KEY_LENGTH_MAX:
        raise UsageError(f"A key has 1 to {KEY_LENGTH_MAX} characters; got {len(key)}.")
    else:
        check_text("key", key)
    group = request.group
    if group is None:
        group = request.partition or request.identity_group or request.task
    if group is not request.task:
        check_name("group", group)
    if type(request.priority) is not int:  # a bool is one of Python's ints, and no server's
        raise UsageError(f"A priority is a whole number, got {request.priority!r}.")
    if not -PRIORITY_MAX <= request.priority <= PRIORITY_MAX:
        raise UsageError(f"A priority lies within ±{PRIORITY_MAX}; got {request.priority}.")
    if not 0 <= request.delay_seconds < 10**9:
        raise UsageError(
            f"A delay is at least 0 and less than 10^9 seconds; got {request.delay_seconds}."
        )
    return NewJob(
        key=key,
        task=request.task,
        payload=request.payload,
        group=group,
        limit_keys=request.limit_keys,
        partition=request.partition,
        priority=request.priority,
        delay_seconds=request.delay_seconds,
        after=request.after,
    )


def _edges(after: Iterable[str | Edge | Enqueued]) -> tuple[Edge, ...]:
    if isinstance(after, str):
        raise UsageError(f"`after` takes a list of keys; write after=[{after!r}].")
    if not isinstance(after, Iterable):
        raise UsageError(
            f"`after` takes a list of keys, or of what enqueue has returned; got {after!r:.200}."
        )
    return tuple(_edge(edge) for edge in after)


def _edge(after: object) -> Edge:
    if isinstance(after, Edge):
        return after
    if isinstance(after, Enqueued):
        return Edge(after.key)
    if isinstance(after, str):
        check_text("key", after)
        return Edge(after)
    if isinstance(after, JobRequest):
        raise UsageError(
            f"`after` takes jobs that are enqueued, by key; enqueue {after!r:.200} first."
        )
    raise UsageError(f"`after` takes keys, got {after!r}.")
