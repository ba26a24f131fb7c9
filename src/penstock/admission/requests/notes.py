# SPDX-License-Identifier: Apache-2.0
"""What has the core of request admission to tell? Collected while it decides, told after."""

from __future__ import annotations

from typing import NamedTuple

from penstock.admission.requests.algorithm import LimitChange
from penstock.events.correlation import Correlation
from penstock.events.kinds import RequestEventKind
from penstock.model.provider import RequestResourceKey
from penstock.model.request import RequestAdmissionItem

#: The event of each change that an outcome makes to a limit.
CHANGES = {
    LimitChange.DECREASED: RequestEventKind.REQUEST_LIMIT_DECREASED,
    LimitChange.INCREASED: RequestEventKind.REQUEST_LIMIT_INCREASED,
    LimitChange.SOFT_CEILING_RECOVERED: RequestEventKind.REQUEST_SOFT_CEILING_RECOVERED,
    LimitChange.FULLY_RECOVERED: RequestEventKind.REQUEST_FULLY_RECOVERED,
}


class Note(NamedTuple):
    """An event that has no number yet."""

    kind: RequestEventKind
    resource: RequestResourceKey
    context: Correlation | None = None  # None: of no job
    reason: str | None = None
    numbers: dict[str, float] | None = None
    lease_id: int | None = None


class RequestNotes:
    """Owns what is still to be told. Nothing is kept unless somebody listens."""

    __slots__ = ("is_on", "pending")

    def __init__(self) -> None:
        self.is_on = False
        self.pending: list[Note] = []

    def of_item(
        self,
        kind: RequestEventKind,
        item: RequestAdmissionItem,
        numbers: dict[str, float] | None = None,
        lease_id: int | None = None,
    ) -> None:
        if self.is_on:
            note = Note(kind, item.resource, item.event_context, None, numbers, lease_id)
            self.pending.append(note)

    def of_resource(
        self,
        kind: RequestEventKind,
        resource: RequestResourceKey,
        reason: str | None = None,
        numbers: dict[str, float] | None = None,
    ) -> None:
        if self.is_on:
            self.pending.append(Note(kind, resource, None, reason, numbers))

    def take(self) -> list[Note]:
        taken, self.pending = self.pending, []
        return taken
