# SPDX-License-Identifier: Apache-2.0
"""Which calls are the same call?

Those with the same method, URL and body. Headers do not count: keys change and have no place in a
journal. A multipart body is cut by a random line, which does not count either.
"""

from __future__ import annotations

import hashlib
import re

from penstock.model.journal import CallKey

VERSION = "1"  # of the rule below; another rule must not find what this one has written
_DIGEST_BYTES = 20
_PLAIN_BOUNDARY = b"penstock"
_BOUNDARY = re.compile(r'^multipart/.*;\s*boundary="?([^";,]{8,70})"?', re.IGNORECASE)


def fingerprint(method: str, url: str, body: bytes, content_type: str = "") -> str:
    """A hash that is the same in every attempt, in every process and on every machine."""
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
    """What tells a provider that a call is the one that it may have served before.

    It changes once an answer was bought: whoever buys anew wants another one.
    """
    text = "\0".join((store, str(made_at), str(key.job), key.fingerprint, str(key.ordinal)))
    hashed = hashlib.blake2b(f"{text}\0{bought}".encode(), digest_size=_DIGEST_BYTES)
    return f"penstock-{hashed.hexdigest()}"
