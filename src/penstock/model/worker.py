# SPDX-License-Identifier: Apache-2.0
"""The status that a worker publishes, and its report on one lease.

A status is the document of its row, a report what it answers when it is asked about one lease. Both
are JSON, read by other processes and perhaps by other versions: unknown fields are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple, TypeVar

import msgspec

from penstock.model.job import WorkerId
from penstock.model.lease import JobRef
from penstock.model.provider import ClosedAccount, ProviderModelKey
from penstock.model.spending import BudgetRefusal
from penstock.model.views import WorkerView

D = TypeVar("D")

STATUS_BYTES_MAX = 16 * 1024  # of a document; groups and lines are left out before it is more
GROUPS_SHOWN = 20  # groups of a document, those with most tasks first
TASKS_SHOWN = 100  # tasks of a document, by name
CAPS_SHOWN = 100  # caps of a document; more are not told at all
PROVIDERS_SHOWN = 50  # models of providers of a document, those with most requests first
LINES_SHOWN = 20  # reasons to wait of a document, those with most tasks first
PROGRESS_SHOWN = 5  # jobs of a document that tell how far they are
FULL_SHOWN = 10  # full limits of a document
OVERDUE_BEATS = 1.5  # without a renewal for so many beats nobody is there, most likely


class SlotUse(msgspec.Struct, frozen=True):
    """How much there is of a resource, and how much of it is in use."""

    limit: int | None  # None: as much as is asked for
    used: int
    lent: int = 0  # of what is used: by those that wait for a provider, so others may have more

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.used >= self.limit + self.lent


class GroupUse(msgspec.Struct, frozen=True):
    """What a group has here."""

    running: int
    waiting: int  # leased, and not started
    debt: int = 0  # what it has borrowed beyond its share


class BlockedTasks(msgspec.Struct, frozen=True):
    """Leased jobs that cannot start now, and what they wait for."""

    reason: str  # a DenialReason
    until: str  # what has to change: an Until
    resource: str | None
    tasks: int
    groups: int
    since_at: int  # when this was first seen
    numbers: dict[str, float] = {}
    available_at: int | None = None  # when it ends by itself, if that is known

    def same_gate(self, other: BlockedTasks) -> bool:
        """Whether these wait for the same thing."""
        return (self.reason, self.until, self.resource) == (
            other.reason,
            other.until,
            other.resource,
        )

    def since(self, since_at: int) -> BlockedTasks:
        return msgspec.structs.replace(self, since_at=since_at)


class ProviderUse(msgspec.Struct, frozen=True, kw_only=True):
    """How requests to one model of a provider fare in one worker."""

    provider: str
    model: str
    limit: int  # requests that may be in flight now
    limit_max: int  # by what was declared
    in_flight: int = 0
    waiting: int = 0
    refused: int = 0  # so often, since the worker began
    failed: int = 0  # 5xx, no connection, no reply in time; so often, since the worker began
    failed_in_row: int = 0  # up to now, without a reply that was better
    blocked_until_at: int | None = None  # nothing is sent before; None: no cool-down
    requests_last_minute: int = 0
    tokens_last_minute: int = 0
    rpm: float | None = None  # as declared, this worker's part
    tpm: float | None = None
    algorithm: str = ""
    mode: str = ""  # what the provider seems to limit
    rate: float | None = None  # a second, of what the mode counts; None: it limits no rate
    ceiling: float | None = None  # in flight when it was refused


class WorkProgress(msgspec.Struct, frozen=True):
    """How far a body is, as it says."""

    done: float
    total: float | None = None

    def format(self) -> str:
        """12 of 40 (30%); 12 if nobody knows of how many."""
        if self.total is None:
            return f"{self.done:,g}"
        part = "" if not self.total > 0 else f" ({int(100 * self.done / self.total)}%)"
        return f"{self.done:,g} of {self.total:,g}{part}"


class JobProgress(msgspec.Struct, frozen=True):
    """A running job that tells how far it is."""

    key: str
    started_at: int
    progress: WorkProgress


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one moment."""

    captured_at: int
    process: str = ""  # its mark: whoever is on the same machine can see whether it is gone
    supervisor: str = ""  # the mark of the process that reports its death; none: nobody does
    lease_ttl_seconds: float = 0.0  # that every renewal gives it
    beat_seconds: float = 0.0  # between two renewals
    solo: bool = False  # it runs only jobs that may have killed a worker, one cell after the other
    place: int | None = None  # which of its run's workers it is; who replaces it has the same
    stopping: bool = False
    app: str = ""  # whose jobs it runs
    plan: str | None = None  # of a daemon: the mark of the units that it has planned
    slots: dict[str, SlotUse] = {}  # by resource
    task_slots: dict[str, str] = {}  # task → the resource that its bodies run on; a bounded number
    running: int = 0  # jobs; tasks of their graphs count in slots and groups alone
    waiting: int = 0  # leased, and not started
    groups: dict[str, GroupUse] = {}  # a bounded number
    groups_total: int = 0
    blocked: tuple[BlockedTasks, ...] = ()  # a bounded number
    caps: dict[str, int] | None = None  # as configured for it; None: too many to tell
    providers: tuple[ProviderUse, ...] = ()  # a bounded number
    held_back: dict[str, str] = {}  # task → the provider that could not serve it now
    full_limits: dict[str, int] = {}  # keyed limits that held jobs back lately → what they allow
    over_budget: dict[str, BudgetRefusal] = {}  # task → the budget that holds it back in this run
    closed_accounts: tuple[ClosedAccount, ...] = ()  # with the tasks that wait for them
    progress: tuple[JobProgress, ...] = ()  # of jobs that tell it, those that began first

    def same(self, other: WorkerStatus) -> bool:
        """Whether nothing in it is new but its time."""
        return self == msgspec.structs.replace(other, captured_at=self.captured_at)

    def encoded(self) -> str:
        """The document, in no more than STATUS_BYTES_MAX."""
        return _bounded(self, self)


