# SPDX-License-Identifier: Apache-2.0
"""One attempt of a job, and the ladder of ends that turns what its body did into what follows.

Running, telling and judging are apart: `Attempt` is what runs; `tell` makes plain values of what a
body returned or raised, which may run code of users' classes and is part of the attempt; `judge`
makes of them a `JobEnd`, a `JobFailure`, or a release, and asks the kind of job where kinds differ.
Nothing here talks to a store.
"""

from __future__ import annotations

import asyncio
import builtins
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from types import ModuleType
from typing import Any, Protocol

import msgspec

from penstock import errors
from penstock.admission.tasks.decisions import TaskAdmissionLease
from penstock.clock import MICROSECONDS
from penstock.definitions.context import Context
from penstock.definitions.task import Task
from penstock.errors import (
    BadAnswer,
    CallInDoubt,
    PayloadError,
    RequestAdmissionError,
    Skip,
    StrictJsonError,
)
from penstock.events.kinds import Correlation
from penstock.model import strict_json
from penstock.model.job import (
    NAME_LENGTH_MAX,
    RESULT_BYTES_MAX,
    AttemptError,
    ErrorCategory,
    JobState,
    LeasedJob,
)
from penstock.model.journal import CallKey
from penstock.model.lease import JobEnd, JobFailure, JobRef
from penstock.model.provider import gate_name
from penstock.redaction.content_guard import extract_texts, redact_content
from penstock.redaction.secrets import storable_text
from penstock.requests.attempt_context import AttemptContext
from penstock.requests.journal.attempt_calls import AttemptCalls
from penstock.retry.classify import (
    Classified,
    FailureClass,
    RemoteError,
    TimeLimitError,
    classify,
    format_connection_detail,
    refused_address,
)
from penstock.retry.policy import RetryDecision, RetryPolicy
from penstock.sentences import command
from penstock.terminal_text import format_duration
from penstock.worker.user_frames import traceback_of, where_of

NEVER = float("inf")
CAUSES_MAX = 16  # causes of causes that are looked at

#: Of attempts: a schedule is not given up unless it says so.
UNLIMITED = 2**31 - 1


