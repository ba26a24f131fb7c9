# SPDX-License-Identifier: Apache-2.0
"""Runs: their report, and the run record, what a worker saves about its part of one.

The record is read by other processes and perhaps by other versions: unknown fields are passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from penstock.model.job import WorkerId
from penstock.model.provider import ClosedAccount
from penstock.model.spending import BudgetStop

RUN_BYTES_MAX = 64 * 1024  # of a document
CAUSES_SHOWN = 100  # of a document, those with most time first; the rest is told as one
GATES_SHOWN = 50  # of a document, those with most time first


class RunReport(msgspec.Struct, frozen=True):
    """What a run inside a program did."""

    run_id: str
    done: int
    skipped: int
    errors: int  # jobs that ended in error in this run
    stopped: bool  # by a signal, before everything was done
    over_budget: str | None = None  # which budget has ended it, before everything was done
    ended_schedule: str | None = None  # which schedule has ended it, by using up its attempts
    closed_account: str | None = None  # which account has ended it, before everything was done


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How a run inside a program stands: what `on_progress=` is called with."""

    run_id: str
    done: int  # jobs that ended in this run, as the next three
    skipped: int
    errors: int
    cancelled: int
    running: int  # jobs of the app that workers have: in a slot, or next for one
    queued: int  # those that wait for their turn or time
    waiting: int  # those that wait for other jobs
    rate: float  # ends per second in this run, over the last ten seconds
    seconds: float  # since it began to work
    is_last: bool = False  # it has ended

    @property
    def ended(self) -> int:
        """Jobs that ended in this run, in whatever way."""
        return self.done + self.skipped + self.errors + self.cancelled

    @property
    def left(self) -> int:
        """Jobs of the app that have not ended."""
        return self.running + self.queued + self.waiting


#: Called about once a second, on the loop's thread; must be quick.
OnProgress = Callable[[RunProgress], object]


class RunPart(msgspec.Struct, frozen=True):
    """A worker's document about its part of a run; what is in it is the runtime's."""

    run_id: str
    worker: WorkerId
    saved_at: int
    document: str  # JSON


#: What one fact can be: a number, a word, or numbers by name.
CapacityFact = int | float | str | dict[str, float] | None


class CapacityValue(msgspec.Struct, frozen=True):
    """One value, and where it is from."""

    value: CapacityFact
    source: str = ""  # who said so; empty: nobody did
    fallback_from: str | None = None  # the setting that nobody made, so that a default counts
    missing_reason: str | None = None  # why there is no value


class AsyncCapacityPlan(msgspec.Struct, frozen=True):
    """The capacity of one run. What was observed is in `observed_maxima` only."""

    configured: dict[str, CapacityValue] = {}  # known at the start
    runtime_snapshot: dict[str, CapacityValue] = {}  # when the plan was written
    observed_maxima: dict[str, CapacityValue] = {}  # the most at once, so far


def missing(reason: str) -> CapacityValue:
    """There is no value, and this is why."""
    return CapacityValue(None, missing_reason=reason)


class LimitKind(StrEnum):
    """What can keep a worker from being faster."""

    SLOTS = "slots"  # all slots of a kind are taken
    FAIR_ORDER = "fair_order"  # a group has its share, and others are to come first
    KEYED_LIMIT = "keyed_limit"  # a limit key is full
    ADAPTIVE_LIMIT = "adaptive_limit"  # as many requests are in flight as a provider seems to take
    LEARNED_RATE = "learned_rate"  # as many a second as a provider seems to take
    MAX_PARALLEL = "max_parallel"  # as many requests are in flight as were declared
    RPM = "rpm"  # requests per minute, as declared
    TPM = "tpm"  # tokens per minute, as declared
    COOLDOWN = "cooldown"  # a provider wants a pause, or is unhealthy
    BUDGET = "budget"  # money or tokens that may be spent
    LATENCY = "latency"  # replies are on their way
    OWN_CODE = "own_code"  # of the tasks, on the loop, in threads, in processes
    DEPENDENCIES = "dependencies"  # jobs wait for others to end
    DELAYS = "delays"  # jobs are for later, or to be tried again
    ELSEWHERE = "elsewhere"  # other workers hold what is left
    SUSPECTS = "suspects"  # jobs that may have killed a worker run in quarantine
    LOST = "lost"  # workers that no longer answer hold what is left, until their leases end
    PAUSED = "paused"  # by an operator
    STORE = "store"  # a lease call or an acknowledgement is on its way
    IDLE = "idle"  # nothing was to do: not part of the whole


