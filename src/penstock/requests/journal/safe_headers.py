# SPDX-License-Identifier: Apache-2.0
"""Which headers of an answer are kept? None that could hold a secret, a cookie or a name."""

from __future__ import annotations

from collections.abc import Iterable

VALUE_LENGTH_MAX = 1_000  # characters
COUNT_MAX = 64

#: What programs read of a reply besides its body: what the body is, where a result will be or comes
#: from, how long to wait, and what to tell the provider's support.
_NAMES = frozenset(
    {
        "apim-request-id",
        "azure-asyncoperation",
        "cf-ray",
        "content-disposition",
        "content-encoding",  # of a body that was not decoded on its way
        "content-language",
        "content-location",
        "content-range",
        "content-type",
        "date",
        "etag",
        "last-modified",
        "link",
        "location",
        "openai-model",
        "openai-processing-ms",
        "openai-version",
        "operation-location",
        "request-id",
        "retry-after",
        "retry-after-ms",
        "x-amzn-requestid",
        "x-goog-request-id",
        "x-ms-request-id",
        "x-request-id",
    }
)
_BEGINNINGS = ("x-ratelimit-", "anthropic-ratelimit-")


def safe_headers(raw: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Those that may be kept, with names in lower case."""
    kept: list[tuple[str, str]] = []
    for name_bytes, value in raw:
        name = name_bytes.decode("latin-1").lower()
        if name in _NAMES or name.startswith(_BEGINNINGS):
            kept.append((name, value.decode("latin-1")[:VALUE_LENGTH_MAX]))
    return tuple(kept[:COUNT_MAX])
