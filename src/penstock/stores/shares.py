# SPDX-License-Identifier: Apache-2.0
"""How much of a lease call does a group get?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def weight_of(tasks: Iterable[str], weights: Mapping[str, int]) -> int:
    """The weight of a group: that of the heaviest of its tasks that are ready."""
    return max((weights.get(task, 1) for task in tasks), default=1) if weights else 1


def share_of(limit: int, weight: int, others: int, others_weight: int) -> int:
    """The part of a limit that a group gets beside others: at least one job for each of them."""
    spare = limit - others - 1
    return 1 + spare * weight // (weight + others_weight) if spare > 0 else 1
