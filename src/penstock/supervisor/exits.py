# SPDX-License-Identifier: Apache-2.0
"""How did a process end, in words?"""

from __future__ import annotations

import signal

EXIT_OVER_BUDGET = 4  # of a run whose work waits for a budget


def describe_exit(code: int | None) -> str:
    """What an exit code says, for people."""
    if code is None:
        return "it still runs"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