class Stop(Enum):
    """Why an attempt is being stopped from outside."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"  # by an operator; the job has ended already
    SHUTDOWN = "shutdown"
    LOST = "lost"  # the lease is not ours any more
    GAVE_UP = "gave up"  # its provider has failed for as long as it may wait


#: What the requests of a stopped attempt are refused with.
SAID = {
    Stop.TIMEOUT: "has run past its time limit",
    Stop.CANCELLED: "was cancelled",
    Stop.SHUTDOWN: "is stopped with its worker",
    Stop.LOST: "was lost with the lease of its worker",
    Stop.GAVE_UP: "has waited for its provider for as long as give_up_after says",
}


class TaskLimits(msgspec.Struct, frozen=True):
    """What holds for attempts of one task, settings and definition merged."""

    max_attempts: int
    timeout_seconds: float | None
    max_crashes: int
    within_seconds: float | None = None  # from its first failure on: what comes later is too late
    policy: RetryPolicy = RetryPolicy()  # what follows a failure of it


class CheckFailed(Exception):
    """Something that had to be awaited before the body has failed."""

    def __init__(self, kind: str, error: BaseException) -> None:
        super().__init__(kind)
        self.kind = kind  # what failed
        self.error = error  # why


class ProcessDied(Exception):
    """The process of a body ended before the body did."""


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """What a body returned in another process, as strict JSON text."""

    text: str | None
    problem: str | None = None  # why it cannot be kept


class Attempt:
    """One running job: its context, its slot, and what was said to it."""

    __slots__ = (
        "aio_task",
        "context",
        "correlation",
        "deadline_monotonic",
        "ended",
        "is_detached",
        "job",
        "kill",
        "lease",
        "limits",
        "ref",
        "request_context",
        "slot",
        "started_at",
        "stop",
        "task",
    )

    def __init__(
        self,
        job: LeasedJob,
        task: Task[..., Any],
        limits: TaskLimits,
        slot: int,
        lease: TaskAdmissionLease,
        started_at: int,
        correlation: Correlation,
        context: Context,
    ) -> None:
        self.job = job
        self.lease = lease  # on its slot and whatever else it holds here
        self.ref = (job.id, job.token)
        self.task = task
        self.limits = limits
        self.slot = slot
        self.started_at = started_at
        self.correlation = correlation
        self.context = context
        self.aio_task: asyncio.Task[None] | None = None
        self.kill: Callable[[], None] | None = None  # ends the process of the body
        self.deadline_monotonic = NEVER
        self.request_context: AttemptContext | None = None  # None: there are no providers
        self.stop: Stop | None = None
        self.ended = False  # judged: whatever the body still does is not heard
        self.is_detached = (
            False  # its lease counts until its body ends: the store must hear of that
        )

    def __repr__(self) -> str:
        return f"<Attempt {self.job.key!r} of {self.job.task}, token {self.job.token}>"

    def ask_to_stop(self, why: Stop) -> None:
        """Cancel a coroutine, tell a thread, kill a process; once, or no clean-up could end."""
        if self.stop is not None:
            return
        self.stop = why
        self.context._cancelled = True
        if self.request_context is not None:
            self.request_context.stop(SAID[why])
        if self.aio_task is not None:
            self.aio_task.cancel()
        elif self.kill is not None:
            self.kill()

    @property
    def waits_for_permit(self) -> bool:
        """It waits for a permit, and its time limit with it."""
        return (
            self.request_context is not None
            and self.stop is None
            and self.request_context.is_waiting
        )

    @property
    def waits_to_begin(self) -> bool:
        """It waits for its first permit: nothing was spent on it."""
        return (
            self.waits_for_permit
            and self.request_context is not None
            and not self.request_context.has_sent
        )

    @property
    def calls(self) -> AttemptCalls | None:
        """Its calls that cost money; None: none of them does."""
        return None if self.request_context is None else self.request_context.calls

    @property
    def closed_account(self) -> str | None:
        """The provider whose closed account its last call has met; None: it has met none."""
        return None if self.request_context is None else self.request_context.closed_account

    def unquoted(self, text: str) -> str:
        """A text without quotes of what the job was given, has asked and was told."""
        return redact_content(text, self._given())

    def _given(self) -> Iterator[str]:
        yield from extract_texts(self.job.payload)
        if self.request_context is not None:
            yield from self.request_context.content_guard.texts()

    @property
    def can_be_stopped(self) -> bool:
        """Asking it to stop helps; a thread may look at `ctx.cancelled`, or not."""
        return self.aio_task is not None or self.kill is not None


_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})


def _errors_in(module: ModuleType) -> frozenset[type]:
    """The errors of a module that are looked at and shown by its own code alone."""
    found = (one for one in vars(module).values() if isinstance(one, type))
    return frozenset(
        one
        for one in found
        if issubclass(one, BaseException) and not issubclass(one, BaseExceptionGroup)
    )


_BUILT_IN = _errors_in(builtins) | {asyncio.CancelledError}
_OUR_ERRORS = _errors_in(errors) | {ProcessDied, RemoteError}

#: What follows from an attempt: an end, a failure, a release (JobRef), or nothing.
AttemptEnd = JobEnd | JobFailure | JobRef | None


class EndRules(Protocol):
    """What a kind of job says of the ends of its attempts, where kinds differ."""

    @property
    def holds_doubts(self) -> bool:
        """A job whose paid call is in doubt waits for a person."""
        ...

    @property
    def payload_is_final(self) -> bool:
        """A payload that does not fit its task cannot be mended by another attempt."""
        ...

    def encoded(self, attempt: Attempt, value: Any, *, at_once: bool) -> Any:  # noqa: ANN401
        """What is kept of what a body left, in plain values; UsageError if that cannot be kept.

        With `at_once` NotPlain, if code of users' classes would have to be run.
        """
        ...

    def returned(self, attempt: Attempt, value: Any, now_at: int) -> JobEnd:  # noqa: ANN401
        """The end of a body that returned; `value` is what `encoded` has made of it."""
        ...

    def skipped(self, attempt: Attempt, error: Skip, now_at: int) -> JobEnd:
        """The end of a body that raised `Skip`."""
        ...

    def retry_rule(self, policy: RetryPolicy, limits: TaskLimits) -> Callable[..., RetryDecision]:
        """By which rule of the policy a failure is tried again."""
        ...


def tell(
    attempt: Attempt,
    kind: EndRules,
    value: Any,  # noqa: ANN401 (whatever the body returned)
    error: BaseException | None,
    now: float,
    policy: RetryPolicy,
    *,
    at_once: bool = False,
) -> tuple[Any, BaseException | None]:
    """What a body returned or raised, in plain values: whoever has them runs no code of users.

    With `at_once` NotPlain, if such code would have to be run: it may block, so an event loop has
    it done elsewhere.
    """
    if error is None:
        try:
            return kind.encoded(attempt, value, at_once=at_once), None
        except strict_json.NotPlain:
            raise
        except BaseException as problem:  # what it left cannot be kept
            error = problem
    if at_once and (policy.classifiers or not is_plain_error(error)):
        raise strict_json.NotPlain("$", "an error with code of its own")
    return None, plain_error(error, now, policy)


def plain_error(error: BaseException, now: float, policy: RetryPolicy) -> BaseException:
    """An error as it is seen now, without its own code: of which kind, what it says, and why."""
    if isinstance(error, ProcessDied | RemoteError):
        return error
    if isinstance(error, Skip):
        return Skip(message_of(error))
    if isinstance(error, PayloadError):
        return PayloadError(message_of(error))
    kind = kind_of(error)
    if isinstance(error, CheckFailed):
        error = error.error  # it waits as that says
    try:
        classified = classify(error, now=now, classifiers=policy.classifiers)
        message = message_of(error)
        if classified.category is FailureClass.NODE:
            message += format_connection_detail(error, message)
            classified = replace(classified, refused_at=refused_address(error))
        if classified.doubt:
            message += f" [{classified.doubt}]"
    except BaseException as second:  # an error whose own code raises
        said = f"its end cannot be judged: {type(second).__name__}"
        return RemoteError("RuntimeError", said, None, Classified(FailureClass.UNKNOWN))
    plain = RemoteError(kind, message, where_of(error), classified, traceback_of(error))
    plain.is_bad_answer = isinstance(error, BadAnswer) or _is_reading_failure(error)
    plain.call = error.call if isinstance(error, BadAnswer) else None
    return plain


def is_plain_error(error: BaseException) -> bool:
    """Whether to look at an error, its cause and their texts runs no code of users."""
    seen: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if seen is None:
            return True
        built_in = type(seen) in _BUILT_IN
        if not (built_in and not vars(seen)) and type(seen) not in _OUR_ERRORS:
            return False
        if not all(type(said) in _SCALARS for said in (*seen.args, *_names_in(seen))):
            return False
        seen = seen.__cause__
    return False


def _names_in(error: BaseException) -> tuple[object, ...]:
    """What a text has besides the arguments: the files that an OSError names."""
    return (error.filename, error.filename2) if isinstance(error, OSError) else ()


def judge(
    attempt: Attempt,
    kind: EndRules,
    value: Any,  # noqa: ANN401 (what the body returned, as it was told)
    error: BaseException | None,
    now_at: int,
    policy: RetryPolicy,
    rand: Callable[[], float],
) -> AttemptEnd:
    """What follows from the end of a body, of whatever kind; value and error are as `tell` says."""
    if attempt.stop is Stop.LOST:
        return None
    if attempt.stop is Stop.CANCELLED:
        return JobRef(*attempt.ref)  # the job has ended; its lease is let go
    if error is None:
        return kind.returned(attempt, value, now_at)
    if isinstance(error, PayloadError) and attempt.stop is None and kind.payload_is_final:
        return _bad_payload(attempt, error, now_at)
    calls = attempt.calls
    if calls is not None and calls.over_budget is not None:
        return JobRef(*attempt.ref)  # it had no money; what it has bought is kept
    if calls is not None and calls.in_doubt is not None and kind.holds_doubts:
        return _held(attempt, calls.in_doubt, now_at)
    if isinstance(error, Skip):
        return kind.skipped(attempt, error, now_at)
    is_check = attempt.limits.within_seconds is not None  # of the key, perhaps: it is to fail
    if attempt.closed_account is not None and attempt.stop is None and not is_check:
        return JobRef(*attempt.ref)  # it waits until its provider's account is open
    if attempt.stop is Stop.SHUTDOWN:
        return JobRef(*attempt.ref)  # whatever it raised, it was we who stopped it
    if attempt.stop is Stop.TIMEOUT:
        error = time_limit_error(attempt)
    if attempt.stop is Stop.GAVE_UP:
        error = give_up_error(attempt, policy)
    if isinstance(error, ProcessDied):
        return _crashed(attempt, error, now_at, policy, rand)
    return failed(attempt, kind, error, now_at, policy, rand)


def time_limit_error(attempt: Attempt) -> TimeLimitError:
    """An attempt ran past its limit: the job's own fault."""
    limit = attempt.limits.timeout_seconds or 0.0
    return TimeLimitError(f"ran past its time limit of {limit:g} s")


