# SPDX-License-Identifier: Apache-2.0
"""What holds for the ticks of one schedule?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.definitions.preflight import Preflight
from penstock.definitions.schedule import Schedule
from penstock.retry.policy import RetryPolicy

#: What counts as no limit of attempts: a schedule is not given up unless it says so.
UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Recurring:
    """When it ticks, what a failure costs, and who looks before it is tried again."""

    schedule: Schedule[..., Any]
    policy: RetryPolicy  # the degraded back-off for its own faults, and no end of patience
    on_duty: tuple[Preflight[..., Any], ...] = ()
