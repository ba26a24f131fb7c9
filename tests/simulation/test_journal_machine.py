# SPDX-License-Identifier: Apache-2.0
"""Does a store remember paid calls, and what they cost, as the rules say, whatever comes?

`HYPOTHESIS_PROFILE=soak` runs for minutes and draws new examples each time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.clock import to_micros
from penstock.model.job import AttemptError, ErrorCategory, JobId, JobState, LeasedJob, WorkerId
from penstock.model.job import NewJob as New
from penstock.model.journal import Answer, CallKey, CallRef, Intent, IntentVerdict
from penstock.model.lease import (
    ConfiguredCaps,
    JobEnd,
    JobFailure,
    JobRef,
    LeaseRequest,
    WorkerInfo,
)
from penstock.model.spending import Account, Amount, Budget, Period, utc_day
from penstock.model.views import FIRST_END
from penstock.stores.protocol import Store
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing.clocks import ManualClock
from tests.depth import SOAK
from tests.model.memory import MemoryStore
from tests.simulation.journal_model import JournalModel, ModelJob, sums_of
from tests.simulation.test_store_machine import PROFILE

JOBS = 2
WORKER = WorkerId("w")
TTL_SECONDS = 1e9
TROUBLE = AttemptError(ErrorCategory.OWN, "ValueError", "trouble")
DAY_SECONDS = 86_400.0

picks = st.integers(0, JOBS - 1)
names = st.sampled_from(["f", "g"])
lags = st.sampled_from([0, 0, 0, 1, 2])  # of how many leases ago
amounts = st.builds(Amount, st.integers(0, 5), st.integers(0, 50))
budgets = st.lists(
    st.builds(
        Budget,
        scope=st.sampled_from(["all", "provider:p", "model:p/m", "model:q/m", "task:t"]),
        period=st.sampled_from(Period),
        micros=st.none() | st.integers(0, 15),
        tokens=st.none() | st.integers(0, 150),
    ),
    max_size=2,
)
wanted = st.tuples(
    picks,
    names,
    lags,
    amounts,
    st.sampled_from(["r1", "r1", "r2"]),
    st.sampled_from("pq"),
    st.sampled_from("mn"),
)
calls = st.lists(st.tuples(picks, names, lags), min_size=1, max_size=3)


class JournalMachine(RuleBasedStateMachine):
    """The memory store against a model."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.model = JournalModel()
        self.ids: list[JobId] = []  # of all jobs, those that are forgotten too
        self.leases: dict[JobId, LeasedJob] = {}
        self._folder = tempfile.TemporaryDirectory()
        self.store = self.open_store(Path(self._folder.name))

    def open_store(self, folder: Path) -> Store:
        return MemoryStore(self.clock)

    def teardown(self) -> None:
        try:
            assert self.store.check().result() == []
            for key, call in self.model.calls.items():
                assert self.store.answer_of(key).result() == as_kept(call.answer)
        finally:
            self.store.close()
            self._folder.cleanup()

    @property
    def now(self) -> int:
        return self.clock.now_micros

    @initialize()
    def begin(self) -> None:
        info = WorkerInfo(id=WORKER, run_id="r1", tasks=("t",))
        self.store.register(info, TTL_SECONDS).result()
        for number in range(JOBS):
            self.enqueue(number)

    def enqueue(self, number: int) -> None:
        key = f"{number}-{len(self.ids)}"
        self.store.enqueue([New(key=key, task="t", payload="{}", group="g")]).result()
        job = self.store.job(key).result()
        assert job is not None
        self.model.jobs[job.id] = ModelJob()
        self.ids.append(job.id)

    def key(self, pick: int, name: str) -> CallKey:
        return CallKey(self.ids[-JOBS:][pick], name, 0)

    def known(self, pick: int, name: str) -> CallKey:
        """A call; one that there is, if there are any."""
        key = self.key(pick, name)
        return key if key in self.model.calls else min(self.model.calls, default=key)

    def token(self, job: JobId, lag: int) -> int:
        known = self.model.jobs.get(job)
        return max((known.token if known is not None else 9) - lag, 1)

    # Jobs

    @rule()
    def lease(self) -> None:
        request = LeaseRequest(worker=WORKER, tasks=("t",), limit=2, caps=ConfiguredCaps())
        for job in self.store.lease(request).result().jobs:
            self.leases[job.id] = job
            known = self.model.jobs[job.id]
            known.token, known.runs = job.token, True

    def taken(self) -> tuple[LeasedJob, ModelJob]:
        job_id, job = self.leases.popitem()
        known = self.model.jobs[job_id]
        known.runs = False
        return job, known

    @precondition(lambda self: self.leases)
    @rule()
    def give_back(self) -> None:
        job, _ = self.taken()
        self.store.release(WORKER, [JobRef(job.id, job.token)]).result()

    @precondition(lambda self: self.leases)
    @rule(charge=st.booleans(), spoils=st.sampled_from(["f", "fg", ""]))
    def fail(self, charge: bool, spoils: str) -> None:
        job, _ = self.taken()
        keys = tuple(CallKey(job.id, name, 0) for name in spoils)
        failure = JobFailure(
            ref=JobRef(job.id, job.token),
            key=job.key,
            task="t",
            error=TROUBLE,
            started_at=self.now,
            ended_at=self.now,
            delay_seconds=0,
            charge=charge,
            ends=False,
            spoils=keys,
        )
        self.store.fail_and_retry(WORKER, [failure]).result()
        for key in keys if charge else ():
            self.model.spoil(key)

    @rule(name=names, used=amounts, charge=st.booleans(), spoils=st.booleans())
    def attempt(self, name: str, used: Amount, charge: bool, spoils: bool) -> None:
        """A whole one: a call is bought or found, and then the task fails."""
        if not self.leases:
            self.lease()
        if not self.leases:
            return
        job_id, newest = next(reversed(self.leases)), self.ids[-JOBS:]
        if job_id not in newest:
            return  # purging has let others take its place since it was leased
        pick = newest.index(job_id)
        key = self.key(pick, name)
        known = self.model.calls.get(key)
        if known is None or known.state != "answered":
            self.intend([(pick, name, 0, used, "r1", "p", "m")], [])
            self.answered([(pick, name, 0)], used, b"reply")
        else:
            self.reused(pick, name)
        self.fail(charge, name if spoils else "")

    @precondition(lambda self: self.leases)
    @rule()
    def end(self) -> None:
        job, known = self.taken()
        known.ended_at = self.now
        self.store.ack(WORKER, [JobEnd(job, JobState.DONE, self.now, self.now)]).result()

    @rule(seconds=st.sampled_from([1.0, 1.0, DAY_SECONDS]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def purge(self) -> None:
        progress, _ = self.store.purge(self.now, FIRST_END).result()
        old = self.ended_before(self.now)
        assert progress.count == len(old)
        for job in old:
            self.model.forget(job)
            del self.model.jobs[job]
            self.enqueue(self.ids.index(JobId(job)))

    @rule(seconds=st.sampled_from([0.0, 2.0]))
    def prune(self, seconds: float) -> None:
        before = self.now - to_micros(seconds)
        progress, last = self.store.prune_calls(before, JobId(0)).result()
        assert progress.more == bool(self.model.calls)
        assert progress.count == sum(map(self.model.forget, self.ended_before(before)))
        if progress.more:
            assert self.store.prune_calls(before, last).result()[0].more is False

    def ended_before(self, before: int) -> list[int]:
        jobs = self.model.jobs.items()
        return [job for job, known in jobs if known.ended_at and known.ended_at < before]

    # Calls

    @rule(batch=st.lists(wanted, min_size=1, max_size=3), limits=budgets)
    def intend(
        self,
        batch: list[tuple[int, str, int, Amount, str, str, str]],
        limits: list[Budget],
    ) -> None:
        intents = [
            Intent(
                key=self.key(pick, name),
                token=self.token(self.key(pick, name).job, lag),
                run_id=run_id,
                task="t",
                provider=provider,
                model=model,
                reserved=reserved,
                resent=reserved.tokens % 3,
            )
            for pick, name, lag, reserved, run_id, provider, model in batch
        ]
        expected = [self.model.intend(intent, limits, self.now) for intent in intents]

        verdicts = self.store.intend(intents, limits).result()

        assert [_in_a_word(verdict) for verdict in verdicts] == expected

    @rule(batch=calls, used=amounts, body=st.binary(max_size=3))
    def answered(self, batch: list[tuple[int, str, int]], used: Amount, body: bytes) -> None:
        answers = [
            Answer(
                self.known(pick, name),
                200,
                (("date", name),),
                body,
                used,
                1,
                2,
                is_estimated=used.tokens % 2 == 1,
            )
            for pick, name, _ in batch
        ]
        self.store.answered(answers).result()
        for answer in answers:
            self.model.answered(answer, self.now)

    @rule(batch=calls)
    def closed(self, batch: list[tuple[int, str, int]]) -> None:
        refs = self.refs(batch)
        self.store.closed(refs).result()
        for key, token in refs:
            self.model.closed(key, token, self.now)

    @rule(batch=calls)
    def held(self, batch: list[tuple[int, str, int]]) -> None:
        refs = self.refs(batch)
        self.store.held(refs).result()
        for key, token in refs:
            self.model.held(key, token)

    def refs(self, batch: list[tuple[int, str, int]]) -> list[CallRef]:
        keys = [(self.known(pick, name), lag) for pick, name, lag in batch]
        return [CallRef(key, self.token(key.job, lag)) for key, lag in keys]

    @rule(pick=picks, name=names)
    def reused(self, pick: int, name: str) -> None:
        key = self.known(pick, name)
        known = self.model.calls.get(key)
        sums = sums_of(known.intent, utc_day(self.now)) if known is not None else []
        accounts = [Account(scope, Period(period), span) for scope, period, span in sums]
        self.store.reused([key], accounts).result()
        self.model.reused(key, sums)

    # What holds at any time

    @invariant()
    def tells_the_same(self) -> None:
        for job in self.ids[-JOBS:]:
            assert self.store.calls(job).result() == self.model.records(job)
            assert self.store.call_figures(job).result() == self.model.figures(job)
        assert self.store.call_figures(None).result() == self.model.figures(None)
        spans = ["r1", "r2", utc_day(self.now), "total"]
        for balance in self.store.balances(spans).result():
            scope, period, span, _ = balance.account
            counts = balance.bought, balance.reused, balance.resent, balance.estimated
            kept = (*balance.spent, *balance.reserved, *counts, *balance.in_doubt)
            assert kept == self.model.told((scope, str(period), span)), balance.account


def as_kept(answer: Answer | None) -> Answer | None:
    return answer and msgspec.structs.replace(answer, is_estimated=False)


def _in_a_word(verdict: IntentVerdict) -> object:
    if verdict.written:
        return "written"
    return "stale" if verdict.is_stale else verdict.over


class SqliteJournalMachine(JournalMachine):
    """The embedded store against a model."""

    def open_store(self, folder: Path) -> Store:
        path = folder / "store.db"
        return SqliteStore.open(path, clock=self.clock, boot_clock=self.clock, durability="normal")


@pytest.mark.timeout(7_200 if SOAK else 600)
@pytest.mark.parametrize(
    ("machine", "examples"), [(JournalMachine, 40), (SqliteJournalMachine, 12)]
)
def test_a_store_remembers_calls_as_its_model_does(
    machine: type[JournalMachine], examples: int
) -> None:
    examples = PROFILE.max_examples if SOAK else examples
    run_state_machine_as_test(machine, settings=settings(PROFILE, max_examples=examples))
