# SPDX-License-Identifier: Apache-2.0
"""Who listens if nobody says otherwise?"""

from __future__ import annotations

from penstock.events import log_sink
from penstock.events.log_sink import LogEvents
from penstock.events.sink import EventSink, RecentEvents


def default_sinks() -> tuple[EventSink, ...]:
    """The last events in memory; with debug logging, all of them in the log."""
    return (RecentEvents(), LogEvents()) if log_sink.wanted() else (RecentEvents(),)
