# SPDX-License-Identifier: Apache-2.0
"""The request context of an attempt: whether it may still send, and how long it waited for permits.

The worker sets the context variable around a task's body; it follows child tasks and threads. User
code that goes on after its job was stopped cannot send anything more, and waiting for a permit does
not use up the time limit of a task.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from math import inf
from typing import NamedTuple

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.errors import AccountClosed, AttemptOver
from penstock.model.provider import RequestResourceKey
from penstock.redaction.content_guard import ContentGuard
from penstock.requests.journal.attempt_calls import AttemptCalls


class RefusedReply(NamedTuple):
    """A rate-limited reply of a provider."""

    where: str  # PROVIDER/MODEL
    status: int
    doubt: str = ""  # why the wait is not the one that it asks for


class AttemptContext:
    """Owns whether one attempt may send. Belongs to the loop; threads only read."""

    def __init__(
        self,
        job: str,
        deadline: float = inf,
        on_first_request: Callable[[], None] | None = None,
        on_wait: Callable[[bool], None] | None = None,
        on_call: Callable[[str, bool], None] | None = None,
    ) -> None:
        """It may send.

        Args:
            job: its key, for messages.
            deadline: monotonic; waits for permits come on top.
            on_first_request: called once, when the first permit is asked for.
            on_wait: called with True when it begins to wait for a permit, with False when it ends.
            on_call: called with each provider that it calls, once, and whether it is the first.
        """
        self.job = job
        self.deadline = deadline
        self._on_first_request = on_first_request
        self._on_wait = on_wait
        self._on_call = on_call
        self._called: set[str] = set()  # providers
        self.last_called: RequestResourceKey | None = None
        self.open_calls: list[RequestResourceKey] = []  # no reply has begun yet
        self.stop_reason: str | None = None  # why nothing may be sent any more
        self.has_sent = False  # one of its requests was given a permit
        self.content_guard = ContentGuard()  # requests and replies that its error must not quote
        self.calls: AttemptCalls | None = None  # those that cost money; None: none does
        self.waits_for_budget: str | None = None  # the budget that one of its calls waits for
        self.last_refusal: RefusedReply | None = None  # None: its last reply was no refusal
        self.closed_account: str | None = None  # the provider, if its last call met a closed one
        self.wait_began = inf  # monotonic: since when it waits for a permit; inf: it does not
        self._waited_seconds = 0.0  # in waits that have ended
        self._waiting = 0
        self._stop_listeners: dict[Callable[[], object], None] = {}
        self._whole: AttemptContext | None = None  # whose part it is

    def __repr__(self) -> str:
        return f"<AttemptContext of {self.job!r}: {self.stop_reason or 'may send'}>"

    def part(
        self,
        name: str,
        *,
        deadline: float = inf,
        on_first_request: Callable[[], None] | None = None,
        on_wait: Callable[[bool], None] | None = None,
    ) -> AttemptContext:
        """Return the context of a part of the attempt, such as a cell of a table.

        It waits by itself and its calls are its own; what stops the attempt stops it, until it is
        dissolved.
        """
        context = AttemptContext(self.job, deadline, on_first_request, on_wait, self._on_call)
        context._called = self._called
        context.calls = None if self.calls is None else self.calls.part(name)
        context._whole = self
        self.on_stop(context._stop_with_whole)
        return context

    def dissolve(self) -> None:
        """End a part of an attempt, which learns what ends all of it; safe to repeat."""
        whole = self._whole
        if whole is None:
            return
        whole.forget(self._stop_with_whole)
        whole.closed_account = self.closed_account or whole.closed_account
        if self.calls is not None and whole.calls is not None:
            whole.calls.take_over(self.calls)

    def _stop_with_whole(self) -> None:
        if self._whole is not None:
            self.stop(self._whole.stop_reason or "has ended")

    def stop(self, reason: str) -> None:
        """Let nothing be sent from now on ("was cancelled"), and interrupt calls of threads."""
        if self.stop_reason is not None:
            return
        self.stop_reason = reason
        listeners, self._stop_listeners = self._stop_listeners, {}
        for listener in listeners:
            listener()

    def check(self, now: float, resource: RequestResourceKey) -> None:
        """Refuse a request of an attempt that is over."""
        reason = self.stop_reason
        if reason is None and now > self.deadline + self.waited_seconds(now):
            reason = "has run past its time limit"
        if reason is not None:
            where = "/".join(resource)
            raise AttemptOver(f"Job {self.job!r} {reason}: its request to {where} was not sent.")

    def note_account(self, error: BaseException, provider: str) -> None:
        """Note that a request was not sent, since the account of its provider is closed."""
        if isinstance(error, AccountClosed):
            self.closed_account = provider

    def calls_provider(self, provider: str) -> None:
        """One of its requests is for this provider."""
        if provider not in self._called:
            self._called.add(provider)
            if self._on_call is not None:
                self._on_call(provider, len(self._called) == 1)

    def has_called(self, provider: str) -> bool:
        """One of its requests was for this provider; it may have been a permit alone."""
        return provider in self._called

    # ── Waiting for a permit ──────────────────────────────────────────────────────────────────

    def begin_wait(self, now: float) -> None:
        """One of its requests waits; several at once count once."""
        self._waiting += 1
        if self._waiting == 1:
            self.wait_began = now
            if self._on_wait is not None:
                self._on_wait(True)
        if self._on_first_request is not None:
            asked, self._on_first_request = self._on_first_request, None
            asked()

    def end_wait(self, now: float) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._waited_seconds += now - self.wait_began
            self.wait_began = inf
            if self._on_wait is not None:
                self._on_wait(False)

    @property
    def is_waiting(self) -> bool:
        return self._waiting > 0

    def waited_seconds(self, now: float) -> float:
        """Seconds spent waiting for permits so far; a time limit ends so much later."""
        return self._waited_seconds + (now - self.wait_began if self._waiting else 0.0)

    # ── Calls of threads, which nobody can cancel ─────────────────────────────────────────────

    def on_stop(self, listener: Callable[[], object]) -> None:
        """Call this on the loop when the attempt is stopped; at once if it was."""
        if self.stop_reason is not None:
            listener()
        else:
            self._stop_listeners[listener] = None

    def forget(self, listener: Callable[[], object]) -> None:
        self._stop_listeners.pop(listener, None)


#: Leases that this call, or one around it, was given. Whoever waits for another permit while it
#: holds one waits within its own time limit, else nested calls could deadlock for ever.
held_leases: ContextVar[tuple[RequestAdmissionLease, ...]] = ContextVar(
    "penstock_held_leases", default=()
)

#: Follows child tasks and threads of an attempt; None: outside of a run.
current: ContextVar[AttemptContext | None] = ContextVar("penstock_attempt_context", default=None)
