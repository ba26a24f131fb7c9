# SPDX-License-Identifier: Apache-2.0
"""docs/reference/events.md: what is told while a run works?"""

from __future__ import annotations

import inspect
from enum import StrEnum

import msgspec

from penstock.events.kinds import (
    RequestEvent,
    RequestEventKind,
    SchedulerEvent,
    SchedulerEventKind,
)
from tools.reference.remarks import remarks, table

HEAD = """# Events

Made from the code by `make reference`; do not edit by hand.

Two streams, that of the scheduler and that of outbound requests: plain immutable values, each
stream numbered without gaps per run and process. They are best effort; the durable record of a
job is its history (`penstock queue show KEY`). No event carries payloads, results, replies or
error texts.
"""


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        _stream("The scheduler", SchedulerEventKind, SchedulerEvent),
        _stream("Requests", RequestEventKind, RequestEvent),
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _stream(title: str, kinds: type[StrEnum], event: type[msgspec.Struct]) -> str:
    says = remarks(kinds)
    rows = [(f"`{kind}`", says[kind.name]) for kind in kinds]
    fields = ", ".join(f"`{name}`" for name in event.__struct_fields__)
    _, _, more = inspect.cleandoc(kinds.__doc__ or "").partition("\n\n")
    carried = f"Each carries {fields}."
    return f"## {title}\n\n{table(('event', 'when'), rows)}\n\n{carried} {' '.join(more.split())}"