def give_up_error(attempt: Attempt, policy: RetryPolicy) -> RequestAdmissionError:
    """An attempt has waited for its provider for as long as it may: nobody's fault but theirs."""
    context = attempt.request_context
    called = None if context is None else context.last_called
    where = gate_name(called or attempt.lease.item.request_resource_key)
    return RequestAdmissionError(
        f"{where} has given no good answer for {policy.give_up_after_seconds:g} s, which is "
        f"{policy.give_up_set_by}; '{command('queue', 'retry-failed')}' tries it again.",
        "cooldown",
    )


def failed(
    attempt: Attempt,
    kind: EndRules,
    error: BaseException,
    now_at: int,
    policy: RetryPolicy,
    rand: Callable[[], float],
) -> JobFailure:
    """What an error costs, and when the job may try again."""
    job = attempt.job
    deferred = job.deferred_since
    limits = attempt.limits
    seconds_ago = None if deferred is None else (now_at - deferred) / MICROSECONDS
    if attempt.stop is Stop.GAVE_UP:
        seconds_ago = policy.give_up_after_seconds
    decision = kind.retry_rule(policy, limits)(
        error,
        attempts=job.attempts,
        max_attempts=limits.max_attempts,
        deferred_since_seconds_ago=seconds_ago,
        now=now_at / MICROSECONDS,
        rand=rand(),
    )
    message = told(attempt, message_of(error))
    wait = decision.given_up_wait_seconds
    if wait is not None and attempt.stop is not Stop.GAVE_UP:  # whose error says so itself
        message = f"{message} [{_given_up(wait, policy)}]"
    refused_by = _refused_by(attempt, decision)
    if refused_by is not None:
        message = f"refused by {refused_by}, no attempt is spent: {message}"
    return JobFailure(
        ref=JobRef(job.id, job.token),
        key=job.key,
        task=job.task,
        error=AttemptError(
            decision.category, kind_of(error), message, where_of(error), _traceback(attempt, error)
        ),
        started_at=attempt.started_at,
        ended_at=now_at,
        delay_seconds=decision.delay_seconds,
        charge=decision.charge,
        ends=decision.ends,
        spoils=_spoiled(attempt, error),
        refused_by=refused_by,
        refused_at=error.classified.refused_at if isinstance(error, RemoteError) else None,
    )


