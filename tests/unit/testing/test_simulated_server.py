# SPDX-License-Identifier: Apache-2.0
"""Does a simulated provider on loopback serve real clients, and end what it started?"""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import closing

import msgspec
import pytest

from penstock.errors import UsageError
from penstock.testing import ProviderRules, Reply, SimulatedProvider, Window
from penstock.testing.simulated_provider import Ending, Part, SimulatedRequest
from tests.waiting import wait_until


def connect(provider: SimulatedProvider) -> http.client.HTTPConnection:
    host, _, port = provider.url.removeprefix("http://").partition(":")
    return http.client.HTTPConnection(host, int(port), timeout=30)


def test_calls_of_one_connection_are_answered_in_turn() -> None:
    seen = []
    with (
        SimulatedProvider(ProviderRules(latency=0.0)) as provider,
        closing(connect(provider)) as client,
    ):
        for number in range(3):
            client.request("GET", f"/{number}")
            seen.append(msgspec.json.decode(client.getresponse().read()))

    assert seen == [{"path": f"/{number}", "call": number + 1} for number in range(3)]
    assert provider.counts.served == 3


def test_chat_is_answered_whole_and_as_a_stream() -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    streaming = msgspec.json.encode({**asked, "stream": True})
    with (
        SimulatedProvider(ProviderRules(latency=0.01)) as provider,
        closing(connect(provider)) as client,
    ):
        client.request("POST", "/v1/chat/completions", msgspec.json.encode(asked))
        whole = msgspec.json.decode(client.getresponse().read())
        client.request("POST", "/v1/chat/completions", streaming)
        reply = client.getresponse()
        streamed = reply.read()

    assert whole["choices"][0]["message"]["role"] == "assistant"
    assert reply.getheader("content-type") == "text/event-stream"
    assert streamed.endswith(b"data: [DONE]\n\n")


def test_request_body_may_come_in_chunks() -> None:
    bodies = []

    def answer(request: object) -> Reply:
        bodies.append(getattr(request, "body", None))
        return Reply.of(b"")

    with SimulatedProvider(answer=answer) as provider, closing(connect(provider)) as client:
        client.request("POST", "/", iter([b"one ", b"two"]), encode_chunked=True)
        client.getresponse().read()

    assert bodies == [b"one two"]


def test_refusal_has_its_headers() -> None:
    with (
        SimulatedProvider(ProviderRules(requests=Window(1), headers="openai")) as provider,
        closing(connect(provider)) as client,
    ):
        client.request("GET", "/")
        client.getresponse().read()
        client.request("GET", "/")
        reply = client.getresponse()
        reply.read()

    assert reply.status == 429
    assert int(reply.getheader("Retry-After") or 0) >= 1
    assert reply.getheader("x-ratelimit-remaining-requests") == "0"


def test_reset_reaches_the_client_as_a_reset() -> None:
    with (
        SimulatedProvider(ProviderRules(reset_rate=1.0)) as provider,
        closing(connect(provider)) as client,
    ):
        client.request("GET", "/")
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            client.getresponse().read()

        assert provider.counts.broken == 1


def test_client_that_leaves_a_hung_answer_is_not_in_flight_any_more() -> None:
    with SimulatedProvider(script=lambda _: Reply(status=None, ending=Ending.HANG)) as provider:
        client = connect(provider)
        client.request("GET", "/")
        wait_until(lambda: provider.counts.in_flight == 1)

        client.close()

        wait_until(lambda: provider.counts.in_flight == 0)
        assert provider.counts.abandoned == 1


def test_endless_answer_waits_for_its_reader() -> None:
    sent = 0

    def parts() -> object:
        nonlocal sent
        while True:
            sent += 1
            yield Part(b"x" * 65_536)

    with SimulatedProvider(script=lambda _: Reply(parts=parts())) as provider:  # type: ignore[arg-type]
        client = connect(provider)
        client.request("GET", "/")
        reply = client.getresponse()
        assert reply.read(10) == b"x" * 10
        before = threading.active_count()

        wait_until(lambda: provider.counts.in_flight == 1)
        client.close()

        wait_until(lambda: provider.counts.in_flight == 0)
    assert sent < 1_000
    assert threading.active_count() < before


@pytest.mark.parametrize("status", [200, 204, 304, 404, 500])
def test_a_reply_may_be_a_status_alone(status: int) -> None:
    with (
        SimulatedProvider(script=lambda request: Reply(status)) as provider,
        closing(connect(provider)) as client,
    ):
        seen = []
        for _ in range(2):  # on one connection: nothing is left over from the first
            client.request("GET", "/")
            reply = client.getresponse()
            seen.append((reply.status, reply.read()))

    assert seen == [(status, b"")] * 2
    assert provider.counts.in_flight == 0


def test_a_script_that_raises_is_told_to_the_client() -> None:
    def script(request: SimulatedRequest) -> Reply:
        raise LookupError(request.path)

    with SimulatedProvider(script=script) as provider, closing(connect(provider)) as client:
        seen = []
        for path in ("/a", "/b"):
            client.request("GET", path)
            reply = client.getresponse()
            seen.append((reply.status, msgspec.json.decode(reply.read())["error"]["message"]))

    assert seen == [(500, "LookupError: /a"), (500, "LookupError: /b")]


def test_what_is_no_request_gets_a_400() -> None:
    with SimulatedProvider() as provider:
        port = int(provider.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(b"nonsense\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 400 ")

    assert provider.counts.calls == 0


def test_provider_serves_once_and_cuts_what_is_left_at_its_end() -> None:
    with SimulatedProvider(ProviderRules(latency=600.0)) as provider:
        client = connect(provider)
        client.request("GET", "/")
        wait_until(lambda: provider.counts.in_flight == 1)
        with pytest.raises(UsageError, match="serves already"), provider:
            pass
        assert provider.url.startswith("http://127.0.0.1:")

    assert provider.url == "http://simulated.invalid"
    assert provider.counts.in_flight == 0
    client.close()
