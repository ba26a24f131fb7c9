# SPDX-License-Identifier: Apache-2.0
"""In which words do the rules about paid calls speak?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.job import JobId, LeasedJob, WorkerId
from penstock.model.journal import (
    Answer,
    CallKey,
    CallRecord,
    CallRef,
    CallState,
    Intent,
    IntentVerdict,
)
from penstock.model.spending import Account, Amount, Balance, Budget, Period, accounts_of, utc_day
from tests.contract.world import StoreWorld

RUN = "run-1"
TASK = "work"
PROVIDER = "openai"
MODEL = "gpt-5"
WHOLE_RUN = Account("all", Period.RUN, RUN)
WRITTEN = IntentVerdict(written=True)
STALE = IntentVerdict(written=False, is_stale=True)


def key_of(job: LeasedJob | JobId, name: str = "f", ordinal: int = 0) -> CallKey:
    return CallKey(job.id if isinstance(job, LeasedJob) else job, name, ordinal)


def intent(
    job: LeasedJob,
    name: str = "f",
    *,
    ordinal: int = 0,
    micros: int = 10,
    tokens: int = 100,
    run_id: str = RUN,
    task: str = TASK,
    provider: str = PROVIDER,
    model: str = MODEL,
    token: int | None = None,
    resent: int = 0,
) -> Intent:
    return Intent(
        key=key_of(job, name, ordinal),
        token=job.token if token is None else token,
        run_id=run_id,
        task=task,
        provider=provider,
        model=model,
        reserved=Amount(micros, tokens),
        resent=resent,
    )


def answer(
    job: LeasedJob | JobId,
    name: str = "f",
    *,
    ordinal: int = 0,
    micros: int = 7,
    tokens: int = 70,
    body: bytes = b"\x00reply\xff",
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),),
    is_estimated: bool = False,
) -> Answer:
    return Answer(
        key=key_of(job, name, ordinal),
        status=200,
        headers=headers,
        body=body,
        used=Amount(micros, tokens),
        input_tokens=tokens - 20,
        output_tokens=20,
        is_estimated=is_estimated,
    )


def intend(
    world: StoreWorld, *intents: Intent, budgets: Sequence[Budget] = ()
) -> list[IntentVerdict]:
    return world.store.intend(intents, budgets).result()


def begin(world: StoreWorld, *intents: Intent) -> None:
    """Begin calls that nothing may forbid."""
    assert intend(world, *intents) == [WRITTEN] * len(intents)


def close(world: StoreWorld, job: LeasedJob, name: str = "f", token: int | None = None) -> None:
    ref = CallRef(key_of(job, name), job.token if token is None else token)
    world.store.closed([ref]).result()


def hold(world: StoreWorld, job: LeasedJob, name: str = "f", token: int | None = None) -> None:
    ref = CallRef(key_of(job, name), job.token if token is None else token)
    world.store.held([ref]).result()


def calls(world: StoreWorld, job: LeasedJob | JobId) -> list[CallRecord]:
    return world.store.calls(job.id if isinstance(job, LeasedJob) else job).result()


def call(world: StoreWorld, job: LeasedJob, name: str = "f") -> CallRecord:
    (found,) = [one for one in calls(world, job) if one.key.fingerprint == name]
    return found


def states(world: StoreWorld, job: LeasedJob | JobId) -> dict[str, CallState]:
    return {one.key.fingerprint: one.state for one in calls(world, job)}


def balance(world: StoreWorld, account: Account = WHOLE_RUN) -> Balance:
    for found in world.store.balances([account.span]).result():
        if found.account == account:
            return found
    return Balance(account, Amount(), Amount())


def today(world: StoreWorld) -> str:
    return utc_day(world.clock.now_micros)


def all_accounts(world: StoreWorld, run_id: str = RUN) -> tuple[Account, ...]:
    return accounts_of(run_id, today(world), TASK, PROVIDER, MODEL)


def prune(world: StoreWorld, before: int) -> int:
    total, after = 0, JobId(0)
    for _ in range(1_000):
        progress, after = world.store.prune_calls(before, after).result()
        total += progress.count
        if not progress.more:
            return total
    raise AssertionError("a pruning that never ends")


def leased(world: StoreWorld, key: str = "a") -> tuple[WorkerId, LeasedJob]:
    world.add(key)
    worker = world.new_worker()
    return worker, world.take_one(worker)


def again(world: StoreWorld, job: LeasedJob) -> tuple[WorkerId, LeasedJob]:
    """The next attempt of a job whose worker was lost."""
    world.expire()
    worker = world.new_worker()
    found = world.take_one(worker)
    assert found.id == job.id
    assert found.token > job.token
    return worker, found
