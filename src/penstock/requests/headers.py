# SPDX-License-Identifier: Apache-2.0
"""Reads rate limit headers and Retry-After of replies.

Four dialects: OpenAI's `x-ratelimit-*-requests`, Anthropic's `anthropic-ratelimit-*`, GitHub's
plain `x-ratelimit-*`, and the `RateLimit` fields of the IETF. Headers are a stranger's text: what
is not exactly in the grammar, contradicts itself or comes twice is ignored, and nothing here
raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

from msgspec import structs

from penstock.model.request import Quota, QuotaReading
from penstock.retry.classify import AskedWait, believed_wait, parse_retry_after

VALUE_LENGTH_MAX = 1_024  # bytes; a longer value is no number of anything
TOO_LONG = "?"  # stands for it: no grammar has this
LIMIT_MAX = 1e12
RESET_SECONDS_MAX = 31 * 86_400.0
DIGITS_MAX = 13  # of a number
EPOCH_MIN = 1e9  # a reset of this size is a moment, not a time to wait

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
_WINDOWS = (1.0, MINUTE, HOUR, DAY)
_NEAREST = tuple((sqrt(one * other), one) for one, other in pairwise(_WINDOWS))  # by ratio
#: Per quota: OpenAI's limit, remaining and reset, then Anthropic's.
_FIELDS = tuple(
    (
        quota,
        tuple(f"x-ratelimit-{what}-{quota}" for what in ("limit", "remaining", "reset")),
        tuple(f"anthropic-ratelimit-{quota}-{what}" for what in ("limit", "remaining", "reset")),
    )
    for quota in Quota
)

#: GitHub's buckets: only the general one is mirrored, since a request does not know its bucket
#: before it was answered, and a search must not hold up everything else.
_GENERAL = frozenset({"core", "graphql"})

_NUMBER = re.compile(r"[0-9]{1,13}(?:\.[0-9]{1,9})?")
_SPANS = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h|d)){1,5}")
_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": MINUTE, "h": HOUR, "d": DAY}
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
#: "name";q=100;w=60 of the IETF: a name, then parameters.
_MEMBER = re.compile(
    r'\s*"([^"\\,;]{0,64})"((?:\s*;\s*[a-z]{1,8}=(?:"[^"\\,;]{0,64}"|[0-9]{1,15}))*)\s*'
)
_PARAMETER = re.compile(r';\s*([a-z]{1,8})=(?:"([^"\\,;]{0,64})"|([0-9]{1,15}))')


class HeadReading(NamedTuple):
    """What a reply's headers say about limits and encoding."""

    retry_after: AskedWait | None = None
    readings: tuple[QuotaReading, ...] = ()
    encoding: str = ""  # of the body


NOTHING = HeadReading()

#: Names of headers as they were met: in lower case if they matter here, else None.
_names: dict[bytes, str | None] = {}
_NAMES_MAX = 1_000


def read_headers(headers: Iterable[tuple[bytes, bytes]], now: float) -> HeadReading:
    """Read what concerns limits, and the encoding; `now` is seconds since 1970 UTC."""
    found: dict[str, list[str]] | None = None
    for raw_name, raw_value in headers:
        try:
            name = _names[raw_name]
        except KeyError:
            name = _named(raw_name)
        if name is None:
            continue
        if found is None:
            found = {}
        text = raw_value.decode("latin-1") if len(raw_value) <= VALUE_LENGTH_MAX else TOO_LONG
        found.setdefault(name, []).append(text)
    if found is None:
        return NOTHING
    retry_after, encoding = found.pop("retry-after", None), found.pop("content-encoding", None)
    single = {name: values[0] for name, values in found.items() if len(values) == 1}
    return HeadReading(
        None if retry_after is None else parse_retry_after(retry_after, now),
        tuple(_readings(single, now)) if single else (),
        "" if encoding is None else ", ".join(encoding),
    )


def _named(raw_name: bytes) -> str | None:
    """Remember whether a header matters; the replies of a service have the same ones."""
    lower = raw_name.lower()
    matters = b"ratelimit" in lower or lower in (b"retry-after", b"content-encoding")
    name = lower.decode("latin-1") if matters else None
    if len(_names) < _NAMES_MAX and len(raw_name) < 100:
        _names[raw_name] = name
    return name


def asked_wait(head: HeadReading) -> AskedWait | None:
    """Return how long a refusal lasts: as Retry-After says, or until an empty bucket is full."""
    if head.retry_after is not None:
        return head.retry_after
    resets = [reading.reset_seconds for reading in head.readings if reading.remaining == 0]
    return believed_wait(max(resets)) if resets else None


