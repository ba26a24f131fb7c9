# SPDX-License-Identifier: Apache-2.0
"""What happens when there is no space left for a slice?"""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.errors import OutputFailed
from penstock.ids import SystemIds
from penstock.model.dataset import SliceOutput, utc_micros
from penstock.outputs.paths import SliceNames
from penstock.outputs.read import read_raw
from penstock.outputs.root import OutputRoot, open_root
from penstock.outputs.write import encode_slices, write_slices
from tests.faults import sqlite_world as world

PRICES = SliceNames(dataset="prices")
CONTENT = b"x" * 200_000


def write(root: OutputRoot, first: int, count: int) -> tuple[SliceOutput, ...]:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    value = {start + timedelta(days=day): CONTENT for day in range(first, first + count)}
    ats = [utc_micros(moment) for moment in value]
    return write_slices(root, PRICES, encode_slices(value, ats, PRICES, batch=True), f"{first}:1")


def in_small_folder(name: str) -> None:
    """Slices on 1 MiB. Runs in a process with mounts of its own."""
    folder = Path(name)
    world.mount("tmpfs", folder, "-o", "size=1m")
    root = open_root(folder, SystemIds())
    kept = write(root, 0, 3)
    for count in (3, 1, 1, 8):
        if count == 1:
            write(root, 10, 1)
            continue
        with pytest.raises(OutputFailed) as raised:
            write(root, 20, count)
        assert raised.value.errno == errno.ENOSPC
        assert str(raised.value) == (
            f"prices could not be written below {root.path}: no space left on device. "
            "Nothing of it is visible."
        )
        assert os.listdir(folder / ".staging") == []
        assert not list(folder.glob("prices/2024-01-2*"))
    assert all(read_raw(root, PRICES, output) == CONTENT for output in kept)
    (folder / kept[0].path).unlink()
    (output,) = write(root, 30, 1)
    assert read_raw(root, PRICES, output) == CONTENT
    print("fine")


def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    assert "fine" in world.in_own_mounts(f"{__name__}:in_small_folder", str(tmp_path))
