# SPDX-License-Identifier: Apache-2.0
"""Which headers of an answer are kept? None that could hold a secret, a cookie or a name."""

from __future__ import annotations

from collections.abc import Iterable

VALUE_LENGTH_MAX = 1_000  # characters
COUNT_MAX = 64

_NAMES = frozenset(
    {
        "content-encoding",  # of a body that was not decoded on its way
        "content-type",
        "date",
        "openai-model",
        "openai-processing-ms",
        "request-id",
        "retry-after",
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
