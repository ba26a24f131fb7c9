# SPDX-License-Identifier: Apache-2.0
"""Which connections carry the requests of a provider?

Admission bounds how many requests are in flight, so the pools have no bound of their own: a request
that holds a permit must not wait for a connection. The proxies of the environment are honoured as
the libraries do it.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from types import ModuleType
from typing import Any

KEPT_CONNECTIONS_MAX = 256  # idle ones


class Wires:
    """Owns the transports of the libraries that are used."""

    def __init__(self, make: Callable[[ModuleType], Any] | None = None) -> None:
        self._make = make or Wire
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
    """A transport of httpx2 or httpx for each proxy that is needed."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._by_host: dict[tuple[str, str], Any] = {}
        self._by_proxy: dict[str | None, Any] = {}

    async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401
        url = request.url
        key = (url.scheme, url.host)
        transport = self._by_host.get(key)
        if transport is None:
            transport = self._by_host[key] = self._through(_proxy_for(*key))
        return await transport.handle_async_request(request)

    async def aclose(self) -> None:
        for transport in self._by_proxy.values():
            await transport.aclose()

    def _through(self, proxy: str | None) -> Any:  # noqa: ANN401
        transport = self._by_proxy.get(proxy)
        if transport is None:
            module = self._module
            transport = self._by_proxy[proxy] = module.AsyncHTTPTransport(
                limits=module.Limits(
                    max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS_MAX
                ),
                proxy=proxy,
            )
        return transport


def _proxy_for(scheme: str, host: str) -> str | None:
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
