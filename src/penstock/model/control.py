# SPDX-License-Identifier: Apache-2.0
"""What do others have to say to a worker that runs?"""

from __future__ import annotations

import msgspec

from penstock.model.lease import JobRef


class Question(msgspec.Struct, frozen=True):
    """How does this lease stand? Answered with a `JobStanding`."""

    id: int
    ref: JobRef


class Inbox(msgspec.Struct, frozen=True):
    """What a worker finds when it looks."""

    lingering: list[JobRef]  # leases that are over while their bodies may still run
    questions: list[Question]  # without an answer yet
