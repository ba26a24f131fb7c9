# SPDX-License-Identifier: Apache-2.0
"""What does each operation of a store answer and leave behind, if it happens exactly once?

Each kind is called again and again while something is done to its transactions; each call must
answer as if nothing had been done, and at the end the store must hold just what was answered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.model.job import JobState, LeasedJob
from penstock.model.lease import EnqueueJobs, Verdict
from penstock.model.views import FIRST_END
from tests.faults.pg_world import (
    SECONDS,
    TTL_SECONDS,
    WORKER,
    Place,
    done,
    failed,
    is_sound,
    lease,
    new_jobs,
    ref,
    register,
    request,
    states,
)

PAIR = 2  # jobs that one call is about
_SLICE = 1_000


class Operation(ABC):
    """Calls of one kind. Owns what was answered so far."""

    def __init__(self, place: Place, calls: int) -> None:
        self.place = place
        self.store = place.store
        self.calls = 0
        self.ready: list[LeasedJob] = []
        register(self.store)
        self.prepare(calls)

    def prepare(self, calls: int) -> None:
        """Make what the calls are about."""
        self.enqueue(calls)
        while len(self.ready) < PAIR * calls:
            self.ready += lease(self.store, min(_SLICE, PAIR * calls - len(self.ready)))

    def enqueue(self, calls: int) -> None:
        for start in range(0, PAIR * calls, _SLICE):
            count = min(_SLICE, PAIR * calls - start)
            self.store.enqueue(new_jobs(count, f"k{start}-")).result(SECONDS)

    def next_pair(self) -> list[LeasedJob]:
        return [self.ready.pop() for _ in range(PAIR)]

    def call(self) -> None:
        """Call once; the answer is that of a call that happened once."""
        self.act()
        self.calls += 1

    @abstractmethod
    def act(self) -> None: ...

    @abstractmethod
    def settle_accounts(self) -> None:
        """The store holds what was answered, no more and no less."""

    def audit(self) -> None:
        assert is_sound(self.store)
        known = {(job.id, job.token) for job in self.ready}
        assert self.place.leased() == known
        self.settle_accounts()


class Enqueue(Operation):
    def prepare(self, calls: int) -> None:
        return

    def act(self) -> None:
        jobs = new_jobs(PAIR, f"n{self.calls}-")
        report = self.store.enqueue(jobs).result(SECONDS)

        assert report.created == {job.key for job in jobs}
        assert not report.existing

    def settle_accounts(self) -> None:
        assert states(self.store) == {"queued": PAIR * self.calls}


class Lease(Operation):
    def prepare(self, calls: int) -> None:
        self.enqueue(calls)

    def act(self) -> None:
        jobs = self.store.lease(request(PAIR)).result(SECONDS).jobs

        assert len(jobs) == PAIR
        assert not {job.id for job in jobs} & {job.id for job in self.ready}
        assert {job.token for job in jobs} == {1}, "leased before"
        self.ready += jobs

    def settle_accounts(self) -> None:
        assert states(self.store)["in_progress"] == PAIR * self.calls


class Acknowledge(Operation):
    """With an effect each: a child that is accepted in the same transaction."""

    def act(self) -> None:
        ends = [done(job) for job in self.next_pair()]
        for end in ends:
            end.effects = (EnqueueJobs(tuple(new_jobs(1, f"{end.job.key}/child-"))),)
        verdicts = self.store.ack(WORKER, ends).result(SECONDS)

        assert verdicts == [Verdict.ACCEPTED] * PAIR

    def settle_accounts(self) -> None:
        counts = states(self.store)
        assert counts["done"] == counts["queued"] == PAIR * self.calls
        assert self.place.ask("select count(*) from penstock.attempts") == 0


class FailAndRetry(Operation):
    def act(self) -> None:
        failures = [failed(job) for job in self.next_pair()]

        verdicts = self.store.fail_and_retry(WORKER, failures).result(SECONDS)

        assert verdicts == [Verdict.ACCEPTED] * PAIR

    def settle_accounts(self) -> None:
        assert states(self.store)["queued"] == PAIR * self.calls
        ended = self.place.column(
            "select attempts, count(*) from penstock.hot where row_state = 1 group by 1"
        )
        assert ended == [(1, PAIR * self.calls)], "charged twice, or not at all"
        assert self.place.ask("select count(*) from penstock.attempts") == PAIR * self.calls


class Beat(Operation):
    def prepare(self, calls: int) -> None:
        return

    def act(self) -> None:
        assert self.store.beat([WORKER], TTL_SECONDS).result(SECONDS) == {WORKER}

    def settle_accounts(self) -> None:
        (worker,) = self.store.workers().result(SECONDS)
        assert worker.id == WORKER


class Release(Operation):
    def act(self) -> None:
        refs = [ref(job) for job in self.next_pair()]

        assert self.store.release(WORKER, refs).result(SECONDS) == PAIR

    def settle_accounts(self) -> None:
        assert states(self.store)["queued"] == PAIR * self.calls
        assert self.place.ask("select max(losses + attempts) from penstock.hot") == 0


class Cancel(Operation):
    def prepare(self, calls: int) -> None:
        self.enqueue(calls)
        self.keys = [str(row[0]) for row in self.place.column("select key from penstock.jobs")]

    def act(self) -> None:
        keys = [self.keys.pop() for _ in range(PAIR)]

        assert self.store.cancel(keys).result(SECONDS) == set(keys)

    def settle_accounts(self) -> None:
        assert states(self.store)["cancelled"] == PAIR * self.calls


class Purge(Operation):
    def prepare(self, calls: int) -> None:
        super().prepare(calls)
        self.left = len(self.ready)
        ends = [done(job, ended_at=10 + n // PAIR) for n, job in enumerate(self.ready)]
        for start in range(0, len(ends), _SLICE):
            self.store.ack(WORKER, ends[start : start + _SLICE]).result(SECONDS)
        self.ready.clear()

    def act(self) -> None:
        progress, _ = self.store.purge(11 + self.calls, FIRST_END).result(SECONDS)

        assert progress.count == PAIR
        self.left -= PAIR

    def settle_accounts(self) -> None:
        assert states(self.store).get(JobState.DONE, 0) == self.left
        assert self.place.ask("select count(*) from penstock.jobs") == self.left


OPERATIONS: dict[str, type[Operation]] = {
    "enqueue": Enqueue,
    "lease": Lease,
    "ack": Acknowledge,
    "fail_and_retry": FailAndRetry,
    "beat": Beat,
    "release": Release,
    "cancel": Cancel,
    "purge": Purge,
}