def _readings(headers: Mapping[str, str], now: float) -> Iterable[QuotaReading]:
    for quota, open_ai, anthropic in _FIELDS:
        reading: QuotaReading | None = None
        if open_ai[0] in headers:
            limit, remaining, reset = map(headers.get, open_ai)
            reading = _refilled(quota, _number(limit), _number(remaining), _span(reset))
        elif anthropic[0] in headers:
            limit, remaining, reset = map(headers.get, anthropic)
            reading = _refilled(quota, _number(limit), _number(remaining), _until(reset, now))
        if reading is None and quota is Quota.REQUESTS:
            reading = _git_hub(headers, now) or _ietf(headers) or _ietf_apart(headers)
        if reading is not None:
            yield reading


def _git_hub(headers: Mapping[str, str], now: float) -> QuotaReading | None:
    resource = headers.get("x-ratelimit-resource")
    if resource is not None and resource not in _GENERAL:
        return None
    reset = _number(headers.get("x-ratelimit-reset"))
    if reset is not None and reset >= EPOCH_MIN:
        reset = max(0.0, reset - now)
    return _window(
        _number(headers.get("x-ratelimit-limit")),
        _number(headers.get("x-ratelimit-remaining")),
        reset,
        None if resource is None else HOUR,
    )


def _ietf_apart(headers: Mapping[str, str]) -> QuotaReading | None:
    """The early drafts: one field for each number."""
    return _window(
        _number(headers.get("ratelimit-limit")),
        _number(headers.get("ratelimit-remaining")),
        _number(headers.get("ratelimit-reset")),
        None,
    )


def _ietf(headers: Mapping[str, str]) -> QuotaReading | None:
    """The member that allows the least: `"name";r=50;t=30` with its policy `"name";q=100;w=60`."""
    states, policies = headers.get("ratelimit"), headers.get("ratelimit-policy")
    if states is None or policies is None:
        return None
    declared = _members(policies)
    readings = []
    for name, state in _members(states).items():
        policy = declared.get(name)
        if policy is None or policy.get("qu", "requests") != "requests":
            continue
        reading = _window(
            _number(policy.get("q")),
            _number(state.get("r")),
            _number(state.get("t", "0")),
            _number(policy.get("w")),
        )
        if reading is not None:
            readings.append(reading)
    return min(readings, key=lambda reading: reading.remaining / reading.limit, default=None)


def _members(text: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for part in text.split(","):
        member = _MEMBER.fullmatch(part)
        if member is None or member[1] in found:
            return {}  # not the grammar, or it contradicts itself
        found[member[1]] = {
            name: quoted or digits for name, quoted, digits in _PARAMETER.findall(member[2])
        }
    return found


def _refilled(
    quota: Quota, limit: float | None, remaining: float | None, reset: float | None
) -> QuotaReading | None:
    """Read a bucket that refills steadily and is full at its reset, which tells its window."""
    if limit is None or remaining is None or reset is None:
        return None
    window = MINUTE
    if reset > 0 and remaining < limit:
        seconds = reset * limit / (limit - remaining)
        window = next((usual for most, usual in _NEAREST if seconds < most), DAY)
    return _reading(quota, limit, remaining, window, reset)


def _window(
    limit: float | None, remaining: float | None, reset: float | None, window: float | None
) -> QuotaReading | None:
    """Read a window that begins anew at its reset; it is at least as long as what is left."""
    if limit is None or remaining is None or reset is None:
        return None
    if not window:
        window = next((usual for usual in _WINDOWS if usual >= reset), DAY)
    reading = _reading(Quota.REQUESTS, limit, remaining, window, reset)
    if reading is None or remaining >= 1:
        return reading
    return structs.replace(reading, used_up_seconds=believed_wait(reading.reset_seconds).seconds)


def _reading(
    quota: Quota, limit: float, remaining: float, window: float, reset: float
) -> QuotaReading | None:
    if not (1 <= limit <= LIMIT_MAX and remaining <= limit and window <= RESET_SECONDS_MAX):
        return None
    return QuotaReading(quota, limit, remaining, window, min(reset, RESET_SECONDS_MAX))


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    if text.isdecimal() and text.isascii() and len(text) <= DIGITS_MAX:
        return float(text)
    return float(text) if _NUMBER.fullmatch(text.strip(" \t")) else None


def _span(text: str | None) -> float | None:
    """OpenAI's durations: `6m0s`, `8.64s`, `120ms`."""
    if text is None:
        return None
    one = _SPAN.fullmatch(text)
    if one is not None:
        return float(one[1]) * _UNITS[one[2]]
    if not _SPANS.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _SPAN.findall(text))


def _until(text: str | None, now: float) -> float | None:
    """Seconds until a moment of RFC 3339; 0 if it is past."""
    if text is None or not _MOMENT.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
        return max(0.0, moment.timestamp() - now)
    except (ValueError, OverflowError):  # a day or a year that does not exist
        return None
