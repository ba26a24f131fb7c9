# SPDX-License-Identifier: Apache-2.0
"""A long pause that one process was told of holds for all, and no call waits for the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.admission.requests.account import AccountGate
from penstock.admission.requests.adaptive.limit import Adaptive
from penstock.admission.requests.algorithm import SHARED_SECONDS, LimitAlgorithm
from penstock.admission.requests.decisions import RequestAdmissionDenied, RequestAdmissionLease
from penstock.admission.requests.policy import ProviderPolicy
from penstock.errors import StoreBusy
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import Quota, QuotaReading, RequestOutcome, RequestReleaseOutcome
from penstock.requests.admission import RequestAdmissionController
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.testing import ManualClock
from penstock.worker.cooldowns import LOOK_SECONDS, SharedCooldowns
from tests.requests import CHAT, Core, aimd, item, policy, refused

EMBEDDING = CHAT._replace(domain="embedding")
HOUR = 3_600.0


def adaptive(
    declared: ProviderPolicy, key: ProviderModelKey, effective_max: int, now: float
) -> LimitAlgorithm:
    return Adaptive(effective_max, now, lambda: 0.0)


class Process:
    """One of the processes of a store."""

    def __init__(
        self,
        store: InProcessStore,
        clock: ManualClock,
        algorithm: str = "adaptive",
        account: str = "",
        run_id: str = "run",
    ) -> None:
        make = aimd if algorithm == "aimd" else adaptive
        self.core = Core(policy(8, algorithm=algorithm), make=make)
        self.admission = RequestAdmissionController(self.core, clock)
        self.marks = {"p": account}
        self.shared = SharedCooldowns(
            store, clock, self.admission, self.marks.get, app="shop", run_id=run_id
        )

    @property
    def is_closed(self) -> bool:
        return self._account.is_closed

    @property
    def is_left_alone(self) -> bool:
        return self._account.refuses(self.admission._monotonic())

    @property
    def _account(self) -> AccountGate:
        return self.core.tree.provider("p", 0.0).account

    def meet(self, outcome: RequestReleaseOutcome, resource: RequestResourceKey = CHAT) -> None:
        lease = self.admission.try_acquire(item(resource))
        assert isinstance(lease, RequestAdmissionLease)
        self.admission.release(lease, outcome)

    def seconds_left(self, resource: RequestResourceKey = CHAT) -> float:
        """For how long a request is kept back; 0: it leaves."""
        decision = self.admission.try_acquire(item(resource))
        if isinstance(decision, RequestAdmissionDenied):
            return decision.retry_after_seconds or 0.0
        self.admission.release(decision, RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED))
        return 0.0


@pytest.mark.parametrize("algorithm", ["adaptive", "aimd"])
def test_another_process_sends_nothing_before_the_end(algorithm: str) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        told, other = Process(store, clock, algorithm), Process(store, clock, algorithm)
        told.meet(refused(HOUR))
        assert told.shared.is_due
        await told.shared.share()
        clock.advance(60)

        await other.shared.share()
        late = Process(store, clock, algorithm)
        await late.shared.share()

        for one in (told, other, late):
            assert one.seconds_left() == pytest.approx(HOUR - 60, abs=0.5)
        clock.advance(HOUR - 60 + 0.5)
        for one in (told, other, late):
            await one.shared.share()
            assert one.seconds_left() == 0.0

    asyncio.run(scenario())


CLOSED = RequestReleaseOutcome(RequestOutcome.ACCOUNT_CLOSED, status=401, said="no such key")
SUCCESS = RequestReleaseOutcome(RequestOutcome.SUCCESS)


def test_one_process_at_a_time_probes_a_closed_account_and_its_reply_counts_for_all() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        processes = [Process(store, clock) for _ in range(3)]
        processes[0].meet(CLOSED)
        waits: list[float] = []
        last = clock.monotonic()
        while len(waits) < 4:
            for one in processes:
                await one.shared.share()
            leaving = [one for one in processes if not one.is_left_alone]
            assert len(leaving) <= 1, "two processes probe it"
            for one in leaving:
                waits.append(clock.monotonic() - last)
                last = clock.monotonic()
                one.meet(CLOSED)
                processes.append(processes.pop(0))  # whoever looks first has it
            clock.advance(LOOK_SECONDS)
        assert waits == pytest.approx([30, 60, 120, 240], abs=2 * LOOK_SECONDS)

        while not (leaving := [one for one in processes if not one.is_left_alone]):
            clock.advance(LOOK_SECONDS)
            for one in processes:
                await one.shared.share()
        leaving[0].meet(SUCCESS)
        for _ in range(2):
            for one in processes:
                await one.shared.share()
        assert [one.is_closed for one in processes] == [False] * 3
        assert store.cooldowns().result() == []

    asyncio.run(scenario())


def test_a_new_run_probes_a_closed_account_once_and_other_workers_of_it_wait_for_that() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        told = Process(store, clock)
        told.meet(CLOSED)
        await told.shared.share()
        later = [Process(store, clock, run_id="later") for _ in range(2)]
        for one in later:
            await one.shared.share()
        assert [one.is_left_alone for one in later] == [False, True]
        assert later[1].shared.is_probed_elsewhere("p")
        again = Process(store, clock)  # a worker of the same run that was replaced
        await again.shared.share()
        assert again.is_left_alone

        later[0].meet(SUCCESS)
        for one in (*later, told, again):
            await one.shared.share()
        assert not any(one.is_closed for one in (*later, told, again))

    asyncio.run(scenario())


def test_a_key_that_was_replaced_is_tried_by_one_and_used_by_all_that_know_it() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        first, second = Process(store, clock, account="old"), Process(store, clock, account="old")
        first.meet(CLOSED)
        for one in (first, second):
            await one.shared.share()
            assert one.is_left_alone
            one.marks["p"] = "new"
        for one in (first, second, first, second):
            await one.shared.share()
        assert [one.is_left_alone for one in (first, second)] == [False, True]

        clock.advance(0.1)
        first.meet(CLOSED)  # that one is dead as well
        for one in (first, second):
            await one.shared.share()
        assert [one.is_left_alone for one in (first, second)] == [True, True]
        assert [one.key.account for one in store.cooldowns().result()] == ["new"]

        other = Process(store, clock, account="another")
        await other.shared.share()
        assert not other.is_closed

    asyncio.run(scenario())


def test_apps_whose_keys_are_not_known_close_their_own_accounts() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        told = Process(store, clock)
        told.meet(CLOSED)
        await told.shared.share()
        (kept,) = store.cooldowns().result()
        assert kept.key.account == "@shop"

    asyncio.run(scenario())


def test_a_key_that_cannot_be_read_here_is_nobody_elses_matter() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        process = Process(store, clock)
        process.admission.close_account("p", "The secret cannot be read.")
        await process.shared.share()
        assert store.cooldowns().result() == []
        assert process.is_left_alone
        clock.advance(31)
        await process.shared.share()
        assert not process.is_left_alone  # it needs nobody's leave

    asyncio.run(scenario())


READING = QuotaReading(Quota.REQUESTS, 100, 0, 86_400, HOUR, used_up_seconds=HOUR)


@pytest.mark.parametrize(
    ("outcome", "is_told"),
    [
        (refused(SHARED_SECONDS), True),
        (refused(SHARED_SECONDS - 1), False),  # over about when the others would hear of it
        (refused(0.0), False),  # a back-off of our own
        (RequestReleaseOutcome(RequestOutcome.SUCCESS, readings=(READING,)), True),
        (RequestReleaseOutcome(RequestOutcome.PROVIDER_FAILURE, HOUR), False),
    ],
)
def test_only_what_a_provider_asks_for_and_lasts_is_told(
    outcome: RequestReleaseOutcome, is_told: bool
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        process = Process(store, clock)
        process.meet(outcome)
        await process.shared.share()
        assert bool(store.cooldowns().result()) is is_told

    asyncio.run(scenario())


def test_a_refusal_that_the_algorithm_forgives_pauses_nobody() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        process = Process(store, clock)
        process.core = Core(policy(8))  # of limits that do what the test says
        process.admission = RequestAdmissionController(process.core, clock)
        process.shared = SharedCooldowns(store, clock, process.admission, lambda _: "")
        process.seconds_left()
        limit = process.core.limit()
        limit.forgives = True
        process.meet(refused(HOUR))
        await process.shared.share()
        assert store.cooldowns().result() == []

    asyncio.run(scenario())


def test_another_key_and_another_provider_are_not_held() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        told, other = Process(store, clock, account="a1"), Process(store, clock, account="b2")
        told.meet(refused(HOUR))
        await told.shared.share()
        await other.shared.share()
        assert other.seconds_left() == 0.0
        assert told.seconds_left(CHAT._replace(model="another")) == 0.0

    asyncio.run(scenario())


def test_where_domains_have_limits_of_their_own_only_the_one_that_was_refused_waits() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        told, other = Process(store, clock, "aimd"), Process(store, clock, "aimd")
        told.meet(refused(HOUR), EMBEDDING)
        await told.shared.share()
        await other.shared.share()
        assert other.seconds_left(EMBEDDING) == pytest.approx(HOUR)
        assert other.seconds_left(CHAT) == 0.0

    asyncio.run(scenario())


def test_reading_it_again_and_again_does_not_make_it_longer() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        told, other = Process(store, clock), Process(store, clock)
        told.meet(refused(HOUR))
        for _ in range(100):
            for one in (told, other):
                assert one.shared.is_due
                await one.shared.share()
                assert not one.shared.is_due
            clock.advance(LOOK_SECONDS)
        left = HOUR - 100 * LOOK_SECONDS
        assert told.seconds_left() == pytest.approx(left, abs=0.5)
        assert other.seconds_left() == pytest.approx(left, abs=0.5)

    asyncio.run(scenario())


def test_what_could_not_be_written_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = InProcessStore(clock)
        process = Process(store, clock)
        process.meet(refused(HOUR))
        with monkeypatch.context() as patch:
            patch.setattr(store, "begin_cooldown", _refuse)
            await process.shared.share()
        assert store.cooldowns().result() == []
        clock.advance(LOOK_SECONDS)
        await process.shared.share()
        (kept,) = store.cooldowns().result()
        assert kept.left_seconds == pytest.approx(HOUR - LOOK_SECONDS, abs=0.5)

    asyncio.run(scenario())


def _refuse(*_: object) -> Callable[[], None]:
    raise StoreBusy("The store cannot be reached.")
