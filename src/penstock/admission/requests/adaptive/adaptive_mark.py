# SPDX-License-Identifier: Apache-2.0
"""What does a request of an adaptive limit remember of its grant?"""

from __future__ import annotations

import msgspec

from penstock.admission.requests.adaptive.latency import Cohort
from penstock.admission.requests.adaptive.mirrors import Sent


class AdaptiveMark(msgspec.Struct, frozen=True, gc=False):
    """What a request remembers of its grant."""

    epoch: int
    in_flight_before: int
    tokens: float
    cohort: Cohort
    sent: Sent
    is_test: bool
