# SPDX-License-Identifier: Apache-2.0
"""How much happens in a demo?"""

from __future__ import annotations

from dataclasses import dataclass

CALLS_EACH = 3  # of a document: draft, criticism, final text


@dataclass(frozen=True, slots=True)
class Sizes:
    """The measures of one story."""

    documents: int
    allowed: int  # calls at once that the provider hides
    squeezed: int  # the same for a while
    slots: int  # documents in hand at once
    latency_seconds: float
    retry_after_seconds: float  # told with a refusal

    @property
    def calls(self) -> int:
        return self.documents * CALLS_EACH


FULL = Sizes(
    documents=250,
    allowed=16,
    squeezed=4,
    slots=20,
    latency_seconds=0.2,
    retry_after_seconds=1.0,
)
FAST = Sizes(
    documents=140,
    allowed=12,
    squeezed=3,
    slots=14,
    latency_seconds=0.1,
    retry_after_seconds=0.3,
)