class CauseTime(msgspec.Struct, frozen=True):
    """For how long one thing limited a worker."""

    kind: LimitKind
    where: str = ""  # which slots, limit key, provider and model
    seconds: float = 0.0
    level: float | None = None  # where the limit stood, averaged over that time


class ActivityTime(msgspec.Struct, frozen=True):
    """What attempts did, in seconds summed over them."""

    kind: LimitKind  # own code, latency, or what a permit was waited for
    where: str = ""
    seconds: float = 0.0


class ModelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a provider, as a worker saw it."""

    provider: str
    model: str
    domains: tuple[str, ...] = ()
    requests: int = 0
    refused: int = 0
    failed: int = 0
    tokens: int = 0
    limit: int = 0  # requests that may be in flight, in the end
    limit_max: int = 0
    limit_reached: int = 0  # the highest it was
    in_flight_max: int = 0
    waiting_max: int = 0
    ceiling: float | None = None  # in flight when it was refused
    rpm: float | None = None  # this worker's part
    tpm: float | None = None
    mode: str = ""
    rate: float | None = None  # a second, as learned


class GateSeconds(msgspec.Struct, frozen=True):
    """How long something kept tasks waiting."""

    seconds: float  # in which at least one task waited
    task_seconds: float


class RunDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part of a run, up to one moment."""

    began_at: int
    told_at: int
    over: bool = False  # this is its last word
    within_seconds: float = 10.0  # else the next comes so soon, if there is anything to say
    worker: str = ""  # the name that it has now; its part has the first one
    place: int | None = None  # which of the run's workers it is; who replaces it has the same
    solo: bool = False  # it ran suspects only
    stops: tuple[BudgetStop, ...] = ()  # budgets that ended it before its work was done
    closed_accounts: tuple[ClosedAccount, ...] = ()  # accounts that did
    causes: tuple[CauseTime, ...] = ()  # one at each instant: they add up to its time
    doing: tuple[ActivityTime, ...] = ()
    ended: int = 0  # attempts whose ends are durable
    refused: int = 0  # ends that the store did not take
    retries: int = 0  # attempts that failed and may be tried again
    put_back: int = 0  # attempts that a provider refused; they come back uncharged
    cpu_seconds: float = 0.0  # processors worked for it
    late_seconds: float = 0.0  # its loop came so much later than it was to, all times together
    slots: dict[str, int] = {}  # by kind; of those that its tasks run on
    models: tuple[ModelFigures, ...] = ()
    gates: dict[str, GateSeconds] = {}
    used: dict[str, float] = {}  # resource → amount × seconds
    capacity: AsyncCapacityPlan = AsyncCapacityPlan()

    def encoded(self) -> str:
        """The document, in no more than RUN_BYTES_MAX."""
        text = msgspec.json.encode(self)
        if len(text) > RUN_BYTES_MAX:
            plan = AsyncCapacityPlan(self.capacity.configured)
            small = msgspec.structs.replace(self, gates={}, used={}, doing=(), capacity=plan)
            text = msgspec.json.encode(small)
        if len(text) > RUN_BYTES_MAX:
            bare = msgspec.structs.replace(small, models=(), capacity=AsyncCapacityPlan())
            text = msgspec.json.encode(bare)
        return text.decode()


_decode = msgspec.json.Decoder(RunDocument).decode


def read_document(document: str) -> RunDocument | None:
    """A document from its text; None if it is of a version that says it otherwise."""
    try:
        return _decode(document)
    except msgspec.MsgspecError:
        return None