class LeasePhase(StrEnum):
    """Where a lease is in its worker."""

    RUNNING = "running"
    WAITING = "waiting"  # for a slot, or for its turn
    STOPPING = "stopping"  # it was told to stop, and its body goes on
    ENDED = "ended"  # its end is on the way to the store
    UNKNOWN = "unknown"  # this worker has no such lease


class LeaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker answers when it is asked about one lease."""

    standing: LeasePhase
    status: WorkerStatus
    since_at: int | None = None  # when its body began
    deadline_at: int | None = None  # when its body is stopped
    permit_since_at: int | None = None  # since when it waits for a provider's permit
    permit_of: str | None = None  # whose, if its task says so
    money_of: str | None = None  # the budget that it waits for, and no permit
    progress: WorkProgress | None = None  # as its body says
    denied: BlockedTasks | None = None  # why it does not start, if anything is known to stop it

    def encoded(self) -> str:
        """The document, in no more than STATUS_BYTES_MAX."""
        return _bounded(self, self.status)


_decode_status = msgspec.json.Decoder(WorkerStatus).decode
_decode_lease_report = msgspec.json.Decoder(LeaseReport).decode


def read_status(document: str | None) -> WorkerStatus | None:
    """A status from its document; None if it is of a version that says it otherwise."""
    return _decoded(document, _decode_status)


def read_lease_report(document: str | None) -> LeaseReport | None:
    """An answer from its document; None if it is of a version that says it otherwise."""
    return _decoded(document, _decode_lease_report)


def _decoded(document: str | None, decode: Callable[[str], D]) -> D | None:
    if document is None:
        return None
    try:
        return decode(document)
    except msgspec.MsgspecError:
        return None


def _bounded(whole: WorkerStatus | LeaseReport, status: WorkerStatus) -> str:
    text = msgspec.json.encode(whole)
    if len(text) > STATUS_BYTES_MAX:
        small = msgspec.structs.replace(
            status,
            task_slots={},
            groups={},
            blocked=(),
            caps=None,
            providers=(),
            held_back={},
            full_limits={},
            over_budget={},
            closed_accounts=(),
            progress=(),
        )
        text = msgspec.json.encode(
            small
            if isinstance(whole, WorkerStatus)
            else msgspec.structs.replace(whole, status=small)
        )
    return text.decode()


class UnresponsiveWorker(msgspec.Struct, frozen=True):
    """A worker that no longer responds, and holds what it held until its lease ends."""

    worker: WorkerId
    run_id: str
    host: str
    pid: int
    lease_seconds: float  # until its lease ends
    is_gone: bool  # its process certainly is; else it has only not been heard of
    jobs: int  # that it held when it last told of itself

    @property
    def name(self) -> str:
        """The worker's name for people."""
        return f"{self.worker!r} (pid {self.pid} on {self.host})"


