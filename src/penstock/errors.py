# SPDX-License-Identifier: Apache-2.0
"""The errors that Penstock raises, and who must act on each.

```text
PenstockError
├── UsageError                       yours: a definition, a call or a command is wrong
│   ├── ConfigError                  a setting
│   ├── AppNotFound                  the app file or module cannot be used
│   ├── PayloadError                 an argument or a document is not what the task expects
│   │   ├── NotJson                  a text is not JSON at all (carries line and column)
│   │   └── StrictJsonError          a value is not strict JSON (carries the path)
│   ├── UnknownTask                  no such task in this app
│   ├── UnknownJob                   no job of this key
│   ├── UnknownPreflight             no such preflight has a value for this job
│   ├── SchedulingMetadataError      how a task shares with others is not said well
│   ├── StoreMissing                 there is no store yet, and looking makes none
│   ├── ProviderNotAvailableHere     a provider is used where no run admits its requests
│   └── EnqueueRefused               a batch of jobs cannot be accepted (unknown key, circle, size)
├── StoreError                       the world's: the database
│   ├── StoreBusy                    somebody else holds it; nothing was changed
│   ├── StoreFull                    no space; nothing was changed
│   ├── StoreReadOnly                no permission to write
│   ├── StoreCorrupt                 not a sound database
│   │   └── StoreForeign             a database of another program
│   ├── SchemaTooNew                 made by a newer Penstock
│   ├── StoreFailed                  an I/O error: the last transaction is unknown, restart
│   │   └── StoreReplaced            the file was exchanged under us; nothing was changed, restart
│   ├── StoreUnavailable             a server cannot be reached or does not answer; try again
│   │   └── StoreUnknown             and the last transaction may have been committed: repeat it
│   ├── StoreClosed                  used after close
│   ├── StoreForked                  used in a forked child of the process that opened it
│   └── StoreUnsupported             a place or version that a store cannot be kept on
├── RequestAdmissionError            a request did not leave (waited too long, shutdown, no slot)
├── RequestError                     a request was refused by us, by the provider, or has failed
│   ├── AttemptOver                  its job was cancelled or has run past its time limit: not sent
│   ├── ProviderThrottled            the world's: a provider refuses for longer than clients wait
│   ├── ProviderUnavailable          the world's: the provider is unhealthy (5xx, 408, 425)
│   ├── AccountClosed                yours: a key is dead or an account empty; its jobs wait
│   ├── BudgetUsedUp                 yours: a call would exceed a budget; its job waits for a raise
│   ├── CallInDoubt                  yours: a call was begun before and nobody knows its end: look
│   ├── RedirectRefused              yours or the world's: a redirect leads where none is followed
│   ├── ReplyOverdue                 the world's: a reply was not complete in time
│   └── ReplyRefused                 a reply is too large, or in an encoding that nobody asked for
├── OutputFailed                     the world's: a file of outputs cannot be written or read
├── DatasetDamaged                   the world's: a committed slice's file is gone or has changed
├── BuildLost                        the world's: another build has taken the locks of this one
├── DatasetsLocked                   nobody's: a schedule waits for datasets that are being built
├── LeaseLost                        the world's: this job is no longer ours
├── NoResult                         a job has no result (carries key, state and reason)
│   ├── JobNotEnded                  nobody's: it has not ended yet
│   ├── JobFailed                    yours: it ended in `error`
│   ├── JobSkipped                   yours: by its task, or because of a job that it needs
│   └── JobCancelled                 yours: an operator cancelled it
├── PreflightFailed                  yours or the world's: a check before the work did not pass
├── ScheduleEnded                    yours: a schedule has used up its attempts, the run ended
├── TooManyFailures                  yours or the world's: most of the last cells of a column failed
├── TableStopped                     yours: a column has failed that ends the run where it fails
└── InternalError                    ours: an invariant is broken; please report it
```

`Skip` is no error: a task raises it to end its job as `skipped`. A task raises `BadAnswer` to have
a paid answer bought anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from penstock.sentences import counted

FAILURES_SHOWN = 20  # preflights that a message names; all are in `failures`


class PenstockError(Exception):
    """Everything that Penstock raises on purpose."""


class UsageError(PenstockError):
    """A definition, a call or a command is wrong."""


class ConfigError(UsageError):
    """A setting is wrong; the message names field, value, source and what to do."""


class AppNotFound(UsageError):
    """The app that a command needs cannot be found or imported."""


class PayloadError(UsageError):
    """An argument or a document is not what the task expects."""


class NotJson(PayloadError):
    """A text is not JSON; lines and columns count from 1."""

    def __init__(self, problem: str, line: int, column: int) -> None:
        super().__init__(f"not JSON at column {column}: {problem}")
        self.problem = problem
        self.line = line
        self.column = column


class StrictJsonError(PayloadError):
    """A value is not strict JSON."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class UnknownTask(UsageError):
    """No task of this name is registered in the app."""


