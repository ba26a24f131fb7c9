# SPDX-License-Identifier: Apache-2.0
"""Warns about requests to hosts other than the provider's base_url.

Another host may be meant: a second host of the same service. But the API key and the prompt go with
it, so it is logged, once for each host. (A redirect takes no key along: see `redirects`.)
"""

from __future__ import annotations

import logging
from contextlib import suppress
from urllib.parse import urlsplit

WARNINGS_MAX = 20  # of a provider; further hosts are not reported
HOST_SHOWN = 253  # characters

log = logging.getLogger("penstock.providers")


class HostCheck:
    """Owns which hosts a provider's requests may go to without a warning. Belongs to one loop."""

    __slots__ = ("_host", "_known", "_provider", "_warned")

    def __init__(self, provider: str, base_url: str | None) -> None:
        self._provider = provider
        self._host = _host_of(base_url)
        self._known = {"", *_spellings(self._host)}
        self._warned = 0

    def __repr__(self) -> str:
        return f"<HostCheck of {self._provider!r}: {len(self._known) - 1}>"

    def check(self, host: str) -> None:
        """Warn about a host that is not known yet."""
        if host in self._known or not self._host or self._warned >= WARNINGS_MAX:
            return
        spellings = _spellings(host)
        if self._known.isdisjoint(spellings):
            self._warned += 1
            log.warning(
                "A request of provider %r goes to the host %r and not to %r, where its base_url "
                "points; its body goes there too, and its key unless this is a redirect. Declare a "
                "provider of its own for that host if this is intended.",
                self._provider,
                host[:HOST_SHOWN],
                self._host,
            )
        self._known.update(spellings)


def _host_of(base_url: str | None) -> str:
    try:
        return urlsplit(base_url or "").hostname or ""
    except ValueError:
        return ""


def _spellings(host: str) -> set[str]:
    """Return the spellings of a host: with a dot at its end or not, in letters or in ASCII."""
    plain = host.lower().rstrip(".")
    found = {host, plain}
    if plain.isascii() and "xn--" not in plain:
        return found
    with suppress(UnicodeError):
        found.add(plain.encode("idna").decode("ascii"))
    with suppress(UnicodeError):
        found.add(plain.encode("ascii").decode("idna"))
    return found