def find_unresponsive(
    view: WorkerView, is_gone: Callable[[str], bool]
) -> UnresponsiveWorker | None:
    """A worker that does not respond; None if it does, or if its lease is over anyway."""
    status = read_status(view.status) if view.alive else None
    if status is None:
        return None
    gone = bool(status.process) and is_gone(status.process)
    unheard = status.lease_ttl_seconds - view.lease_seconds
    overdue = status.beat_seconds > 0 and unheard > OVERDUE_BEATS * status.beat_seconds
    if not (gone or overdue):
        return None
    return UnresponsiveWorker(
        view.id,
        view.run_id,
        view.host,
        view.pid,
        view.lease_seconds,
        gone,
        status.running + status.waiting,
    )


def unresponsive_workers(
    views: Iterable[WorkerView], is_gone: Callable[[str], bool]
) -> dict[WorkerId, UnresponsiveWorker]:
    """Those that no longer respond, in their order."""
    found = (find_unresponsive(view, is_gone) for view in views)
    return {one.worker: one for one in found if one is not None}


def responsive_workers(
    views: Iterable[WorkerView], is_gone: Callable[[str], bool]
) -> list[WorkerView]:
    """Without those that no longer respond."""
    return [view for view in views if find_unresponsive(view, is_gone) is None]


def is_abandoned(view: WorkerView, is_gone: Callable[[str], bool]) -> bool:
    """Whether a worker is certainly gone, and so is whoever would report it."""
    status = read_status(view.status)
    if status is None or not status.process:
        return False
    return is_gone(status.process) and (not status.supervisor or is_gone(status.supervisor))


def living_workers(views: Iterable[WorkerView], is_gone: Callable[[str], bool]) -> list[WorkerView]:
    """Those whose lease goes on and that may still act: no one that is only silent is left out."""
    return [view for view in views if view.alive and not is_abandoned(view, is_gone)]


class Question(msgspec.Struct, frozen=True):
    """Asks a worker about one lease; answered with a `LeaseReport`."""

    id: int
    ref: JobRef


class Inbox(msgspec.Struct, frozen=True):
    """What a worker finds when it looks."""

    detached: list[JobRef]  # leases that are over while their bodies may still run
    questions: list[Question]  # without an answer yet


class ReportedUse(NamedTuple):
    """What a worker says of one model of a provider."""

    use: ProviderUse
    status: WorkerStatus
    view: WorkerView
    is_own_part: bool  # its limits are its own: they add up with those of others


def reported_uses(workers: Iterable[WorkerView]) -> dict[ProviderModelKey, list[ReportedUse]]:
    """By model, what each live worker says of it."""
    found: dict[ProviderModelKey, list[ReportedUse]] = {}
    for view in workers:
        status = read_status(view.status) if view.alive else None
        if status is None:
            continue
        for use in status.providers:
            key = ProviderModelKey(use.provider, use.model)
            found.setdefault(key, []).append(ReportedUse(use, status, view, True))
    return {key: _with_owners(told) for key, told in found.items()}


def _with_owners(told: list[ReportedUse]) -> list[ReportedUse]:
    """Of those at one place, the one that serves it: neither solo nor stopping, the youngest."""
    owners: dict[tuple[str, int | None], ReportedUse] = {}
    for one in told:
        known = owners.get(_place(one))
        if known is None or _rank(one) > _rank(known):
            owners[_place(one)] = one
    return [
        one._replace(is_own_part=one.status.place is None or owners[_place(one)] is one)
        for one in told
    ]


def _place(one: ReportedUse) -> tuple[str, int | None]:
    return one.view.run_id, one.status.place


def _rank(one: ReportedUse) -> tuple[bool, bool, int]:
    return not one.status.solo, not one.status.stopping, one.view.started_at
