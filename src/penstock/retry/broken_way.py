# SPDX-License-Identifier: Apache-2.0
"""Whom did a request not reach, and why?

Clients say "All connection attempts failed", SDKs "Connection error." and neither says where to.
The address is in the request that their errors keep, the reason in what they were raised from.
"""

from __future__ import annotations

from urllib.parse import urlsplit


def way_words(error: BaseException, message: str) -> str:
    """What the message of a broken connection leaves out; empty if nothing is known or missing."""
    parts = []
    try:
        cause = error.__cause__
        reason = "" if cause is None else str(cause)
        if reason and reason not in message:
            parts.append(f"{type(cause).__name__}: {reason}")
        address = _address(error)
        if address and address not in message:
            parts.append(f"to {address}")
    except Exception:  # of somebody else's classes
        return ""
    return f" [{', '.join(parts)}]" if parts else ""


def _address(error: BaseException) -> str:
    """The host and port of its request, without path, query and credentials."""
    # The `request` of an error of httpx that was raised without one is a property that raises.
    url = str(getattr(getattr(error, "request", None), "url", ""))
    return urlsplit(url).netloc.rpartition("@")[2]
