# SPDX-License-Identifier: Apache-2.0
"""Admitted sessions of `requests`.

An adapter hands them to the loop, which sends them as those of httpx2: so deadlines and caps hold
as everywhere, although nobody could interrupt a thread that reads from a socket.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from email.message import Message
from typing import Any

import httpx2
import requests
import urllib3
from requests.adapters import BaseAdapter, HTTPAdapter

from penstock.requests.clients.httpx import REDIRECTED, ROUTE, Route, SyncTransport
from penstock.requests.exchange import ACCEPTED
from penstock.requests.redirects import Redirects


class AdmittedAdapter(BaseAdapter):
    """Sends for a session, by the transport of the loop."""

    def __init__(self, transport: SyncTransport) -> None:
        super().__init__()
        self._transport = transport
        self._plain = HTTPAdapter()  # only builds replies

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float, float] | tuple[float, None] | None = None,
        verify: bool | str = True,
        cert: bytes | str | tuple[bytes | str, bytes | str] | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        route = Route(_proxy(request.url or "", proxies), verify, cert)
        sent = _httpx_request(request, timeout, route)
        try:
            reply = self._transport.handle_request(sent)
        except httpx2.ConnectTimeout as error:
            raise requests.ConnectTimeout(error, request=request) from error
        except httpx2.TimeoutException as error:
            raise requests.ReadTimeout(error, request=request) from error
        except httpx2.TransportError as error:
            raise requests.ConnectionError(error, request=request) from error
        raw = urllib3.HTTPResponse(
            body=_BodyFile(reply),
            headers=urllib3.HTTPHeaderDict(reply.headers.multi_items()),
            status=reply.status_code,
            reason=reply.reason_phrase,
            preload_content=False,
            decode_content=False,
            original_response=_Original(reply),  # type: ignore[arg-type]  # for the cookies
        )
        response = self._plain.build_response(request, raw)
        if not stream:
            _ = response.content
        return response

    def close(self) -> None:
        """Do nothing: a session was closed, but the connections belong to the run."""


class AdmittedSession(requests.Session):
    """Marks requests that are redirected, so that the adapter knows them."""

    def __init__(self, redirects: Redirects) -> None:
        super().__init__()
        self._redirects = redirects

    def rebuild_auth(
        self, prepared_request: requests.PreparedRequest, response: requests.Response
    ) -> None:
        super().rebuild_auth(prepared_request, response)  # type: ignore[no-untyped-call]
        before, url = getattr(response.request, REDIRECTED, None), response.request.url or ""
        mark = self._redirects.mark(before, url, response.status_code)
        setattr(prepared_request, REDIRECTED, mark)


def make_session(transport: SyncTransport, redirects: Redirects) -> requests.Session:
    """A session whose requests are admitted and whose replies are raw."""
    session = AdmittedSession(redirects)
    adapter = AdmittedAdapter(transport)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    session.headers["Accept-Encoding"] = ACCEPTED
    return session


def _httpx_request(
    request: requests.PreparedRequest,
    timeout: float | tuple[float, float] | tuple[float, None] | None,
    route: Route,
) -> httpx2.Request:
    body: Any = request.body
    if body is not None and not isinstance(body, bytes):
        if isinstance(body, str):
            body = body.encode()
        else:
            body = body.read() if hasattr(body, "read") else b"".join(body)
    connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
    seconds = httpx2.Timeout(connect=connect, read=read, write=read, pool=None)
    headers = [
        (name, value)
        for name, value in request.headers.items()
        if name.lower() not in ("transfer-encoding", "content-length")
    ]
    return httpx2.Request(
        request.method or "GET",
        request.url or "",
        headers=headers,
        content=body,
        extensions={
            "timeout": seconds.as_dict(),
            ROUTE: route,
            REDIRECTED: getattr(request, REDIRECTED, None),
        },
    )


def _proxy(url: str, proxies: Mapping[str, str] | None) -> str | None:
    proxy: str | None = requests.utils.select_proxy(url, dict(proxies or {}))
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


class _BodyFile(io.RawIOBase):
    """A body as a file; its errors are those that urllib3 knows."""

    def __init__(self, reply: httpx2.Response) -> None:
        self._reply = reply
        self._chunks: Iterator[bytes] = iter(reply.stream)  # type: ignore[arg-type]
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 (io's signature)
        if not self._rest:
            try:
                self._rest = next(self._chunks, b"")
            except httpx2.TimeoutException as error:
                raise TimeoutError(str(error)) from error
            except httpx2.TransportError as error:
                raise ConnectionError(str(error)) from error
            if not self._rest:
                self.close()
                return 0
        taken, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)

    def close(self) -> None:
        if not self.closed:
            self._reply.close()
        super().close()


class _Original:
    """Where `requests` looks for cookies."""

    def __init__(self, reply: httpx2.Response) -> None:
        self.msg = Message()
        for name, value in reply.headers.multi_items():
            self.msg[name] = value

    def isclosed(self) -> bool:
        return False

    def close(self) -> None:
        """There is nothing behind it."""
