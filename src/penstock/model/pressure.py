# SPDX-License-Identifier: Apache-2.0
"""How loaded is a provider's resource now?"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

import msgspec


class PressureSnapshot(msgspec.Struct, frozen=True):
    """The load of one provider's resource at one moment."""

    limit: int  # requests that may be in flight
    in_flight: int = 0
    waiters: int = 0  # requests that wait for their turn
    cooldown_seconds: float = 0.0  # until anything is sent again


class RequestPressure(Protocol):
    """What request admission lets others read; nobody changes anything through it."""

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        """The load of a resource; None: nothing is known of it, so nothing speaks against it."""
        ...
