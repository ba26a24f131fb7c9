# SPDX-License-Identifier: Apache-2.0
"""A simulated provider: a scripted, seeded HTTP service with hidden rate limits."""

from penstock.testing.simulated_provider.core import Call, Counts
from penstock.testing.simulated_provider.provider import SimulatedProvider, SimulatedTransport
from penstock.testing.simulated_provider.rules import (
    Bucket,
    Change,
    Ending,
    Lognormal,
    Part,
    ProviderRules,
    Reply,
    SimulatedRequest,
    Window,
)

__all__ = [
    "Bucket",
    "Call",
    "Change",
    "Counts",
    "Ending",
    "Lognormal",
    "Part",
    "ProviderRules",
    "Reply",
    "SimulatedProvider",
    "SimulatedRequest",
    "SimulatedTransport",
    "Window",
]
