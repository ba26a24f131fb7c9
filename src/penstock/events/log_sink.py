# SPDX-License-Identifier: Apache-2.0
"""How do events get into the log?"""

from __future__ import annotations

import logging

from penstock.events.kinds import RequestEvent, SchedulerEvent

log = logging.getLogger("penstock.events")


class LogEvents:
    """Writes every event as a debug line: kind, what it is about, reason and numbers."""

    def __call__(self, event: SchedulerEvent | RequestEvent, /) -> None:
        about = event.correlation.task_execution_id or event.correlation.run_id
        if isinstance(event, RequestEvent):
            about = f"{about} {'/'.join(event.resource)}"
        log.debug(
            "#%d %s %s %s %s",
            event.sequence,
            event.event_kind.value,
            about,
            event.reason or "",
            event.numbers or "",
        )


def wanted() -> bool:
    """Would anybody see these lines?"""
    return log.isEnabledFor(logging.DEBUG)
