# SPDX-License-Identifier: Apache-2.0
"""How loaded is a provider's resource now?"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

import msgspec

from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import RequestOutcome


class LeakCounters(msgspec.Struct, frozen=True, gc=False):
    """Releases that were refused, and errors of a limit's own code: zero if all is well."""

    duplicate: int = 0
    stale_lease: int = 0
    unknown_lease: int = 0
    wrong_controller_generation: int = 0
    algorithm_errors: int = 0


class PressureSnapshot(msgspec.Struct, frozen=True):
    """The load of one provider's resource at one moment."""

    limit: int  # requests that may be in flight
    in_flight: int = 0
    waiters: int = 0  # requests that wait for their turn
    cooldown_seconds: float = 0.0  # until anything is sent again
    resource: RequestResourceKey | None = None  # with `*`: over all domains, or all models
    captured_at: float = 0.0  # monotonic
    sequence: int = 0  # grows with every change of any resource
    effective_max: int = 0  # of the static caps, this process's part
    active_leases: int = 0  # as many as are in flight, or something has leaked
    blocked_until: float | None = None  # monotonic; None: it does not cool down
    ceiling: float | None = None  # where it was refused; None: never
    consecutive_refusals: int = 0
    last_outcome: RequestOutcome | None = None
    leaks: LeakCounters = LeakCounters()


class DeclaredCap(msgspec.Struct, frozen=True):
    """What one name said about how many requests may be in flight at once."""

    alias: str
    cap: int


class ProviderModelPressure(msgspec.Struct, frozen=True):
    """The load of what a provider limits as one thing, over all domains."""

    key: ProviderModelKey
    captured_at: float  # monotonic
    sequence: int
    algorithm: str
    effective_max: int
    limit: int
    in_flight: int
    active_leases: int
    waiters: int
    cooldown_seconds: float
    blocked_until: float | None
    ceiling: float | None
    consecutive_refusals: int
    model_cap: int | None  # as declared, of all processes
    provider_cap: int | None
    provider_in_flight: int
    aliases: tuple[DeclaredCap, ...]  # who contributed to the model's cap; it is their least
    domains: Mapping[str, PressureSnapshot]


class RequestPressure(Protocol):
    """What request admission lets others read; nobody changes anything through it."""

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        """The load of a resource; None: nothing is known of it, so nothing speaks against it."""
        ...
