# SPDX-License-Identifier: Apache-2.0
"""An app whose one provider costs money, for runs in virtual time."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

from penstock import Context, Penstock
from penstock.errors import StoreUnavailable
from penstock.model.job import JobState
from penstock.model.journal import CallRecord, CallState
from penstock.stores.store_future import Reply as StoreReply
from penstock.testing import Harness, harness
from penstock.testing.simulated_provider import (
    SimulatedProvider,
    SimulatedRequest,
)
from tests.suite_canaries import ANSWER, KEY, PROMPT

URL = "http://simulated.invalid"


class Lost(ConnectionError):
    """The attempt dies by no fault of its task: it comes back, uncharged."""


def numbered(request: SimulatedRequest) -> dict[str, Any]:
    """An answer that tells which one it is."""
    asked = request.json() or {}
    return {"n": request.number, "asked": asked.get("prompt"), "said": ANSWER}


class Shop:
    """An app with one provider that costs money, and a task whose body is given."""

    def __init__(self, body: Any, provider: SimulatedProvider | None = None, **options: Any):
        self.app = Penstock("shop")
        self.api = self.app.provider("api", base_url=URL, paid=True, **options)
        self.provider = provider or SimulatedProvider(answer=numbered)
        self.attempts = 0

        @self.app.task(uses=self.api, max_attempts=5)
        async def work(ctx: Context) -> Any:
            self.attempts += 1
            return await body(self)

        self.work = work

    async def ask(self, prompt: str) -> int:
        body = {"prompt": prompt, "system": PROMPT}
        reply = await self.api.http.post("/ask", json=body, headers={"x-own": KEY})
        reply.raise_for_status()
        assert reply.json()["asked"] == prompt
        return int(reply.json()["n"])

    def run(self) -> Harness:
        """Run one job to its end; the harness is closed by whoever looked at it."""
        with harness(self.app, providers={"api": self.provider}) as t:
            t.enqueue(self.work.job(), key="job")
            t.drain()
            self.calls = calls_of(t)
            self.state = t.states["job"]
            self.result = t.results["job"] if self.state is JobState.DONE else None
            self.error = t.errors["job"] if self.state is JobState.ERROR else None
            self.figures = t.store.call_figures(None).result()
            self.history = t.attempts("job")
            return t


def calls_of(t: Harness, key: str = "job") -> list[CallRecord]:
    return t.store.calls(t.job(key).id).result()


def states(shop: Shop) -> Counter[CallState]:
    return Counter(call.state for call in shop.calls)


class AwayStore:
    """Lets some journal operations of a store fail first, as a server that is away."""

    def __init__(self, store: Any, name: str, errors: list[Exception], *, takes: bool) -> None:
        self.asked = 0
        inner = getattr(store, name)

        def flaky(*args: Any) -> StoreReply[Any]:
            self.asked += 1
            if errors:
                if takes:
                    inner(*args).result()
                return StoreReply.failed(errors.pop(0))
            reply: StoreReply[Any] = inner(*args)
            return reply

        setattr(store, name, flaky)


def listen(store: Any, name: str, order: list[str]) -> None:
    """Write down what a store has done, in order."""
    inner = getattr(store, name)

    def asked(*args: Any) -> StoreReply[Any]:
        reply: StoreReply[Any] = inner(*args)
        with contextlib.suppress(StoreUnavailable):
            reply.result()
            order.append(name)
        return reply

    setattr(store, name, asked)
