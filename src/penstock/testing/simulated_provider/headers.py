# SPDX-License-Identifier: Apache-2.0
"""How do providers tell in headers how much is left, and when to come again?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate

from penstock.testing.simulated_provider.limits import QuotaState
from penstock.testing.simulated_provider.rules import HeaderStyle

Headers = list[tuple[str, str]]


def rate_headers(style: HeaderStyle, quotas: Mapping[str, QuotaState], wall: float) -> Headers:
    """What a reply tells of each quota (`requests`, `tokens`), at a wall-clock time."""
    told: Headers = []
    for name, state in quotas.items():
        if style == "openai":
            told += _openai(name, state)
        elif style == "anthropic":
            told += _anthropic(name, state, wall)
        elif style == "github":
            told += _github(name, state, wall)
        elif style == "ietf_three":
            told += _three_fields(name, state)
    if style == "ietf" and quotas:
        told.append(("ratelimit-policy", ", ".join(map(_policy, quotas, quotas.values()))))
        told.append(("ratelimit", ", ".join(map(_limit, quotas, quotas.values()))))
    return told


def retry_after(seconds: float, wall: float | None) -> str:
    """Seconds, or a date if the wall-clock time is given; whole seconds, never too early."""
    if wall is None:
        return str(math.ceil(seconds))
    return formatdate(math.ceil(wall + seconds), usegmt=True)


def go_duration(seconds: float) -> str:
    """As OpenAI writes durations: `20ms`, `6m0s`, `1h0m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    short = f"{rest:.3f}".rstrip("0").rstrip(".")
    if hours:
        return f"{hours}h{minutes}m{short}s"
    return f"{minutes}m{short}s" if minutes else f"{short}s"


def _openai(name: str, state: QuotaState) -> Headers:
    return [
        (f"x-ratelimit-limit-{name}", _whole(state.limit)),
        (f"x-ratelimit-remaining-{name}", _whole(state.remaining)),
        (f"x-ratelimit-reset-{name}", go_duration(state.reset_seconds)),
    ]


def _anthropic(name: str, state: QuotaState, wall: float) -> Headers:
    reset = datetime.fromtimestamp(math.ceil(wall + state.reset_seconds), UTC)
    return [
        (f"anthropic-ratelimit-{name}-limit", _whole(state.limit)),
        (f"anthropic-ratelimit-{name}-remaining", _whole(state.remaining)),
        (f"anthropic-ratelimit-{name}-reset", reset.strftime("%Y-%m-%dT%H:%M:%SZ")),
    ]


def _github(name: str, state: QuotaState, wall: float) -> Headers:
    if name != "requests":
        return []
    return [
        ("x-ratelimit-limit", _whole(state.limit)),
        ("x-ratelimit-remaining", _whole(state.remaining)),
        ("x-ratelimit-used", _whole(state.limit - math.floor(state.remaining))),
        ("x-ratelimit-reset", str(math.ceil(wall + state.reset_seconds))),
        ("x-ratelimit-resource", "core"),
    ]


def _three_fields(name: str, state: QuotaState) -> Headers:
    if name != "requests":
        return []
    window = math.ceil(state.window_seconds)
    return [
        ("ratelimit-limit", _whole(state.limit)),
        ("ratelimit-policy", f"{_whole(state.limit)};w={window}"),
        ("ratelimit-remaining", _whole(state.remaining)),
        ("ratelimit-reset", str(math.ceil(state.reset_seconds))),
    ]


def _policy(name: str, state: QuotaState) -> str:
    return f'"{name}";q={_whole(state.limit)};w={math.ceil(state.window_seconds)}'


def _limit(name: str, state: QuotaState) -> str:
    return f'"{name}";r={_whole(state.remaining)};t={math.ceil(state.reset_seconds)}'


def _whole(value: float) -> str:
    return str(math.floor(value))
