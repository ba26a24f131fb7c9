# SPDX-License-Identifier: Apache-2.0
"""A few raw slices to write; imports little, since processes that die do it too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.model.dataset import SliceOutput, utc_micros
from penstock.outputs.paths import SliceNames
from penstock.outputs.root import OutputRoot
from penstock.outputs.write import encode_slices, write_slices

AT = datetime(2024, 1, 5, 21, tzinfo=UTC)
PRICES = SliceNames(dataset="prices")
SLICES = 6  # of a batch: enough for syncs side by side


def write(root: OutputRoot, count: int = SLICES, attempt: str = "1:1") -> tuple[SliceOutput, ...]:
    value = {AT + timedelta(days=day): b"slice %d" % day for day in range(count)}
    ats = [utc_micros(moment) for moment in value]
    return write_slices(root, PRICES, encode_slices(value, ats, PRICES, batch=True), attempt)
