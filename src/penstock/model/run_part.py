# SPDX-License-Identifier: Apache-2.0
"""What does one worker of a run leave behind, for `explain` and `report`?"""

from __future__ import annotations

import msgspec

from penstock.model.job import WorkerId

RUN_BYTES_MAX = 64 * 1024  # of a document


class RunPart(msgspec.Struct, frozen=True):
    """A worker's document about its part of a run; what is in it is the runtime's."""

    run_id: str
    worker: WorkerId
    saved_at: int
    document: str  # JSON