def _traceback(attempt: Attempt, error: BaseException) -> str | None:
    """The user's frames of an error, redacted like its message."""
    found = traceback_of(error)
    return None if found is None else told(attempt, found)


def _given_up(wait_seconds: float, policy: RetryPolicy) -> str:
    """Why a job is not tried again though others were to blame."""
    limit = f"give_up_after ({format_duration(policy.give_up_after_seconds)})"
    if wait_seconds <= 0:
        return f"it is given up: it has waited for others for as long as {limit} allows"
    wait = format_duration(wait_seconds)
    return f"it is given up: its wait of {wait} would end after {limit}"


def _refused_by(attempt: Attempt, decision: RetryDecision) -> str | None:
    """Which provider has refused the request that the error is about; None: none has."""
    refused = None if attempt.request_context is None else attempt.request_context.last_refusal
    if refused is None or decision.charge or decision.status != refused.status:
        return None
    return f"{refused.where} ({'; '.join(filter(None, (str(refused.status), refused.doubt)))})"


def _spoiled(attempt: Attempt, error: BaseException) -> tuple[CallKey, ...]:
    """The answer that is bought anew: one that the task calls bad, or could not read.

    A bug in the task's own code buys nothing again.
    """
    calls = attempt.calls
    if calls is None or not (isinstance(error, RemoteError) and error.is_bad_answer):
        return ()
    bad = error.call if isinstance(error.call, CallKey) else calls.last
    return () if bad is None else (bad,)


