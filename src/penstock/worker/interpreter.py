# SPDX-License-Identifier: Apache-2.0
"""How shall Python behave while a worker runs?

1. Cycles: a running job is a few dozen objects, so the default (every 700 new ones) looks for
cycles all the time and finds none: a tenth of a worker's CPU. They are still found, a little later.
2. Threads: the store's writer would wait 5 ms for the loop's thread at every answer of the
database. Both would take turns instead of working side by side: a sixth of the rate on PostgreSQL.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

NEW_OBJECTS = 20_000  # between two looks at the young ones
SWITCH_SECONDS = 0.0005  # after so long a thread that runs lets another one run


@contextlib.contextmanager
def tuned() -> Iterator[None]:
    """Suited to a worker for as long as this lasts; a program that goes further already may."""
    thresholds, switches = gc.get_threshold(), sys.getswitchinterval()
    if 0 < thresholds[0] < NEW_OBJECTS:
        gc.set_threshold(NEW_OBJECTS, *thresholds[1:])
    if switches > SWITCH_SECONDS:
        sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if switches > SWITCH_SECONDS:
            sys.setswitchinterval(switches)
