# SPDX-License-Identifier: Apache-2.0
"""What becomes of a lease that is given back?"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class ReleaseReason(StrEnum):
    """What became of a release."""

    RELEASED = "released"
    DUPLICATE = "duplicate"  # it was released before
    STALE_LEASE = "stale_lease"  # its id belongs to another item
    WRONG_CONTROLLER_GENERATION = "wrong_controller_generation"
    UNKNOWN_LEASE = "unknown_lease"


class ReleaseResult(msgspec.Struct, frozen=True):
    """Only `released` has moved a counter."""

    released: bool
    reason: ReleaseReason
    diagnostics: Mapping[str, str] = {}
