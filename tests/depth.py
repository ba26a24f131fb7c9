# SPDX-License-Identifier: Apache-2.0
"""How far a test goes: far enough for seconds in `make test`, everything in `make soak-models`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


def depth(quick: T, soak: T) -> T:
    """What a test run takes, or what a soak takes."""
    return soak if SOAK else quick
