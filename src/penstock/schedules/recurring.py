# SPDX-License-Identifier: Apache-2.0
"""What holds for the ticks of one schedule?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.definitions.preflight import Preflight
from penstock.definitions.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Recurring:
    """What ticks, and who looks before a failed tick is tried again."""

    schedule: Schedule[..., Any]
    on_duty: tuple[Preflight[..., Any], ...] = ()
