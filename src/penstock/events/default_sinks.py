# SPDX-License-Identifier: Apache-2.0
"""Who listens if nobody says otherwise?"""

from __future__ import annotations

from penstock.events import log_sink
from penstock.events.log_sink import LogEvents
from penstock.events.sink import RecentEvents


def default_sinks() -> tuple[RecentEvents | LogEvents, ...]:
    """The last events in memory; with debug logging, all of them in the log. For either stream."""
    return (RecentEvents(), LogEvents()) if log_sink.wanted() else (RecentEvents(),)
