# SPDX-License-Identifier: Apache-2.0
"""The key of a provider is sent as its dialect wants it, to its base URL and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock import Penstock, Secret
from penstock.config.provider_policy import dialect_of, idempotency_header
from penstock.config.settings import ProviderSettings
from penstock.errors import ConfigError, UsageError
from penstock.redaction.secrets import redacted
from penstock.requests.credentials import Credentials, implied_dialect
from penstock.testing import harness
from tests.outbound_run import Run, outbound_run
from tests.paid_run import paid_run
from tests.scripted_server import Call, ScriptedServer, scripted

KEY = "canary-key-0123456789"


async def well(call: Call) -> None:
    await call.answer(200, b'{"data": [], "object": "list"}')


def sent(
    credentials: Callable[[str], Credentials], work: Callable[[Run, str], Awaitable[None]]
) -> list[Call]:
    """What a server gets of a provider with these credentials."""

    async def main() -> ScriptedServer:
        async with (
            scripted(well) as server,
            outbound_run(server.url, credentials=credentials(server.url)) as run,
        ):
            await work(run, server.url)
            return server

    return asyncio.run(main()).calls


async def by_all_clients(run: Run, url: str) -> None:
    await run.clients.http.get("/x")
    await run.clients.http_client("httpx").get("/x")
    await asyncio.to_thread(lambda: run.clients.http_sync.get("/x"))
    await asyncio.to_thread(
        lambda: run.clients.http_client_sync("requests").get(f"{url}/x").status_code
    )
    async with run.clients.http_client("aiohttp") as session, session.get("/x"):
        pass


def test_the_dialect_says_how_a_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_NAME", KEY)
    secret = Secret.env("SOME_NAME")
    for call in sent(lambda url: Credentials(url, "openai", secret), by_all_clients):
        assert call.headers["authorization"] == f"Bearer {KEY}"
        assert "x-api-key" not in call.headers
    for call in sent(lambda url: Credentials(url, "anthropic", secret), by_all_clients):
        assert call.headers["x-api-key"] == KEY
        assert call.headers["anthropic-version"] == "2023-06-01"
        assert "authorization" not in call.headers


def test_headers_of_a_provider_are_sent_unless_a_call_has_its_own() -> None:
    async def work(run: Run, _url: str) -> None:
        await run.clients.http.get("/x")
        await run.clients.http.get("/x", headers={"X-Tenant": "mine"})

    first, second = sent(lambda url: Credentials(url, headers={"x-tenant": "ours"}), work)
    assert (first.headers["x-tenant"], second.headers["x-tenant"]) == ("ours", "mine")


def test_another_origin_than_the_base_url_gets_no_key() -> None:
    async def main() -> None:
        async with scripted(well) as own, scripted(well) as other:
            credentials = Credentials(own.url, "openai", Secret(KEY), {"x-tenant": "ours"})
            async with outbound_run(own.url, credentials=credentials) as run:
                await run.clients.http.get(f"{other.url}/x")
        assert KEY not in str(other.calls[0].headers)
        assert "x-tenant" not in other.calls[0].headers

    asyncio.run(main())


def test_a_file_is_read_once_and_again_when_asked(tmp_path: Path) -> None:
    place = tmp_path / "key"
    place.write_text(f"{KEY}\n")
    credentials = Credentials("http://a.example", "openai", Secret.file(place))
    headers: dict[str, str] = {}
    credentials.apply("http://a.example/x", headers)
    assert headers == {"authorization": f"Bearer {KEY}"}
    assert not credentials.refresh()
    place.write_text("another-key-9876543210")
    assert credentials.refresh()
    headers = {}
    credentials.apply("http://a.example/x", headers)
    assert headers == {"authorization": "Bearer another-key-9876543210"}


def test_a_secret_that_is_missing_says_where_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'NOT_SET_ANYWHERE' holds no secret: it is empty"):
        Secret.env("NOT_SET_ANYWHERE").reveal()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Secret.file(tmp_path / "none").reveal()


def test_what_was_read_is_redacted_and_never_shown(tmp_path: Path) -> None:
    place = tmp_path / "key"
    place.write_text("zanary-key-5555555555")
    secret = Secret.file(place)
    credentials = Credentials("http://a.example", "openai", secret)
    credentials.apply("http://a.example/x", {})
    assert redacted("it said zanary-key-5555555555") == "it said [redacted]"
    assert "zanary" not in f"{secret!r} {secret} {credentials!r}"


@pytest.mark.parametrize(
    ("said", "dialect", "header"),
    [
        (ProviderSettings(base_url="https://gateway.example", api="openai"), "openai", True),
        (ProviderSettings(base_url="https://api.openai.com/v1"), "openai", True),
        (ProviderSettings(base_url="https://api.anthropic.com"), "anthropic", True),
        (ProviderSettings(base_url="https://api.example"), None, False),
    ],
)
def test_the_dialect_decides_the_idempotency_header(
    said: ProviderSettings, dialect: str | None, header: bool
) -> None:
    assert dialect_of(said) == dialect
    assert (idempotency_header(said) is not None) == header


def test_an_sdk_implies_its_dialect() -> None:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

    async def main() -> list[Call]:
        async with scripted(well) as server, paid_run(server.url) as paid:
            with paid.attempt():
                await AsyncOpenAI(
                    api_key="k", base_url=server.url, http_client=paid.clients.http_client("httpx2")
                ).models.list()
                await AsyncAnthropic(
                    api_key="k", base_url=server.url, http_client=paid.clients.http_client("httpx2")
                ).models.list()
                await paid.clients.http.get("/plain")
            return server.calls

    by_openai, by_anthropic, plain = asyncio.run(main())
    assert implied_dialect(by_openai.headers) == "openai"
    assert implied_dialect(by_anthropic.headers) == "anthropic"
    assert "idempotency-key" in by_openai.headers
    assert "idempotency-key" in by_anthropic.headers
    assert "idempotency-key" not in plain.headers


def test_a_key_needs_a_dialect_and_a_base_url() -> None:
    app = Penstock("keys")
    app.provider("ai", base_url="https://ai.example", api_key=Secret(KEY))
    with pytest.raises(UsageError, match="needs api='openai'"), harness(app):
        pass
    app = Penstock("keys")
    app.provider("ai", api="openai", api_key=Secret(KEY))
    with pytest.raises(UsageError, match="base_url only"), harness(app):
        pass
    with pytest.raises(UsageError, match="'x' is a penstock") as refused:
        app.provider("x", api_key=KEY)  # type: ignore[arg-type]
    assert KEY not in str(refused.value)
