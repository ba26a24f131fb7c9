# SPDX-License-Identifier: Apache-2.0
"""How often shall Python look for cycles while a worker runs?

A running job is a few dozen objects, so the default (every 700 new ones) looks all the time and
finds nothing: a tenth of a worker's CPU. Cycles are still found, a little later.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

NEW_OBJECTS = 20_000  # between two looks at the young ones


@contextlib.contextmanager
def calm_gc() -> Iterator[None]:
    """Look less often for as long as this lasts; a program that looks less often still may."""
    former = gc.get_threshold()
    if 0 < former[0] < NEW_OBJECTS:
        gc.set_threshold(NEW_OBJECTS, *former[1:])
    try:
        yield
    finally:
        gc.set_threshold(*former)
