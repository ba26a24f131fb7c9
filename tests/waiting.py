# SPDX-License-Identifier: Apache-2.0
"""How does a test wait for what other threads and processes do?"""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_SECONDS = 0.005


def wait_until(true: Callable[[], bool], seconds: float = 240.0) -> float:
    """Wait for something, on a busy machine as well; how long it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, f"not so within {seconds:g} s: {true}"
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began
