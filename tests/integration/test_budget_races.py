# SPDX-License-Identifier: Apache-2.0
"""Is a budget kept when several processes spend from it at once, on PostgreSQL?"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from penstock.model.job import JobState, NewJob, WorkerId
from penstock.model.journal import Answer, CallKey, CallRef, Intent
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.model.spending import Amount, Budget, Period
from penstock.stores.postgres.open import open_postgres
from penstock.stores.protocol import Store

SPENDERS = 4
ROUNDS = 25
CAP = 300  # micro-dollars: reached about half way
BUDGETS = [
    Budget("all", Period.RUN, micros=CAP),
    Budget("provider:p", Period.DAY, micros=CAP + 1, tokens=10 * CAP),
]
CAPS = ConfiguredCaps({"one:*": 1})


class Spender(threading.Thread):
    """One process of a run, with a connection of its own; leases limited jobs meanwhile."""

    def __init__(self, number: int, store: Store, start: threading.Barrier) -> None:
        super().__init__(name=f"spender-{number}")
        self.store = store
        self.granted = self.refused = 0
        self.error: BaseException | None = None
        self._random = random.Random(number)
        self._start = start
        self._worker = WorkerId(f"w{number}")
        self._number = number

    def run(self) -> None:
        try:
            info = WorkerInfo(id=self._worker, run_id="r", tasks=("t",))
            self.store.register(info, 600).result()
            self._start.wait()
            for turn in range(ROUNDS):
                self._spend(turn)
        except BaseException as error:
            self.error = error

    def _spend(self, turn: int) -> None:
        """A lease, an end and intents of one moment share transactions as they will."""
        limited = (f"one:{turn % 2}",)
        new = [
            NewJob(
                key=f"{self._number}-{turn}-{n}", task="t", payload="{}", group="g", limit_keys=keys
            )
            for n, keys in enumerate(((), limited))
        ]
        self.store.enqueue(new).result()
        request = LeaseRequest(worker=self._worker, tasks=("t",), limit=2, caps=CAPS)
        jobs = self.store.lease(request).result().jobs
        intents = [
            Intent(
                key=CallKey(job.id, "f", n),
                token=job.token,
                run_id="r",
                task="t",
                provider="p",
                model="m",
                reserved=Amount(self._random.randint(1, 6), 1),
            )
            for job in jobs
            for n in range(2)
        ]
        lease = self.store.lease(request)
        replies = [self.store.intend([intent], BUDGETS) for intent in intents]
        ends = [JobEnd(job, JobState.DONE, 1, 2) for job in (*jobs, *lease.result().jobs)]
        ack = self.store.ack(self._worker, ends)
        answers, closed = [], []
        for intent, reply in zip(intents, replies, strict=True):
            (verdict,) = reply.result()
            self.granted += verdict.written
            self.refused += verdict.over is not None
            if verdict.written and self._random.random() < 0.6:
                answers.append(Answer(intent.key, 200, (), b"", intent.reserved))
            elif verdict.written and self._random.random() < 0.5:
                closed.append(CallRef(intent.key, intent.token))
        self.store.answered(answers).result()
        self.store.closed(closed).result()
        ack.result()


def claimed(store: Store) -> int:
    """What is spent and reserved of the run, as anybody sees it now."""
    return sum(
        balance.spent.micros + balance.reserved.micros + balance.in_doubt.micros
        for balance in store.balances(["r"]).result()
        if balance.account.scope == "all"
    )


def test_f77_processes_that_spend_at_once_never_exceed_a_budget(
    empty_store: Callable[[], str],
) -> None:
    url = empty_store()
    stores = [open_postgres(url, durability="normal") for _ in range(SPENDERS + 1)]
    start = threading.Barrier(SPENDERS)
    spenders = [Spender(n, store, start) for n, store in enumerate(stores[1:])]
    for spender in spenders:
        spender.start()
    seen = []
    while any(spender.is_alive() for spender in spenders):
        seen.append(claimed(stores[0]))
        spenders[0].join(0.01)
    for spender in spenders:
        spender.join()

    assert [spender.error for spender in spenders] == [None] * SPENDERS
    assert max(seen) <= CAP
    assert CAP - 6 <= claimed(stores[0]) <= CAP  # it was used up, too
    assert sum(spender.refused for spender in spenders) > 0
    assert stores[0].check().result() == []
    for store in stores:
        store.close()
