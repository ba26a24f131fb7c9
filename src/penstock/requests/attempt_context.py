# SPDX-License-Identifier: Apache-2.0
"""May the attempt that runs here still send, and how long did it wait for permits?

The runtime sets the variable around a task's body; it follows child tasks and threads. User code
that goes on after its job was stopped can then spend nothing more, and waiting for a permit does
not eat up the time limit of a task.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from math import inf
from typing import NamedTuple

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.errors import AttemptOver
from penstock.model.provider import RequestResourceKey
from penstock.redaction.content_guard import Heard
from penstock.requests.journal.attempt_calls import AttemptCalls


class Refused(NamedTuple):
    """A reply that asks for patience."""

    where: str  # PROVIDER/MODEL
    status: int


class Standing:
    """Owns whether one attempt may send. Belongs to the loop; threads only read."""

    __slots__ = (
        "_listeners",
        "_waiting",
        "_waiting_since",
        "calls",
        "deadline",
        "has_sent",
        "heard",
        "job",
        "money_of",
        "over",
        "refused",
        "waited",
    )

    def __init__(self, job: str, deadline: float = inf) -> None:
        self.job = job  # its key, for sentences
        self.deadline = deadline  # monotonic; waits for permits come on top
        self.over: str | None = None  # why nothing may be sent any more
        self.has_sent = False  # one of its requests was given a permit
        self.heard = Heard()  # what it has asked, and was told
        self.waited = 0.0  # seconds, of waits that have ended
        self.calls: AttemptCalls | None = None  # those that cost money; None: none does
        self.money_of: str | None = None  # the budget that a call of it waits for
        self.refused: Refused | None = None  # its last reply, if that was a refusal
        self._waiting = 0
        self._waiting_since = 0.0
        self._listeners: dict[Callable[[], object], None] = {}

    def __repr__(self) -> str:
        return f"<Standing of {self.job!r}: {self.over or 'may send'}>"

    def stop(self, why: str) -> None:
        """Nothing may be sent from now on ("was cancelled"); calls of threads are broken off."""
        if self.over is not None:
            return
        self.over = why
        listeners, self._listeners = self._listeners, {}
        for listener in listeners:
            listener()

    def check(self, now: float, resource: RequestResourceKey) -> None:
        """Refuse a request of an attempt that is over."""
        over = self.over
        if over is None and now > self.deadline + self.waited_until(now):
            over = "has run past its time limit"
        if over is not None:
            where = "/".join(resource)
            raise AttemptOver(f"Job {self.job!r} {over}: its request to {where} was not sent.")

    # ── Waiting for a permit ──────────────────────────────────────────────────────────────────

    def wait_begins(self, now: float) -> None:
        """One of its requests waits; several at once count once."""
        if not self._waiting:
            self._waiting_since = now
        self._waiting += 1

    def wait_ends(self, now: float) -> None:
        self._waiting -= 1
        if not self._waiting:
            self.waited += now - self._waiting_since

    def waited_until(self, now: float) -> float:
        """Seconds spent waiting for permits so far; a time limit ends so much later."""
        return self.waited + (now - self._waiting_since if self._waiting else 0.0)

    # ── Calls of threads, which nobody can cancel ─────────────────────────────────────────────

    def listen(self, listener: Callable[[], object]) -> None:
        """Call this on the loop when the attempt is stopped; at once if it was."""
        if self.over is not None:
            listener()
        else:
            self._listeners[listener] = None

    def forget(self, listener: Callable[[], object]) -> None:
        self._listeners.pop(listener, None)


#: Leases that this call, or one around it, was given: who waits for another permit while it keeps
#: one back waits at its own cost, else calls inside calls could stand still for ever.
given: ContextVar[tuple[RequestAdmissionLease, ...]] = ContextVar("penstock_given", default=())

#: Follows child tasks and threads of an attempt; None: no run is about us.
current: ContextVar[Standing | None] = ContextVar("penstock_standing", default=None)


class AttemptStanding(Standing):
    """The standing of one running attempt; tells when it waits for its provider, and no longer."""

    __slots__ = ("_asked", "_waits", "wait_began")

    def __init__(
        self,
        job: str,
        deadline: float,
        asked: Callable[[], None],
        waits: Callable[[bool], None] | None = None,
    ) -> None:
        super().__init__(job, deadline)
        self._asked: Callable[[], None] | None = asked  # for the first time
        self._waits = waits
        self.wait_began = inf  # monotonic: since when it waits for a permit; inf: it does not

    def wait_begins(self, now: float) -> None:
        super().wait_begins(now)
        if self.wait_began == inf:
            self.wait_began = now
            if self._waits is not None:
                self._waits(True)
        if self._asked is not None:
            asked, self._asked = self._asked, None
            asked()

    def wait_ends(self, now: float) -> None:
        super().wait_ends(now)
        if not self._waiting:
            self.wait_began = inf
            if self._waits is not None:
                self._waits(False)

    @property
    def is_waiting(self) -> bool:
        return self.wait_began != inf
