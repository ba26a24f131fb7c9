# SPDX-License-Identifier: Apache-2.0
"""No credential, and no body of a paid call, crosses an origin: clients × status × target."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from penstock.errors import RedirectRefused
from penstock.requests.redirects import Redirects
from penstock.retry.classify import FailureClass, classify
from tests.outbound_run import PROVIDER, Run, outbound_run
from tests.paid_run import paid_run
from tests.scripted_server import Call, ScriptedServer, scripted

STATUSES = (301, 302, 303, 307, 308)
SECRET = "canary-0123456789"
CREDENTIALS = {
    "Authorization": f"Bearer {SECRET}",
    "Proxy-Authorization": SECRET,
    "X-Api-Key": SECRET,
    "Api-Key": SECRET,
    "X-Goog-Api-Key": SECRET,
    "Cookie": f"session={SECRET}",
    "X-Our-Own": SECRET,  # whatever a provider calls it
}
BODY = b'{"prompt": "a private question"}'
PUBLIC = "8.8.8.8"

Send = Callable[[Run, str], Awaitable[int]]


class Pair:
    """The server of a provider, and another one; the first redirects to where its path says."""

    def __init__(self, own: ScriptedServer, other: ScriptedServer) -> None:
        self.own = own
        self.other = other

    def redirect(self, status: int, target: str) -> str:
        return f"{self.own.url}/redirect/{status}/{target.replace('//', '!')}"

    def leaked(self) -> list[Call]:
        """Requests of the other server that carry a credential."""
        return [one for one in self.other.calls if SECRET in str(one.headers)]


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    async def script(call: Call) -> None:
        if not call.path.startswith("/redirect/"):
            await call.answer(200, b'{"data": [], "object": "list"}')
            return
        _, _, status, target = call.path.split("/", 3)
        await call.answer(int(status), b"", {"location": target.replace("!", "//")})

    async with scripted(script) as own, scripted(script) as other:
        yield Pair(own, other)


async def with_http(run: Run, url: str) -> int:
    reply = await run.clients.http.post(url, headers=CREDENTIALS, content=BODY)
    return int(reply.status_code)


def with_httpx(library: str) -> Send:
    async def send(run: Run, url: str) -> int:
        async with run.clients.http_client(library) as client:
            reply = await client.post(url, headers=CREDENTIALS, content=BODY)
        return int(reply.status_code)

    return send


def in_thread(open_client: Callable[[Run], Any]) -> Send:
    async def send(run: Run, url: str) -> int:
        def work() -> int:
            client = open_client(run)
            name = "data" if type(client).__module__.startswith("penstock") else "content"
            return int(client.post(url, headers=CREDENTIALS, **{name: BODY}).status_code)

        return await asyncio.to_thread(work)

    return send


async def with_aiohttp(run: Run, url: str) -> int:
    async with (
        run.clients.http_client("aiohttp") as session,
        session.post(url, headers=CREDENTIALS, data=BODY, cookies={"other": SECRET}) as reply,
    ):
        return int(reply.status)


CLIENTS: dict[str, Send] = {
    "http": with_http,
    "httpx2": with_httpx("httpx2"),
    "httpx": with_httpx("httpx"),
    "http_sync": in_thread(lambda run: run.clients.http_sync),
    "httpx_sync": in_thread(lambda run: run.clients.http_client_sync("httpx")),
    "requests": in_thread(lambda run: run.clients.http_client_sync("requests")),
    "aiohttp": with_aiohttp,
}


def targets(servers: Pair) -> dict[str, str]:
    """Where a redirect may lead out of an origin."""
    port = urlsplit(servers.own.url).port
    return {"another port": f"{servers.other.url}/x", "another name": f"http://localhost:{port}/x"}


def table(work: Callable[[Pair, Run], Awaitable[None]], redirects: Redirects) -> None:
    async def main() -> None:
        async with pair() as servers, outbound_run(servers.own.url, redirects=redirects) as run:
            await work(servers, run)
            assert run.admission.held == 0

    asyncio.run(main())


@pytest.mark.parametrize("client", CLIENTS)
def test_within_one_origin_redirects_are_followed_with_their_credentials(client: str) -> None:
    async def work(servers: Pair, run: Run) -> None:
        for status in STATUSES:
            assert await CLIENTS[client](run, servers.redirect(status, "/x")) == 200
            last = servers.own.calls[-1]
            assert (last.path, last.headers["x-api-key"]) == ("/x", SECRET)

    table(work, Redirects(PROVIDER))


@pytest.mark.parametrize("client", CLIENTS)
def test_f80_another_origin_is_not_followed(client: str) -> None:
    async def work(servers: Pair, run: Run) -> None:
        for status in STATUSES:
            for target in targets(servers).values():
                with pytest.raises(RedirectRefused, match="another origin") as refused:
                    await CLIENTS[client](run, servers.redirect(status, target))
                assert "app.provider('acme', redirects=\"any\")" in str(refused.value)
                assert classify(refused.value, now=0.0).category is FailureClass.UNKNOWN
        assert servers.other.calls == []
        assert {call.path.split("/")[1] for call in servers.own.calls} == {"redirect"}

    table(work, Redirects(PROVIDER))


@pytest.mark.parametrize("client", CLIENTS)
def test_f80_with_any_another_origin_gets_no_credential(client: str) -> None:
    async def work(servers: Pair, run: Run) -> None:
        for status in STATUSES:
            for target in targets(servers).values():
                assert await CLIENTS[client](run, servers.redirect(status, target)) == 200
        assert len(servers.other.calls) == len(STATUSES)
        assert servers.leaked() == []
        arrived = [call for call in servers.own.calls if call.path == "/x"]
        assert len(arrived) == len(STATUSES)
        assert SECRET not in str([call.headers for call in arrived])

    table(work, Redirects(PROVIDER, "any"))


@pytest.mark.parametrize("client", CLIENTS)
def test_the_way_back_gets_no_credential_either(client: str) -> None:
    async def work(servers: Pair, run: Run) -> None:
        there = f"{servers.other.url}/redirect/307/{servers.own.url.replace('//', '!')}!x"
        await CLIENTS[client](run, servers.redirect(307, there))
        assert SECRET not in str(servers.own.calls[-1].headers)
        assert servers.leaked() == []

    table(work, Redirects(PROVIDER, "any"))


@pytest.mark.parametrize("client", CLIENTS)
def test_f80_from_a_public_host_no_private_address_is_followed(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def on_loopback(host: Any, *args: Any, **options: Any) -> Any:
        known = host in ("api.example.com", b"api.example.com")
        return real("127.0.0.1" if known else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", on_loopback)

    async def resolve(_host: str) -> list[str]:
        return [PUBLIC]

    async def work(servers: Pair, run: Run) -> None:
        servers.own.url = servers.own.url.replace("127.0.0.1", "api.example.com")
        for status in STATUSES:
            for target in targets(servers).values():
                with pytest.raises(RedirectRefused, match="private address"):
                    await CLIENTS[client](run, servers.redirect(status, target))
        assert {call.path.split("/")[1] for call in servers.own.calls} == {"redirect"}
        assert servers.other.calls == []

    table(work, Redirects(PROVIDER, "any", resolve))


@pytest.mark.parametrize("client", CLIENTS)
def test_with_none_nothing_is_followed(client: str) -> None:
    async def work(servers: Pair, run: Run) -> None:
        with pytest.raises(RedirectRefused, match='redirects="none"'):
            await CLIENTS[client](run, servers.redirect(302, "/x"))

    table(work, Redirects(PROVIDER, "none"))


def test_a_caller_that_follows_nothing_reads_where_it_leads() -> None:
    async def work(servers: Pair, run: Run) -> None:
        url = servers.redirect(302, f"{servers.other.url}/x")
        reply = await run.clients.http.get(url, follow_redirects=False)
        assert reply.headers["location"] == f"{servers.other.url}/x"
        with pytest.raises(RedirectRefused):
            await run.clients.http.send(reply.next_request)
        async with (
            run.clients.http_client("aiohttp") as session,
            session.get(url, allow_redirects=False) as raw,
        ):
            assert raw.status == 302
            async with session.get(f"{servers.other.url}/x") as direct:  # no redirect: a new call
                assert direct.status == 200

    table(work, Redirects(PROVIDER))


def test_f80_the_body_of_a_paid_call_crosses_no_origin() -> None:
    async def main() -> None:
        async with pair() as servers:
            async with paid_run(servers.own.url, redirects=Redirects(PROVIDER, "any")) as paid:
                for status in STATUSES:
                    with paid.attempt(), contextlib.suppress(RedirectRefused):
                        url = servers.redirect(status, f"{servers.other.url}/{status}")
                        await with_http(paid.run, url)
            assert servers.leaked() == []
            assert [call.body for call in servers.other.calls] == [b""] * 3  # a GET, without it

    asyncio.run(main())


def test_an_sdk_is_told_in_one_sentence() -> None:
    from openai import AsyncOpenAI

    async def work(servers: Pair, run: Run) -> None:
        sdk = AsyncOpenAI(
            api_key=SECRET,
            base_url=servers.redirect(307, servers.other.url),
            http_client=run.clients.http_client("httpx"),
            max_retries=0,
        )
        with pytest.raises(RedirectRefused, match="another origin") as failed:
            await sdk.models.list()
        assert classify(failed.value, now=0.0).category is FailureClass.UNKNOWN
        assert servers.other.calls == []

    table(work, Redirects(PROVIDER))


@pytest.mark.parametrize(
    ("first", "next_", "is_same"),
    [
        ("https://api.example.com/a", "https://API.example.com:443/b", True),
        ("http://api.example.com/a", "https://api.example.com/a", True),  # the same, by TLS
        ("https://api.example.com/a", "http://api.example.com/a", False),
        ("https://api.example.com/a", "https://api.example.com:8443/a", False),
        ("https://api.example.com/a", "https://api.example.com.evil.example/a", False),
        ("http://api.example.com:8080/a", "https://api.example.com:8443/a", False),
    ],
)
def test_an_origin_is_scheme_host_and_port(first: str, next_: str, is_same: bool) -> None:
    async def work() -> None:
        redirects = Redirects(PROVIDER)
        mark = redirects.mark(None, first, 302)
        if is_same:
            assert not await redirects.check(mark, next_, carries_paid_body=False)
            return
        with pytest.raises(RedirectRefused):
            await redirects.check(mark, next_, carries_paid_body=False)

    asyncio.run(work())


@pytest.mark.parametrize(
    "target",
    [
        *("http://localhost/", "http://a.localhost/", "http://127.9.9.9/", "http://[::1]/"),
        *("http://10.0.0.1/", "http://192.168.1.1/", "http://169.254.169.254/latest/meta-data"),
        *("http://[fd00::1]/", "http://[::ffff:127.0.0.1]/", "http://100.64.0.1/", "http://0/"),
        # by a gateway of IPv6 to IPv4 (RFC 6052, 8215, 3056), by other embeddings, site-local
        *("http://[64:ff9b::10.0.0.1]/", "http://[64:ff9b::7f00:1]/", "http://[64:ff9b:1::1]/"),
        *("http://[2002:a00:1::1]/", "http://[::10.0.0.1]/", "http://[::ffff:0:10.0.0.1]/"),
        *("http://[fec0::1]/", "http://[ff02::1]/", "http://224.0.0.1/"),
    ],
)
def test_private_addresses_are_known_by_themselves(target: str) -> None:
    async def resolve(host: str) -> list[str]:
        if host == "api.example.com":
            return [PUBLIC]
        raise OSError("no such name")

    async def work() -> None:
        redirects = Redirects(PROVIDER, "any", resolve)
        mark = redirects.mark(None, "https://api.example.com/a", 302)
        with pytest.raises(RedirectRefused, match="private address"):
            await redirects.check(mark, target, carries_paid_body=False)

    asyncio.run(work())


@pytest.mark.parametrize(
    "target", ["http://[64:ff9b::8.8.4.4]/", "http://[2002:808:404::1]/", "http://[2606:4700::1]/"]
)
def test_public_addresses_are_followed_in_whatever_form(target: str) -> None:
    async def resolve(host: str) -> list[str]:
        return [PUBLIC]

    async def work() -> None:
        redirects = Redirects(PROVIDER, "any", resolve)
        mark = redirects.mark(None, "https://api.example.com/a", 302)
        assert await redirects.check(mark, target, carries_paid_body=False)

    asyncio.run(work())


def test_what_is_told_shows_no_path() -> None:
    async def work(servers: Pair, run: Run) -> None:
        with pytest.raises(RedirectRefused) as refused:
            await run.clients.http.get(
                servers.redirect(302, f"{servers.other.url}/{SECRET}?{SECRET}")
            )
        assert SECRET not in str(refused.value)
        assert isinstance(refused.value, RedirectRefused)
        assert not isinstance(refused.value, httpx2.HTTPError)

    table(work, Redirects(PROVIDER))
