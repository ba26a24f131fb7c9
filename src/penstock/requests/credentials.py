# SPDX-License-Identifier: Apache-2.0
"""Credentials of a provider: the headers that its requests carry, and whether its key has changed.

A key is read when it is first needed and kept in memory only; it is read anew when the account that
it belongs to is closed. It goes to the provider's base URL and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from hashlib import blake2b

from penstock.errors import ConfigError
from penstock.redaction.secrets import Secret
from penstock.requests.redirects import origin_of

MARK_BYTES = 4  # enough to tell keys apart, too few to find one by trying
ANTHROPIC_VERSION = "2023-06-01"
_SDK_AGENT = "openai/python"  # in the user agent of OpenAI's SDK, whatever its class is called


def implied_dialect(headers: Mapping[str, str]) -> str | None:
    """Return the dialect of the SDK that makes a request; None: none of those that are known."""
    if "anthropic-version" in headers:
        return "anthropic"
    return "openai" if _SDK_AGENT in headers.get("user-agent", "").lower() else None


class Credentials:
    """Owns the key of one provider as it was last read. Belongs to one loop."""

    def __init__(
        self,
        base_url: str | None = None,
        api: str | None = None,
        api_key: Secret | None = None,
        headers: Mapping[str, str | Secret] | None = None,
    ) -> None:
        self._origin = None if base_url is None else origin_of(base_url)
        self.dialect = api
        self._api_key = api_key
        self._headers = dict(headers or {})
        self._read: dict[str, str] | None = None  # None: it must be read
        self._problem: str | None = None  # why it could not be, when it was last tried

    def __repr__(self) -> str:
        return f"<Credentials for {self._origin}>"

    @property
    def is_empty(self) -> bool:
        """True if requests carry only what their callers give them."""
        return self._api_key is None and not self._headers

    @property
    def mark(self) -> str:
        """Tells this account from those of other keys, without the key; empty: none is known."""
        if self.is_empty:
            return ""
        if self._read is None:
            self.refresh()
        known = sorted((self._read or {}).items())
        return blake2b(repr((self._origin, known)).encode(), digest_size=MARK_BYTES).hexdigest()

    def apply(self, url: str, headers: MutableMapping[str, str]) -> None:
        """Add what a request has not got itself, if it goes to the provider.

        Raises:
            ConfigError: a secret cannot be read.
        """
        if self.is_empty or self._origin is None or not self._origin.covers(origin_of(url)):
            return
        if self._read is None:
            self.refresh()
        if self._read is None:
            raise ConfigError(self._problem or "A secret cannot be read.")
        for name, value in self._read.items():
            if name not in headers:
                headers[name] = value

    def refresh(self) -> bool:
        """Read it anew; True if it is another one than before, or can be read again."""
        before, was_read = self._read, self._read is not None or self._problem is not None
        try:
            self._read, self._problem = self._now(), None
        except ConfigError as error:
            self._read, self._problem = None, str(error)
        return was_read and self._read is not None and self._read != before

    def _now(self) -> dict[str, str]:
        found = {
            name: value.reveal() if isinstance(value, Secret) else value
            for name, value in self._headers.items()
        }
        if self._api_key is None:
            return found
        key = self._api_key.reveal()
        if self.dialect == "anthropic":
            return {"x-api-key": key, "anthropic-version": ANTHROPIC_VERSION, **found}
        return {"authorization": f"Bearer {key}", **found}