def _is_reading_failure(error: BaseException) -> bool:
    """It says that a document is not what its reader wants; libraries are known by name."""
    return isinstance(error, json.JSONDecodeError | msgspec.DecodeError) or any(
        kind.__name__ == "ValidationError" and kind.__module__.startswith("pydantic")
        for kind in type(error).__mro__
    )


def _held(attempt: Attempt, error: CallInDoubt, now_at: int) -> JobEnd:
    """A call waits for a person, and so does its job; whatever the body made of the error."""
    why = AttemptError(ErrorCategory.OWN, "CallInDoubt", str(error))
    return JobEnd(attempt.job, JobState.ERROR, attempt.started_at, now_at, error=why)


def _crashed(
    attempt: Attempt,
    error: ProcessDied,
    now_at: int,
    policy: RetryPolicy,
    rand: Callable[[], float],
) -> JobFailure:
    """The failure of a job that ran alone when its process died; at the last one it is poison."""
    job = attempt.job
    decision = policy.decide_crash(
        crashes=job.crashes, max_crashes=attempt.limits.max_crashes, rand=rand()
    )
    return JobFailure(
        ref=JobRef(job.id, job.token),
        key=job.key,
        task=job.task,
        error=AttemptError(decision.category, "crashed", f"its process died: {error}"),
        started_at=attempt.started_at,
        ended_at=now_at,
        delay_seconds=decision.delay_seconds,
        charge=decision.charge,
        ends=decision.ends,
        crashed=True,
    )


def encode(value: Any, *, at_once: bool = False) -> Encoded:  # noqa: ANN401 (the body's)
    """What a body returned, as strict JSON text; None is no result.

    With `at_once` NotPlain, if code of its classes would have to be run.
    """
    if value is None:
        return Encoded(None)
    try:
        return Encoded(strict_json.dumps(value, limit_bytes=RESULT_BYTES_MAX, at_once=at_once))
    except StrictJsonError as error:
        if at_once and isinstance(error, strict_json.NotPlain):
            raise
        return Encoded(None, _why_not_kept(error))


def _why_not_kept(error: StrictJsonError) -> str:
    if isinstance(error, strict_json.TooLarge):
        where = "write it to a file or a dataset, and return its name"
        return f"result is too large: {error.problem}; {where}"
    return f"result is not JSON: {error}"


def _bad_payload(attempt: Attempt, error: PayloadError, now_at: int) -> JobEnd:
    """The arguments cannot be rebuilt (the task has changed): trying again cannot help."""
    why = AttemptError(ErrorCategory.OWN, "payload", told(attempt, str(error)))
    return JobEnd(attempt.job, JobState.ERROR, attempt.started_at, now_at, error=why)


def told(attempt: Attempt, text: str) -> str:
    """A text about an attempt, redacted; secrets first: one may be part of a quote."""
    return attempt.unquoted(storable_text(text))


def kind_of(error: BaseException) -> str:
    if isinstance(error, RemoteError):
        return error.kind
    if isinstance(error, CheckFailed):
        return error.kind[:NAME_LENGTH_MAX]
    return storable_text(type(error).__qualname__)[:NAME_LENGTH_MAX]


def message_of(error: BaseException) -> str:
    """The text of an error, whatever its `__str__` does."""
    try:
        return str(error)
    except BaseException as second:
        return f"its message cannot be shown: {type(second).__name__}"
