# SPDX-License-Identifier: Apache-2.0
"""What can be counted, and how much of it does a task ask for?"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from penstock.errors import UsageError

#: Every task holds one of these from its start to its end.
SUBMISSION = "submission"

_ONE_SUBMISSION: Mapping[str, int] = MappingProxyType({SUBMISSION: 1})


class SchedulerResourceRequest(msgspec.Struct, frozen=True):
    """How much of which resources a task holds while it runs; at least one submission."""

    amounts: Mapping[str, int] = _ONE_SUBMISSION
    needs: tuple[tuple[str, int], ...] = ()  # the same, sorted: equal requests have equal needs
    #: What it competes for: all that it needs, but the submission only if that is all. Every task
    #: needs one; a group that runs on threads must not keep others from the loop.
    contested: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for resource, amount in self.amounts.items():
            if not resource:
                raise UsageError("The name of a resource cannot be empty.")
            if type(amount) is not int or amount <= 0:
                raise UsageError(
                    f"A task asks for a whole positive number of {resource!r}, got {amount!r}."
                )
        amounts = MappingProxyType({SUBMISSION: 1, **self.amounts})
        msgspec.structs.force_setattr(self, "amounts", amounts)
        needs = tuple(sorted(amounts.items()))
        others = tuple(need for need in needs if need[0] != SUBMISSION)
        msgspec.structs.force_setattr(self, "needs", needs)
        msgspec.structs.force_setattr(self, "contested", others or needs)

    def __hash__(self) -> int:
        return hash(self.needs)
