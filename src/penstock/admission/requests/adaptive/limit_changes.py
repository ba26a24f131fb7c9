# SPDX-License-Identifier: Apache-2.0
"""Which movements of a window are worth to be told?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.admission.requests.algorithm import LimitChange

STEP = 1.25  # growth that is worth an event


class LimitChanges:
    """Owns what was told of a window that moves all the time."""

    __slots__ = ("_is_reduced", "size")

    def __init__(self, size: int) -> None:
        self.size = size  # that was told last
        self._is_reduced = False  # by a refusal, and not at the maximum since

    def refused(self) -> None:
        self._is_reduced = True

    def since_told(
        self, size: int, most: int, ceiling: float, *, is_paused: bool
    ) -> Sequence[LimitChange]:
        """What has changed; nothing that was told already."""
        told = self.size
        if size < told:
            self.size = size
            return (LimitChange.DECREASED,)
        if size == told or (size < most and size < told * STEP):
            return ()
        self.size = size
        changes = [LimitChange.INCREASED]
        if told <= ceiling < size:
            changes.append(LimitChange.SOFT_CEILING_RECOVERED)
        if size >= most and self._is_reduced and not is_paused:
            self._is_reduced = False
            changes.append(LimitChange.FULLY_RECOVERED)
        return changes