class UnknownJob(UsageError, KeyError):
    """No job of this key is in the store: it was never enqueued, or it was purged."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class UnknownPreflight(UsageError, KeyError):
    """No preflight of this name has a value for the job that asks."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class SchedulingMetadataCode(StrEnum):
    """What is wrong with scheduling metadata."""

    BAD_KIND = "bad_kind"
    BAD_IDENTITY = "bad_identity"
    BAD_WEIGHT = "bad_weight"
    NOT_METADATA = "not_metadata"  # something else was given
    SOURCE_FAILED = "source_failed"  # get_scheduling_metadata() raised


class SchedulingFallback(Protocol):
    """What is scheduled instead: a `SchedulingMetadata`."""

    @property
    def kind(self) -> str: ...

    @property
    def identity(self) -> tuple[str, ...]: ...

    @property
    def weight(self) -> int: ...


class SchedulingMetadataError(UsageError):
    """Scheduling metadata cannot be used; with a fallback work goes on and it is only told."""

    def __init__(
        self,
        code: SchedulingMetadataCode,
        message: str,
        fallback: SchedulingFallback | None = None,
        diagnostics: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fallback = fallback
        self.diagnostics = dict(diagnostics or {})  # definition → what is wrong with it


class StoreMissing(UsageError):
    """There is no store yet, and whoever only looks makes none."""

    def __init__(self, shown: str) -> None:
        super().__init__(
            f"There is no store {shown} yet. Enqueue a job first, or name another with --store."
        )


class ProviderNotAvailableHere(UsageError):
    """A provider is used outside a run, or in a process or on a node that has none."""


class KeyOfSeveralApps(UsageError):
    """Several apps of a store have a job of this key, and nobody has said which is meant."""

    def __init__(self, key: str, apps: tuple[str, ...]) -> None:
        self.key, self.apps = key, apps
        names = ", ".join(repr(app) for app in apps)
        super().__init__(
            f"The key {key!r} exists in several apps of this store ({names}); say which is meant "
            f"with --app {apps[-1]}."
        )


class EnqueueRefused(UsageError):
    """A batch of jobs cannot be accepted; nothing of it was written."""


class StoreError(PenstockError):
    """The database cannot do what was asked."""


class StoreBusy(StoreError):
    """Somebody else holds the database; nothing was changed."""


class StoreFull(StoreError):
    """There is no space left; nothing was changed."""


class StoreReadOnly(StoreError):
    """The database or its folder cannot be written."""


class StoreCorrupt(StoreError):
    """The file is not a sound Penstock database."""


class StoreForeign(StoreCorrupt):
    """The file is a database of another program."""


class SchemaTooNew(StoreError):
    """The database was made by a newer Penstock."""


class StoreFailed(StoreError):
    """An I/O error: the fate of the last transaction is unknown; the process must start again."""


class StoreReplaced(StoreFailed):
    """The file of an open store was replaced or removed; what we hold is no store any more."""


class StoreUnavailable(StoreError):
    """A server cannot be reached or does not answer in time; whoever can wait tries again."""


class StoreUnknown(StoreUnavailable):
    """The same, and nobody knows whether the last transaction was committed.

    The operation is to be repeated: an enqueue is idempotent by its keys, an end by its token.
    """


class StoreClosed(StoreError):
    """The store was used after it was closed."""


class StoreForked(StoreError):
    """The store was used in a forked child of the process that had opened it."""


class StoreUnsupported(StoreError):
    """A store cannot be kept on this file system or with this library version."""


#: What passes: whoever can wait asks again.
TRANSIENT = (StoreBusy, StoreFull, StoreUnavailable)


class RequestAdmissionError(PenstockError):
    """A request did not leave; `reason` is one of the denial reasons of request admission."""

    def __init__(self, message: str, reason: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class RequestError(PenstockError):
    """A request was not sent, was refused, or its reply cannot be used."""


class AttemptOver(RequestError):
    """A request of a job that was cancelled, or has run past its time limit; it did not leave."""


class _ProviderReplied(RequestError):
    """What a provider answered; the retry baseline reads the attributes."""

    def __init__(
        self,
        message: str,
        status_code: int,
        retry_after: float | None = None,
        response: object = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.retry_after = retry_after  # seconds; None: nothing was said
        self.response = response  # of the library that sent it; its body is closed


class ProviderThrottled(_ProviderReplied):
    """A provider refuses, for longer than its client waits; the job comes back uncharged."""


class ProviderUnavailable(_ProviderReplied):
    """A provider is unhealthy: 5xx, 408, 425; the job comes back uncharged."""


class AccountClosed(_ProviderReplied):
    """The key of a provider is dead or its account empty; the job waits, uncharged."""


class BudgetUsedUp(RequestError):
    """A call that costs money would exceed a budget; it did not leave, and its job is given back.

    `budget` is the name that people call it by, such as `budget.day`.
    """

    def __init__(self, message: str, budget: str) -> None:
        super().__init__(message)
        self.budget = budget


class CallInDoubt(RequestError):
    """A call was begun by an earlier attempt and its end is not known; a person must decide."""


class RedirectRefused(RequestError):
    """A redirect leads to another origin, or to a private address, and was not followed."""


class ReplyOverdue(RequestError, TimeoutError):
    """A reply was not complete within its deadline."""


class ReplyRefused(RequestError):
    """A reply is larger than allowed, or in an encoding that was not asked for."""


class OutputFailed(PenstockError):
    """A file of outputs cannot be written or read; nothing has become visible."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno  # of the operating system; None: it did not refuse


class DatasetDamaged(PenstockError):
    """The file of a committed slice is gone, or is not what was written."""

    def __init__(self, message: str, path: str, missing: bool = False) -> None:
        super().__init__(message)
        self.path = path
        self.missing = missing  # it may have been replaced by a newer one since it was listed


class BuildLost(PenstockError):
    """Another build has taken the locks of this one, which could not renew them in time."""


class DatasetsLocked(PenstockError):
    """A schedule waits for datasets that somebody else builds, or for its own last plan."""


class LeaseLost(PenstockError):
    """This worker no longer holds the job; what it did was discarded."""


class NoResult(PenstockError):
    """A job has no result; `state` says what has become of it."""

    def __init__(self, message: str, key: str, state: str, reason: str, attempts: int = 0) -> None:
        super().__init__(message)
        self.key = key
        self.state = state
        self.reason = reason  # why it has failed or was skipped; "" otherwise
        self.attempts = attempts  # that were its own fault


class JobNotEnded(NoResult):
    """The job has not ended yet, within the time that was given."""


class JobFailed(NoResult):
    """The job ended in `error`."""


class JobSkipped(NoResult):
    """The job was skipped: by its task, or because a job that it needs did not succeed."""


class JobCancelled(NoResult):
    """The job was cancelled by an operator."""


class PreflightFailed(PenstockError):
    """Checks did not pass, so no work has begun; carries each with why."""

    def __init__(self, failures: Mapping[str, str], checks_count: int) -> None:
        """The failure of a start.

        Args:
            failures: what was wrong, by unit (`preflight:NAME:PARTITION`).
            checks_count: how many checks there were in all.
        """
        shown = [f"{unit} ({why})" for unit, why in list(failures.items())[:FAILURES_SHOWN]]
        more = len(failures) - len(shown)
        if more:
            shown.append(f"and {more:,} more")
        super().__init__(
            f"{len(failures):,} of {counted(checks_count, 'preflight')} did not pass, so no work "
            "was "
            f"started: {'; '.join(shown)}."
        )
        self.failures = dict(failures)


class ScheduleEnded(PenstockError):
    """A schedule has used up its attempts, and with it the run has ended."""


class TooManyFailures(PenstockError):
    """Too many of the last cells of a column failed for good, so nothing more of it is started."""


class TableStopped(PenstockError):
    """A column of a table that is to end the run where it fails (`on_fail="stop"`) has failed."""


class InternalError(PenstockError):
    """An invariant of Penstock is broken; this is our bug."""


class Skip(Exception):
    """Raise it in a task to end the job as `skipped`, with a reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class BadAnswer(Exception):
    """Raise it in a task whose paid answer is bad: the attempt fails, and the next one buys anew.

    It is about the answer that came last; `ctx.reject(reply)` names another one.
    """

    call: object = None  # the call that `ctx.reject` named; None: the last one
