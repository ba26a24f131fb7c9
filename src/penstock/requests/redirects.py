# SPDX-License-Identifier: Apache-2.0
"""Redirects of a provider: which are followed, and what another origin gets to see.

A server that redirects decides where a key and a prompt go next. So redirects stay within their
origin unless the provider allows `any`; then another origin gets no header but those that say how
to answer, and no body of a paid call, and a public host never leads to a private address. Names
are resolved for that check and again by the connection: a name server that answers the two in
different ways is not caught.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.errors import RedirectRefused

SAME_ORIGIN, NONE = "same-origin", "none"

#: What another origin may see: how to answer, and what the body is if there is one.
KEPT_HEADERS = frozenset(
    {
        *("accept", "accept-encoding", "accept-language", "cache-control", "connection", "host"),
        *("content-encoding", "content-length", "content-type", "transfer-encoding", "te"),
        *("if-match", "if-modified-since", "if-none-match", "if-range", "range", "user-agent"),
    }
)
_PORTS = {"http": 80, "https": 443}

#: IPv6 addresses that end in the IPv4 address that is meant: mapped, compatible, translated.
_WITH_IPV4 = tuple(
    ipaddress.IPv6Network(network)
    for network in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")
)
_LOCAL_TRANSLATION = ipaddress.IPv6Network("64:ff9b:1::/48")  # to an IPv4 network of one's own

#: Returns the addresses of a host; OSError if it has none.
Resolve = Callable[[str], Awaitable[Sequence[str]]]


class Origin(NamedTuple):
    """Scheme, host and port."""

    scheme: str
    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = _PORTS.get(self.scheme)
        return f"{self.scheme}://{host}" + ("" if self.port == usual else f":{self.port}")

    def covers(self, other: Origin) -> bool:
        """Return whether the other one is the same, or the same host by TLS."""
        is_upgrade = self[::2] == ("http", 80) and other[::2] == ("https", 443)
        return self == other or (is_upgrade and self.host == other.host)


class Redirected(NamedTuple):
    """Where a redirected request comes from; its client hands it from one request to the next."""

    origin: Origin  # that has redirected it
    status: int
    has_crossed: bool  # it has left an origin before


class Redirects:
    """The redirect policy of one provider."""

    def __init__(
        self, provider: str, mode: str = SAME_ORIGIN, resolve: Resolve | None = None
    ) -> None:
        self._provider = provider
        self._mode = mode
        self._resolve = resolve or _addresses

    def __repr__(self) -> str:
        return f"<Redirects of {self._provider!r}: {self._mode}>"

    def mark(self, before: Redirected | None, url: str, status: int) -> Redirected:
        """Return what the next request carries if this URL, itself reached so, redirects it."""
        here = origin_of(url)
        has_crossed = before is not None and (before.has_crossed or not before.origin.covers(here))
        return Redirected(here, status, has_crossed)

    async def check(self, mark: Redirected, url: str, *, carries_paid_body: bool) -> bool:
        """Return whether a redirected request may carry no credentials.

        Raises:
            RedirectRefused: it is not to be sent at all.
        """
        target = origin_of(url)
        if self._mode == NONE:
            raise self._refused(mark, target, 'and was not followed (redirects="none")')
        if mark.origin.covers(target):
            return mark.has_crossed
        if self._mode == SAME_ORIGIN:
            raise self._refused(
                mark,
                target,
                "which is another origin and was not followed; call that address itself, or write "
                f'app.provider({self._provider!r}, redirects="any")',
            )
        if carries_paid_body:
            raise self._refused(
                mark,
                target,
                "which would take the body of a paid call to another origin and was not followed; "
                "call that address itself, or declare a provider with that base_url",
            )
        if await self._leads_inside(mark.origin.host, target.host):
            raise self._refused(
                mark,
                target,
                "which leads from a public host to a private address; none is followed",
            )
        return True

    async def _leads_inside(self, host: str, target: str) -> bool:
        """Return whether a public host redirects to a private one, as far as names tell."""
        source = await self._is_private(host)
        if source:
            return False
        found = await self._is_private(target)
        return source is False if found is None else found

    async def _is_private(self, host: str) -> bool | None:
        """Return whether a host has an address that is not public; None: nobody knows."""
        if host == "localhost" or host.endswith(".localhost"):
            return True
        literal = _literal(host)
        addresses: Sequence[str] = [] if literal is None else [literal]
        with suppress(OSError, UnicodeError):
            addresses = addresses or await self._resolve(host)
        return any(map(_is_inside, addresses)) if addresses else None

    def _refused(self, mark: Redirected, target: Origin, why: str) -> RedirectRefused:
        return RedirectRefused(
            f"Provider {self._provider!r} answered {mark.status} with a redirect from "
            f"{mark.origin} to {target}, {why}."
        )


def strip_headers(headers: MutableMapping[str, Any]) -> None:
    """Leave only what another origin may see."""
    for name in {name.lower() for name in headers} - KEPT_HEADERS:
        del headers[name]


def origin_of(url: str) -> Origin:
    """Return scheme, host and port of a URL."""
    try:
        parts = urlsplit(url)
        scheme, port = parts.scheme.lower(), parts.port
    except ValueError:  # no URL at all: like no other origin
        return Origin("", url[:200], None)
    host = (parts.hostname or "").lower().rstrip(".")
    return Origin(scheme, host, _PORTS.get(scheme) if port is None else port)


def _literal(host: str) -> str | None:
    """Return the address that a host is by itself, in whatever form resolvers take; or None."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(host.partition("%")[0]))
    with suppress(OSError, UnicodeError):
        return socket.inet_ntoa(socket.inet_aton(host))  # 127.1, 0x7f000001
    return None


def _is_inside(address: str) -> bool:
    """Return whether an address is private, of this machine, or for other special use."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = _ipv4_in(found)
        if inner is not None:
            return not inner.is_global
        if found.is_site_local or found in _LOCAL_TRANSLATION:
            return True
    return not found.is_global or found.is_multicast


def _ipv4_in(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the address that a gateway or a kernel connects to instead of this one, or None."""
    if any(address in network for network in _WITH_IPV4):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.sixtofour


async def _addresses(host: str) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in found]
