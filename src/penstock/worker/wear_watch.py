# SPDX-License-Identifier: Apache-2.0
"""Who lets another worker take over when a process is no longer fit for new work?"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.worker.config import Stopping
from penstock.worker.executor import Slots
from penstock.worker.recycling import Wear

log = logging.getLogger("penstock.worker")


class WearWatch:
    """Looks now and again; stops a worker that is worn, and says why."""

    def __init__(
        self,
        wear: Wear,
        slots: Slots,
        stop: Callable[[Stopping], None],
        say: Callable[[str], None],
    ) -> None:
        self._wear = wear
        self._slots = slots
        self._stop = stop
        self._say = say

    def run_once(self) -> None:
        reason = self._wear.reason(self._slots.abandoned)
        if reason is not None:
            log.warning("This worker is replaced: %s.", reason)
            self._stop(Stopping.WORN)
            self._say(reason)
