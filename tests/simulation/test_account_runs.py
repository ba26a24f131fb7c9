# SPDX-License-Identifier: Apache-2.0
"""A dead account is not a job's fault: its jobs wait uncharged, and single requests probe it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, Penstock, Secret
from penstock.errors import AccountClosed
from penstock.model.job import JobState
from penstock.testing import Harness, SimulatedProvider, harness
from penstock.testing.simulated_provider import Reply, SimulatedRequest

URL = "http://simulated.invalid"
KEY = "sk-canary-old-key-0123456789"
NEW_KEY = "canary-new-key-9876543210"
IN_FLIGHT = 8  # max_parallel
JOBS = 60

DEAD: dict[str, tuple[int, dict[str, Any]]] = {
    "dead key": (401, {"error": {"message": f"Incorrect API key: {KEY}"}}),
    "empty account": (402, {"error": {"message": "Insufficient credits."}}),
    "credit balance": (400, {"error": {"message": "Your credit balance is too low."}}),
    "used-up quota": (429, {"error": {"code": "insufficient_quota", "message": "No quota left"}}),
    "refused key": (403, {"error": {"message": "This API key was disabled."}}),
}
ANSWER = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": []}

Script = Callable[[SimulatedRequest], Reply | None]


def dead(kind: str) -> Script:
    status, body = DEAD[kind]
    return lambda _request: Reply.of(body, status=status, wait_seconds=0.5)


def app_of(secret: Secret | None = None, sdk: bool = False, uses: bool = True) -> Penstock:
    """An app with a task that asks the account's provider, and one that does not."""
    app = Penstock("accounts")
    api = app.provider("api", base_url=URL, api="openai", api_key=secret, max_parallel=IN_FLIGHT)

    async def with_http() -> str:
        reply = await api.http.post("/chat/completions", json={"model": "m"})
        reply.raise_for_status()
        return "asked"

    async def with_sdk() -> str:
        from openai import AsyncOpenAI

        client = AsyncOpenAI(
            api_key=KEY, base_url=URL, http_client=api.http_client(), max_retries=0
        )
        await client.chat.completions.create(model="m", messages=[])
        return "asked"

    @app.task(uses=api if uses else (), max_attempts=1)
    async def ask(ctx: Context, number: int) -> str:
        return await (with_sdk() if sdk else with_http())

    @app.task()
    async def other(ctx: Context, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    return app


def enqueue(
    t: Harness, app: Penstock, jobs: int = JOBS, other_seconds: float | None = None
) -> None:
    for number in range(jobs):
        t.enqueue(app.tasks["ask"].job(number=number), key=f"ask-{number}")
    if other_seconds is not None:
        t.enqueue(app.tasks["other"].job(seconds=other_seconds), key="other")


def states(t: Harness, jobs: int = JOBS) -> set[JobState]:
    return {t.job(f"ask-{number}").state for number in range(jobs)}


@pytest.mark.parametrize(
    ("kind", "way"),
    [*((kind, "http") for kind in DEAD), ("dead key", "sdk"), ("empty account", "no uses")],
)
def test_f83_a_dead_account_burns_nothing(
    kind: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of(sdk=way == "sdk", uses=way != "no uses")
    provider = SimulatedProvider(script=dead(kind), answer=lambda _: ANSWER)
    with harness(app, providers={"api": provider}) as t:
        enqueue(t, app, other_seconds=1.0)
        with pytest.raises(AccountClosed) as closed:
            t.drain()
        assert provider.counts.calls <= IN_FLIGHT
        assert states(t) == {JobState.QUEUED}
        assert {t.job(f"ask-{number}").attempts for number in range(JOBS)} == {0}
        assert t.results["other"] == "done"
    said = [one for one in caplog.messages if "The account of provider 'api' is closed" in one]
    assert len(said) == 1
    assert "replace its key or fill the account" in str(closed.value)
    assert KEY not in caplog.text + str(closed.value)


def test_while_other_work_goes_on_it_is_probed_at_growing_intervals() -> None:
    app = app_of()
    provider = SimulatedProvider(script=dead("dead key"))
    with harness(app, providers={"api": provider}) as t:
        enqueue(t, app, other_seconds=1_000.0)
        with pytest.raises(AccountClosed):
            t.drain(within=3_600.0)
        at = [call.at_seconds for call in provider.log]
    first = [one for one in at if one - at[0] < 1.0]
    probes = at[len(first) :]
    waits = [later - earlier for earlier, later in pairwise([first[-1], *probes])]
    assert len(first) <= IN_FLIGHT
    assert pytest.approx(waits, abs=2) == [30, 60, 120, 240, 480]


def test_an_account_that_is_filled_opens_with_the_next_probe() -> None:
    app = app_of()
    refused = dead("empty account")

    def script(request: SimulatedRequest) -> Reply | None:
        return refused(request) if request.at_seconds < 50 else None

    provider = SimulatedProvider(script=script, answer=lambda _: ANSWER)
    with harness(app, providers={"api": provider}) as t:
        enqueue(t, app, 20, other_seconds=600.0)
        t.drain(within=3_600.0)
        assert states(t, 20) == {JobState.DONE}
        assert provider.counts.calls <= 20 + IN_FLIGHT + 1


@pytest.mark.parametrize("begins", ["with a dead key", "without a key"])
def test_f83_a_key_that_is_replaced_while_running_opens_the_account(
    begins: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    place = tmp_path / "key"
    if begins == "with a dead key":
        place.write_text(KEY)
    app = app_of(Secret.file(place))
    refused = dead("dead key")

    def script(request: SimulatedRequest) -> Reply | None:
        is_new = request.headers["authorization"] == f"Bearer {NEW_KEY}"
        return None if is_new else refused(request)

    @app.task()
    async def replace(ctx: Context) -> None:
        await asyncio.sleep(40.0)
        place.write_text(f"{NEW_KEY}\n")
        await asyncio.sleep(15.0)  # less than until the next probe: the new key opens it

    provider = SimulatedProvider(script=script, answer=lambda _: ANSWER)
    with harness(app, providers={"api": provider}) as t:
        enqueue(t, app, 20)
        t.enqueue(replace.job(), key="replace")
        t.drain(within=3_600.0)
        assert states(t, 20) == {JobState.DONE}
        assert t.clock.monotonic() < 90
        assert provider.counts.calls <= 20 + IN_FLIGHT + 1
    assert NEW_KEY not in caplog.text
    assert "The account of provider 'api' is open again." in caplog.messages


def test_a_402_with_retry_after_is_a_pause() -> None:
    app = app_of()

    def script(request: SimulatedRequest) -> Reply | None:
        if request.number > 1:
            return None
        return Reply.of({"error": "wait"}, status=402, headers=(("retry-after", "5"),))

    with harness(app, providers={"api": SimulatedProvider(script=script)}) as t:
        enqueue(t, app, 1)
        t.drain()
        assert t.job("ask-0").state is JobState.DONE


def harvest(account_errors: bool | None) -> int:
    """How many of 100 pages came, of which four answer 403."""
    app = Penstock("harvest")
    web = app.provider("web", base_url=URL, account_errors=account_errors)

    @app.task(uses=web, max_attempts=1)
    async def fetch(ctx: Context, number: int) -> int:
        reply = await web.http.get(f"/{number}")
        reply.raise_for_status()
        return int(reply.status_code)

    def script(request: SimulatedRequest) -> Reply | None:
        is_private = int(request.path.strip("/")) % 33 == 0
        return Reply.of({"error": "unauthorized"}, status=403) if is_private else None

    with harness(app, providers={"web": SimulatedProvider(script=script)}) as t:
        for number in range(100):
            t.enqueue(fetch.job(number=number), key=str(number))
        t.drain()
        return len(t.results)


def test_on_plain_http_a_403_belongs_to_its_url() -> None:
    assert harvest(None) == 96
    with pytest.raises(AccountClosed):
        harvest(True)


def test_other_providers_go_on() -> None:
    app = app_of()
    good = app.provider("good", base_url="http://other.invalid", api="openai")

    @app.task(uses=good)
    async def well(ctx: Context, number: int) -> int:
        return int((await good.http.get("/x")).status_code)

    providers = {"api": SimulatedProvider(script=dead("dead key")), "good": SimulatedProvider()}
    with harness(app, providers=providers) as t:
        enqueue(t, app)
        for number in range(50):
            t.enqueue(well.job(number=number), key=f"well-{number}")
        with pytest.raises(AccountClosed):
            t.drain()
        assert [t.results[f"well-{number}"] for number in range(50)] == [200] * 50
