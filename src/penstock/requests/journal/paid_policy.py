# SPDX-License-Identifier: Apache-2.0
"""Rules of paid calls: fingerprint, idempotency key, prices, calls in doubt."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

from penstock.model.journal import CallKey
from penstock.model.spending import Amount, Budget, Price, scopes_of

VERSION = "1"  # of the rule below; another rule must not find what this one has written
_DIGEST_BYTES = 20
_PLAIN_BOUNDARY = b"penstock"
_BOUNDARY = re.compile(r'^multipart/.*;\s*boundary="?([^";,]{8,70})"?', re.IGNORECASE)


def fingerprint(method: str, url: str, body: bytes, content_type: str = "") -> str:
    """Hash a request: the same in every attempt, in every process and on every machine."""
    found = _BOUNDARY.match(content_type)
    if found is not None:
        body = body.replace(found[1].encode("latin-1"), _PLAIN_BOUNDARY)
    parts = (method.upper().encode("ascii", "replace"), url.partition("#")[0].encode(), body)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return f"{VERSION}:{digest.hexdigest()}"


def idempotency_key(store: str, made_at: int, key: CallKey, bought: int) -> str:
    """Return the key by which a provider recognises a call that it may have served before.

    It changes once an answer was bought: a call that is bought anew wants another one.
    """
    text = "\0".join((store, str(made_at), str(key.job), key.fingerprint, str(key.ordinal)))
    hashed = hashlib.blake2b(f"{text}\0{bought}".encode(), digest_size=_DIGEST_BYTES)
    return f"penstock-{hashed.hexdigest()}"


HOLD = "hold"  # of `in_doubt`
CALL_MICROS_MAX = 10**12  # of one call, a million dollars: no sum of calls leaves 64 bits

_NO_PRICES: Mapping[str, Price] = {}


class PaidPolicy(msgspec.Struct, frozen=True):
    """The rules of one provider whose calls cost money."""

    provider: str
    app: str = ""  # whose budgets its calls count in
    holds_in_doubt: bool = False  # a call in doubt waits for a person; else it is sent again
    idempotency_header: str | None = None  # "": the provider knows none; None: as its SDK does
    prices: Mapping[str, Price] = _NO_PRICES  # by model; without one, tokens are still counted
    dollar_budgets: tuple[Budget, ...] = ()  # that a call without a price cannot be paid from

    def has_price(self, model: str) -> bool:
        return model in self.prices

    def amount(self, model: str, input_tokens: int, output_tokens: int) -> Amount:
        """Return the cost of so many tokens of a model."""
        price = self.prices.get(model)
        micros = 0 if price is None else price.of(input_tokens, output_tokens)
        micros = min(micros, CALL_MICROS_MAX)
        return Amount(micros, input_tokens + output_tokens)

    def forbids_unpriced(self, task: str, model: str) -> Budget | None:
        """Return the dollar budget that a call without a known price cannot be counted in."""
        if not self.dollar_budgets or self.has_price(model):
            return None
        scopes = scopes_of(task, self.provider, model)
        return next((one for one in self.dollar_budgets if one.scope in scopes), None)
