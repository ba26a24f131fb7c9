# SPDX-License-Identifier: Apache-2.0
"""Which connections carry the requests of a provider?

Admission bounds how many requests are in flight, so the pools have no bound of their own: a request
that holds a permit must not wait for a connection. The proxies of the environment are honoured as
the libraries do it.
"""

from __future__ import annotations

import os
import ssl
import urllib.request
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any, NamedTuple

KEPT_CONNECTIONS_MAX = 256  # idle ones
TRUST = "penstock_trust"  # an extension of a request that chooses its way itself


class Trust(NamedTuple):
    """Through whom, and whom to believe."""

    proxy: str | None = None
    verify: bool | str | ssl.SSLContext = True  # a text: where the certificates are
    cert: Any = None


class Wires:
    """Owns the transports of the libraries that are used."""

    def __init__(self, make: Callable[[ModuleType], Any] | None = None) -> None:
        self._make = make or Wire
        self.are_real = make is None  # else a test answers
        self._wires: dict[str, Any] = {}

    def of(self, module: ModuleType) -> Any:  # noqa: ANN401
        wire = self._wires.get(module.__name__)
        if wire is None:
            wire = self._wires[module.__name__] = self._make(module)
        return wire

    async def aclose(self) -> None:
        for wire in self._wires.values():
            await wire.aclose()


class Wire:
    """Transports of httpx2 or httpx: one for each way that is needed."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._has_proxies = bool(urllib.request.getproxies())
        self._by_host: dict[tuple[str, str], Any] = {}
        self._by_trust: dict[Trust, Any] = {}
        if not self._has_proxies:  # now: reading certificates is not the time of a request
            self._by_host["", ""] = self._transport(Trust())

    def handle_async_request(self, request: Any) -> Awaitable[Any]:  # noqa: ANN401
        if TRUST in request.extensions:
            transport = self._transport(request.extensions[TRUST])
        else:
            url = request.url
            key = (url.scheme, url.host) if self._has_proxies else ("", "")
            transport = self._by_host.get(key)
            if transport is None:
                transport = self._by_host[key] = self._transport(Trust(_proxy_for(*key)))
        sent: Awaitable[Any] = transport.handle_async_request(request)
        return sent

    async def aclose(self) -> None:
        for transport in self._by_trust.values():
            await transport.aclose()

    def _transport(self, trust: Trust) -> Any:  # noqa: ANN401
        transport = self._by_trust.get(trust)
        if transport is None:
            transport = self._by_trust[trust] = self._new_transport(trust)
        return transport

    def _new_transport(self, trust: Trust) -> Any:  # noqa: ANN401
        module, verify = self._module, trust.verify
        limits = module.Limits(max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS_MAX)
        if module.__name__ == "httpx2" and trust == Trust():
            from penstock.requests.pool_wire import PoolWire  # httpx2 is not there until it is used

            return PoolWire(limits)
        if isinstance(verify, str):
            is_folder = os.path.isdir(verify)
            verify = ssl.create_default_context(
                cafile=None if is_folder else verify, capath=verify if is_folder else None
            )
        return module.AsyncHTTPTransport(
            limits=limits, proxy=trust.proxy, verify=verify, cert=trust.cert
        )


def _proxy_for(scheme: str, host: str) -> str | None:
    if not host:
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
