# SPDX-License-Identifier: Apache-2.0
"""docs/reference/states.md: where can a job be, or a paid call, and what moves it?"""

from __future__ import annotations

from enum import StrEnum

from penstock.model.job import START_TRANSITIONS, TRANSITIONS, UNIT_TRANSITIONS, JobState
from penstock.model.journal import CallState
from tools.reference.remarks import remarks, table

HEAD = """# States

Made from the code by `make reference`; do not edit by hand.

## Of a job

```text
waiting ──► queued ──► in_progress ──► done | skipped | error
              ▲             │
              └─────────────┘  retry, release, lost lease, re-armed
```
"""

UNITS = """A unit of a schedule is one job for ever: a good tick re-arms it, and no end is final:
"""

STARTS = """What the jobs of a build wait for until all of them are there has no worker:
"""

CALLS = """## Of a paid call

A call to a provider with `paid = true` is kept in the journal; `penstock queue show KEY` counts a
job's calls.
"""


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        values(JobState, "the job"),
        moves(TRANSITIONS),
        UNITS,
        moves(UNIT_TRANSITIONS),
        STARTS,
        moves(START_TRANSITIONS),
        CALLS,
        values(CallState, "the call"),
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def moves(transitions: dict[JobState, dict[JobState, str]]) -> str:
    """A table of what moves a job."""
    rows = [
        (f"`{source}`", f"`{target}`", why)
        for source, targets in transitions.items()
        for target, why in targets.items()
    ]
    return table(("from", "to", "by"), rows)


def values(kinds: type[StrEnum], subject: str) -> str:
    """A table of the values of an enum, each with what its source says of it."""
    says = remarks(kinds)
    return table(("", subject), [(f"`{kind}`", says[kind.name]) for kind in kinds])
