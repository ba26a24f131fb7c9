# SPDX-License-Identifier: Apache-2.0
"""What does a test need? An app in memory and in virtual time, clocks, and a recording sink."""

from penstock.testing.harness import Harness, harness
from penstock.testing.manual_clock import ManualClock
from penstock.testing.recording_sink import RecordingSink
from penstock.testing.virtual_loop import VirtualClock, VirtualLoop, run_virtual

__all__ = [
    "Harness",
    "ManualClock",
    "RecordingSink",
    "VirtualClock",
    "VirtualLoop",
    "harness",
    "run_virtual",
]
