# SPDX-License-Identifier: Apache-2.0
"""Does a budget hold where nobody knows whether a send was billed: too slow, or broken off?"""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.clock import MICROSECONDS, SystemClock
from penstock.definitions.provider import Provider
from penstock.model.spending import Amount, Balance, Period, utc_day

BUDGET = 1_000  # tokens
OUTPUT = 250  # tokens of each answer, which is what a request allows
PROMPT = 60  # tokens that its body is estimated at, at most
IN_FLIGHT = 2
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Why?"}],
    "max_tokens": OUTPUT,
}
REPLY = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [],
    "usage": {"prompt_tokens": 4, "completion_tokens": OUTPUT, "total_tokens": 4 + OUTPUT},
}


class BillingServer(ThreadingHTTPServer):
    """Bills every request that it has received whole, whatever becomes of the reply."""

    daemon_threads = True

    def __init__(self, ill: str) -> None:
        super().__init__(("127.0.0.1", 0), _Billing)
        self.ill = ill
        self.billed = 0
        self.lock = threading.Lock()
        self.released = threading.Event()  # whoever waits for a reply need not any more

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Billing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BillingServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        with self.server.lock:
            self.server.billed += 4 + OUTPUT
        document = json.dumps(REPLY).encode()
        if self.server.ill == "slow":
            self.server.released.wait(30)
            return
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(document)))
        self.end_headers()
        self.wfile.write(document[: len(document) // 2])
        self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(params=["slow", "breaks off"])
def server(request: pytest.FixtureRequest) -> Iterator[BillingServer]:
    with BillingServer(request.param) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        try:
            yield one
        finally:
            one.released.set()
            one.shutdown()
            thread.join()


def over_http(app: Penstock, api: Provider) -> Any:
    @app.task(uses=api, timeout=0.2, max_attempts=5)
    async def ask(ctx: Context, n: int) -> None:
        await api.http.post("/chat/completions", json={**BODY, "user": str(n)})

    return ask


def over_http_sync(app: Penstock, api: Provider) -> Any:
    @app.task(uses=api, max_attempts=5)
    def ask(ctx: Context, n: int) -> None:
        api.http_sync.post("/chat/completions", json={**BODY, "user": str(n)}, timeout=0.2)

    return ask


def over_openai(app: Penstock, api: Provider) -> Any:
    import openai

    @app.task(uses=api, max_attempts=5)
    async def ask(ctx: Context, n: int) -> None:
        client = openai.AsyncOpenAI(
            api_key="none", http_client=api.http_client(), max_retries=0, timeout=0.2
        )
        client.base_url = api.http.base_url
        create: Callable[..., Awaitable[Any]] = client.chat.completions.create
        await create(**BODY, user=str(n))

    return ask


@pytest.mark.parametrize("client", [over_http, over_http_sync, over_openai])
def test_f77_sends_of_unknown_fate_stay_counted_and_are_told(
    server: BillingServer,
    client: Callable[[Penstock, Provider], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text(f"[budget.day]\ntokens = {BUDGET}\n")
    app = Penstock("doubt", store=f"sqlite:///{tmp_path}/doubt.db")
    app.baseline(node=(0.01, 0.05), service=(0.01, 0.05))
    api = app.provider("api", base_url=server.url, paid=True, max_parallel=IN_FLIGHT)
    ask = client(app, api)
    with closing(app):
        app.enqueue_many(ask.job(n=n) for n in range(3))
        report = app.run(drain=True)
        store = app.store
        found = balance_of_today(store.balances([utc_day(now())]).result())
        figures = store.call_figures(None).result()

    most = OUTPUT + PROMPT
    assert 0 < server.billed <= BUDGET + IN_FLIGHT * most
    assert report.over_budget is not None
    assert "tokens in doubt" in report.over_budget
    sends = server.billed // (4 + OUTPUT)
    assert figures.in_doubt == sends
    assert (found.spent, found.reserved) == (Amount(), Amount())
    assert server.billed <= found.in_doubt.tokens <= BUDGET
    assert figures.doubt == found.in_doubt


def now() -> int:
    return round(SystemClock().now() * MICROSECONDS)


def balance_of_today(balances: list[Balance]) -> Balance:
    (found,) = [
        one for one in balances if one.account.scope == "all" and one.account.period is Period.DAY
    ]
    return found
