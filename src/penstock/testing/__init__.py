# SPDX-License-Identifier: Apache-2.0
"""For tests of users: an app in virtual time, clocks, a recording sink, a simulated provider."""

from penstock.testing.clocks import ManualClock
from penstock.testing.harness import Harness, harness
from penstock.testing.recording_sink import RecordingSink
from penstock.testing.simulated_provider import (
    Bucket,
    Change,
    Lognormal,
    ProviderRules,
    Reply,
    SimulatedProvider,
    SimulatedRequest,
    Window,
)
from penstock.testing.virtual_loop import VirtualClock, VirtualLoop, run_virtual

__all__ = [
    "Bucket",
    "Change",
    "Harness",
    "Lognormal",
    "ManualClock",
    "ProviderRules",
    "RecordingSink",
    "Reply",
    "SimulatedProvider",
    "SimulatedRequest",
    "VirtualClock",
    "VirtualLoop",
    "Window",
    "harness",
    "run_virtual",
]
