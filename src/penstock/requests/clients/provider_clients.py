# SPDX-License-Identifier: Apache-2.0
"""Which clients does a run give to a provider?

They are made when somebody asks for them, and share their connections. Clients for SDKs are new
each time, since an SDK may close what it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock.admission.requests.resolver import DOMAINS
from penstock.errors import ConfigError, ProviderNotAvailableHere, UsageError
from penstock.events import correlation
from penstock.model.request import RequestAdmissionItem
from penstock.requests.clients.admitted_call import Admission
from penstock.requests.clients.httpx import AdmittedTransport, HandedTransport
from penstock.requests.decoding import ACCEPTED
from penstock.requests.executor import ModelRequestExecutor, RequestFacts
from penstock.requests.journal.calls import PaidCalls
from penstock.requests.journal.paid_transport import PaidTransport
from penstock.requests.thread_bridge import Handover
from penstock.requests.transports import Wires
from penstock.requests.usage import Asked, check_tokens

CONNECT_SECONDS = 10.0
LOADED_LATE = "anyio._backends._asyncio"  # by httpx2, with its first request
_ASYNC = ("httpx2", "httpx", "aiohttp")
_SYNC = ("httpx2", "httpx", "requests")

#: What sends the bytes of a library: a transport of httpx2 or httpx. Tests give their own.
MakeWire = Callable[[ModuleType], Any]


class RunClients:
    """The clients of one provider in one run. Belongs to the loop that made it."""

    def __init__(
        self,
        provider: str,
        executor: ModelRequestExecutor,
        *,
        base_url: str | None = None,
        make_wire: MakeWire | None = None,
        paid: PaidCalls | None = None,
    ) -> None:
        self._provider = provider
        self._executor = executor
        self._paid = paid  # None: its calls cost nothing
        self._base_url = base_url or ""
        self._handover = Handover(asyncio.get_running_loop())
        self._wires = Wires(make_wire)
        self._transports: dict[tuple[str, bool], AdmittedTransport] = {}
        self._clients: dict[str, Any] = {}
        self._connector: Any = None  # of aiohttp
        self._lock = threading.Lock()  # of the transports: threads ask for clients too
        self._pid = os.getpid()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<RunClients of {self._provider!r}>"

    @property
    def is_simulated(self) -> bool:
        """Does a test answer in place of the network?"""
        return not self._wires.are_real

    def prepare(self) -> None:
        """Import what sends, and read the certificates, in a thread: on the loop all would wait."""
        self._transport(_module("httpx2"), sends_again=True)
        with contextlib.suppress(ImportError):
            importlib.import_module(LOADED_LATE)

    @property
    def http(self) -> Any:  # noqa: ANN401 (a client of httpx2)
        client = self._clients.get("http")
        if client is None or self._pid != os.getpid():
            client = self._client("httpx2", sends_again=True, is_async=True)
            self._clients["http"] = client
        return client

    @property
    def http_sync(self) -> Any:  # noqa: ANN401
        client = self._clients.get("http_sync")
        if client is None or self._pid != os.getpid():
            client = self._client("httpx2", sends_again=True, is_async=False)
            self._clients["http_sync"] = client
        return client

    def http_client(self, library: str) -> Any:  # noqa: ANN401
        """An async client that gives raw replies."""
        return self._client(library, sends_again=False, is_async=True)

    def http_client_sync(self, library: str) -> Any:  # noqa: ANN401
        """A sync client, for threads, that gives raw replies."""
        return self._client(library, sends_again=False, is_async=False)

    def admit(self, model: str | None, domain: str, tokens: int | None) -> Admission:
        """A permit for a call that is not HTTP, on the loop or in a thread."""
        self._check()
        if domain not in DOMAINS:
            raise UsageError(f"A domain is one of {', '.join(DOMAINS)}, got {domain!r:.200}.")
        if model is not None and not isinstance(model, str):
            raise UsageError(f"model= is the name of a model, got {model!r:.200}.")
        if tokens is not None:
            check_tokens("tokens=", tokens)
        resource = self._executor.resolve(RequestFacts("", "", Asked(model)))
        resource = resource._replace(domain=domain)
        item = RequestAdmissionItem(
            resource, self._executor.group_of(resource), None, tokens, correlation.current.get()
        )
        return Admission(self._executor, self._handover, item)

    async def aclose(self) -> None:
        """The run ends: threads that wait are told, connections are closed."""
        self._is_closed = True
        self._handover.close()
        for client in list(self._clients.values()):
            if hasattr(client, "aclose"):
                await client.aclose()
        await self._wires.aclose()
        if self._connector is not None:
            await self._connector.close()

    def _client(self, library: str, *, sends_again: bool, is_async: bool) -> Any:  # noqa: ANN401
        self._check()
        if library == "aiohttp" and is_async:
            return self._aiohttp_session()
        if library == "requests" and not is_async:
            return self._requests_session()
        if library not in ("httpx2", "httpx"):
            kind, known = ("async", _ASYNC) if is_async else ("sync", _SYNC)
            raise UsageError(
                f"There is no {kind} client of {library!r}; write one of {', '.join(known)}."
            )
        module = _module(library)
        transport: Any = self._transport(module, sends_again=sends_again)
        if not is_async:
            transport = HandedTransport(transport, self._handover)
        return (module.AsyncClient if is_async else module.Client)(
            transport=transport,
            base_url=self._base_url,
            headers={"accept-encoding": ACCEPTED},
            timeout=module.Timeout(None, connect=CONNECT_SECONDS),
            follow_redirects=True,
        )

    def _aiohttp_session(self) -> Any:  # noqa: ANN401
        if self.is_simulated:
            raise UsageError(
                "A session of aiohttp is not answered by a simulation; use `provider.http` in this "
                "test, or serve a SimulatedProvider on loopback."
            )
        if self._paid is not None:
            raise UsageError(
                f"Provider {self._provider!r} costs money, and calls of aiohttp cannot be "
                "journaled; use a client of httpx2, httpx or requests."
            )
        _module("aiohttp")
        from penstock.requests.clients import aiohttp  # not there unless it is asked for

        if self._connector is None:
            self._connector = aiohttp.make_connector()
        return aiohttp.make_session(
            self._executor, self._connector, self._base_url, CONNECT_SECONDS
        )

    def _requests_session(self) -> Any:  # noqa: ANN401
        _module("requests")
        from penstock.requests.clients import requests  # not there unless it is asked for

        transport = self._transport(_module("httpx2"), sends_again=False)
        return requests.make_session(HandedTransport(transport, self._handover))

    def _transport(self, module: ModuleType, *, sends_again: bool) -> AdmittedTransport:
        key = (module.__name__, sends_again)
        with self._lock:
            transport = self._transports.get(key)
            if transport is None:
                transport = self._transports[key] = self._new_transport(module, sends_again)
            return transport

    def _new_transport(self, module: ModuleType, sends_again: bool) -> AdmittedTransport:
        wire, paid = self._wires.of(module), self._paid
        if paid is None:
            return AdmittedTransport(module, self._executor, wire, sends_again=sends_again)
        return PaidTransport(module, self._executor, wire, paid, sends_again=sends_again)

    def _check(self) -> None:
        if self._is_closed or self._pid != os.getpid():
            raise ProviderNotAvailableHere(
                f"Provider {self._provider!r} is used where no run admits its requests; use it "
                "inside a task that runs on the loop or in a thread."
            )


def _module(library: str) -> ModuleType:
    try:
        return importlib.import_module(library)
    except ImportError:
        raise ConfigError(
            f"A client of {library!r} was asked for, and it is not installed; "
            f"run `pip install {library}`."
        ) from None
