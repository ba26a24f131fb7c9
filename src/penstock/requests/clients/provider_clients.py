# SPDX-License-Identifier: Apache-2.0
"""The HTTP clients of a provider in one run, and permits for calls that are not HTTP.

Clients are made when somebody asks for them, and share their connections. Clients for SDKs are new
each time, since an SDK may close what it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType, TracebackType
from typing import Any

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.admission.requests.resolver import DOMAINS
from penstock.clock import Duration, to_seconds
from penstock.errors import ConfigError, ProviderNotAvailableHere, UsageError
from penstock.events import kinds
from penstock.model.request import RequestAdmissionItem, RequestOutcome, RequestReleaseOutcome
from penstock.requests.clients.httpx import (
    AdmittedTransport,
    ProviderRules,
    RoutedTransport,
    SyncTransport,
)
from penstock.requests.credentials import Credentials
from penstock.requests.exchange import ACCEPTED, outcome_of_error
from penstock.requests.executor import ModelRequestExecutor, RequestFacts, group_of
from penstock.requests.journal.replay import PaidCalls, PaidTransport
from penstock.requests.redirects import Redirects
from penstock.requests.thread_bridge import ThreadBridge
from penstock.requests.usage import RequestFields, check_tokens
from penstock.retry.classify import FailureClass, believed_wait, classify


class AdmittedCall:
    """One call while it is in flight; whoever makes it may say how it ended."""

    __slots__ = ("_outcome", "_retry_after_seconds", "_tokens_used")

    def __init__(self) -> None:
        self._outcome: RequestOutcome | None = None
        self._retry_after_seconds: float | None = None
        self._tokens_used: int | None = None

    def rate_limited(self, retry_after: Duration | None = None) -> None:
        """Report that the service refused, and asks for so many seconds."""
        self._outcome = RequestOutcome.RATE_LIMITED
        wait = None if retry_after is None else believed_wait(to_seconds(retry_after))
        self._retry_after_seconds = None if wait is None else wait.seconds

    def failed(self) -> None:
        """The service is unhealthy: it has failed."""
        self._outcome = RequestOutcome.PROVIDER_FAILURE

    def used(self, tokens: int | None) -> None:
        """Report how many tokens were really used; None: unknown."""
        if tokens is not None:
            check_tokens("used(...)", tokens)
        self._tokens_used = tokens

    def ending(self, error: BaseException | None, now: float) -> RequestReleaseOutcome:
        """Return the reported outcome, or else what the error of the call says."""
        outcome, wait_seconds = self._outcome, self._retry_after_seconds
        if outcome is None:
            outcome = RequestOutcome.SUCCESS
            if error is not None:
                outcome = outcome_of_error(error, now)
                classified = classify(error, now=now)
                if classified.category is FailureClass.SERVICE and _is_refusal(error, classified):
                    outcome, wait_seconds = RequestOutcome.RATE_LIMITED, classified.wait_seconds
        return RequestReleaseOutcome(outcome, wait_seconds, (), self._tokens_used)


def _is_refusal(error: BaseException, classified: object) -> bool:
    if getattr(classified, "wait_seconds", None) is not None:
        return True
    status = getattr(error, "status_code", None)
    if status is None:
        status = getattr(getattr(error, "response", None), "status_code", None)
    return status == 429


class Permit:
    """`async with` or, in a thread, `with`: a permit for the time inside."""

    __slots__ = ("_bridge", "_call", "_executor", "_is_used", "_item", "_lease")

    def __init__(
        self, executor: ModelRequestExecutor, bridge: ThreadBridge, item: RequestAdmissionItem
    ) -> None:
        self._executor = executor
        self._bridge = bridge
        self._item = item
        self._call = AdmittedCall()
        self._lease: RequestAdmissionLease | None = None
        self._is_used = False

    async def __aenter__(self) -> AdmittedCall:
        self._check_first()
        await self._begin()
        return self._call

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release(error)

    def __enter__(self) -> AdmittedCall:
        self._check_first()
        try:
            lease = self._bridge.call(self._begin)
        except BaseException as error:  # the thread was interrupted, perhaps with the lease granted
            self._bridge.call_soon(partial(self._release, error))
            raise
        self._executor.note_lease(lease)
        return self._call

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bridge.call_soon(partial(self._release, error))

    def _check_first(self) -> None:
        if self._is_used:
            raise UsageError(
                "A permit of ctx.admit(...) is for one call; write ctx.admit(...) again for each."
            )
        self._is_used = True

    async def _begin(self) -> RequestAdmissionLease:
        self._lease = lease = await self._executor.acquire(self._item)
        self._executor.admission.events.sent(lease)
        return lease

    def _release(self, error: BaseException | None) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            executor = self._executor
            ending = self._call.ending(error, executor.clock.now())
            seconds = executor.clock.monotonic() - lease.acquired_at
            executor.admission.events.ended(lease, ending, {"seconds": seconds})
            executor.admission.release(lease, ending)


CONNECT_SECONDS = 10.0
LOADED_LATE = "anyio._backends._asyncio"  # by httpx2, with its first request
_ASYNC = ("httpx2", "httpx", "aiohttp")
_SYNC = ("httpx2", "httpx", "requests")

#: Makes the transport that sends for a library (httpx2 or httpx). Tests give their own.
MakeTransport = Callable[[ModuleType], Any]


class ProviderClients:
    """The clients of one provider in one run. Belongs to the loop that made it."""

    def __init__(
        self,
        provider: str,
        executor: ModelRequestExecutor,
        *,
        base_url: str | None = None,
        make_transport: MakeTransport | None = None,
        paid: PaidCalls | None = None,
        rules: ProviderRules | None = None,
    ) -> None:
        self._provider = provider
        self._rules = rules or ProviderRules(Redirects(provider), Credentials(base_url))
        self._executor = executor
        self._paid = paid  # None: its calls cost nothing
        self._base_url = base_url or ""
        self._bridge = ThreadBridge(asyncio.get_running_loop())
        self._make_transport = make_transport or RoutedTransport
        self._inner: dict[str, Any] = {}  # by library: transports that send what is admitted
        self._transports: dict[tuple[str, bool], AdmittedTransport] = {}
        self._clients: dict[bool, Any] = {}  # async or not: those that all callers share
        self._connector: Any = None  # of aiohttp
        self._lock = threading.Lock()  # of the transports: threads ask for clients too
        self._pid = os.getpid()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ProviderClients of {self._provider!r}>"

    @property
    def is_simulated(self) -> bool:
        """True if a test answers in place of the network."""
        return self._make_transport is not RoutedTransport

    def prepare(self) -> None:
        """Import httpx2 and read the certificates; to be called in a thread, since it blocks."""
        self._transport(_module("httpx2"), sends_again=True)
        with contextlib.suppress(ImportError):
            importlib.import_module(LOADED_LATE)

    @property
    def base_url(self) -> str:
        return self._base_url

    @property
    def dialect(self) -> str | None:
        """How its API is spoken; None: nobody has said, and its host is not known."""
        return self._rules.credentials.dialect

    @property
    def http(self) -> Any:  # noqa: ANN401 (a client of httpx2)
        return self._shared_client(is_async=True)

    @property
    def http_sync(self) -> Any:  # noqa: ANN401
        return self._shared_client(is_async=False)

    def http_client(self, library: str) -> Any:  # noqa: ANN401
        """An async client that gives raw replies."""
        return self._client(library, sends_again=False, is_async=True)

    def http_client_sync(self, library: str) -> Any:  # noqa: ANN401
        """A sync client, for threads, that gives raw replies."""
        return self._client(library, sends_again=False, is_async=False)

    def admit(self, model: str | None, domain: str, tokens: int | None) -> Permit:
        """A permit for a call that is not HTTP, on the loop or in a thread."""
        self._check()
        if domain not in DOMAINS:
            raise UsageError(f"A domain is one of {', '.join(DOMAINS)}, got {domain!r:.200}.")
        if model is not None and not isinstance(model, str):
            raise UsageError(f"model= is the name of a model, got {model!r:.200}.")
        if tokens is not None:
            check_tokens("tokens=", tokens)
        resource = self._executor.resolve(RequestFacts("", "", RequestFields(model)))
        resource = resource._replace(domain=domain)
        item = RequestAdmissionItem(resource, group_of(resource), None, tokens, kinds.current.get())
        return Permit(self._executor, self._bridge, item)

    async def aclose(self) -> None:
        """End the run: wake threads that wait, close connections."""
        self._is_closed = True
        self._bridge.close()
        for client in list(self._clients.values()):
            if hasattr(client, "aclose"):
                await client.aclose()
        for transport in self._inner.values():
            await transport.aclose()
        if self._connector is not None:
            await self._connector.close()

    def _shared_client(self, *, is_async: bool) -> Any:  # noqa: ANN401
        client = self._clients.get(is_async)
        if client is None or self._pid != os.getpid():
            client = self._client("httpx2", sends_again=True, is_async=is_async)
            self._clients[is_async] = client
        return client

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
            transport = SyncTransport(transport, self._bridge)
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
            self._executor, self._connector, self._base_url, CONNECT_SECONDS, self._rules
        )

    def _requests_session(self) -> Any:  # noqa: ANN401
        _module("requests")
        from penstock.requests.clients import requests  # not there unless it is asked for

        transport = self._transport(_module("httpx2"), sends_again=False)
        return requests.make_session(SyncTransport(transport, self._bridge), self._rules.redirects)

    def _transport(self, module: ModuleType, *, sends_again: bool) -> AdmittedTransport:
        key = (module.__name__, sends_again)
        with self._lock:
            transport = self._transports.get(key)
            if transport is None:
                transport = self._transports[key] = self._new_transport(module, sends_again)
            return transport

    def _new_transport(self, module: ModuleType, sends_again: bool) -> AdmittedTransport:
        inner = self._inner.get(module.__name__)
        if inner is None:
            inner = self._inner[module.__name__] = self._make_transport(module)
        parts = (module, self._executor, inner, self._rules)
        if self._paid is None:
            return AdmittedTransport(*parts, sends_again=sends_again)
        return PaidTransport(*parts, self._paid, sends_again=sends_again)

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
