# SPDX-License-Identifier: Apache-2.0
"""Does a function get what it needs, when it asks for it?"""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

from penstock.errors import DatasetDamaged, UsageError
from penstock.ids import SeededIds
from penstock.model.dataset import utc_micros
from penstock.outputs import read
from penstock.outputs.paths import Disk, SliceNames
from penstock.outputs.read import Slices, SlicesData
from penstock.outputs.root import OutputRoot, open_root
from penstock.outputs.write import encode_slices, write_slices
from tests.forked import run_forked
from tests.processes import REPOSITORY

ZONE = ZoneInfo("America/New_York")
DAYS = [datetime(2024, 3, 8 + day, 16, tzinfo=ZONE).astimezone(UTC) for day in range(4)]
ATS = [utc_micros(day) for day in DAYS]
PRICES = SliceNames(dataset="prices", tz="America/New_York", daily=True)


class CountingDisk(Disk):
    parts = 0

    def open_file(self, folder: int, name: str) -> int:
        self.parts += name.startswith("part-")
        return super().open_file(folder, name)


@pytest.fixture
def root(tmp_path: Path) -> OutputRoot:
    return open_root(tmp_path / "datasets", SeededIds(1), CountingDisk())


def given(root: OutputRoot, raw: bool = False) -> SlicesData:
    values = {
        day: b"%d" % number if raw else [{"close": number}] for number, day in enumerate(DAYS)
    }
    outputs = write_slices(root, PRICES, encode_slices(values, ATS, PRICES, batch=True), "1:1")
    needed = {ATS[2]: tuple(ATS[:3]), ATS[3]: tuple(ATS[1:])}
    return SlicesData(
        named=PRICES, root_path=root.path, root_id=root.id, outputs=outputs, needed_by=needed
    )


def test_timestamps_are_in_the_zone_of_the_calendar(root: OutputRoot) -> None:
    prices = Slices(given(root), root)

    assert len(prices) == 4
    assert prices.timestamps == DAYS
    assert [moment.hour for moment in prices.timestamps] == [16] * 4  # across the change of clocks
    assert repr(prices) == "<Slices prices 4>"


def test_nothing_is_read_before_it_is_asked_for_and_then_once(root: OutputRoot) -> None:
    disk = root.disk
    assert isinstance(disk, CountingDisk)
    prices = Slices(given(root), root)

    assert disk.parts == 0
    assert [row["close"] for row in prices.of(DAYS[2]).rows()] == [0, 1, 2]
    assert disk.parts == 3
    assert [row["close"] for row in prices.of(DAYS[3].astimezone(ZONE)).rows()] == [1, 2, 3]
    assert disk.parts == 4
    assert prices.table().num_rows == 4
    assert disk.parts == 4


def test_tables_are_kept_up_to_a_size(root: OutputRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = root.disk
    assert isinstance(disk, CountingDisk)
    prices = Slices(given(root), root)
    size = next(iter(prices)).table().nbytes
    monkeypatch.setattr(read, "CACHED_BYTES_MAX", 2 * size)

    assert [row["close"] for row in prices.rows()] == [0, 1, 2, 3]
    assert disk.parts == 4
    assert [one.rows() for one in list(prices)[2:]] == [[{"close": 2}], [{"close": 3}]]
    assert disk.parts == 4
    assert [row["close"] for row in prices.rows()] == [0, 1, 2, 3]
    assert disk.parts == 8


def test_a_table_that_is_too_large_is_not_kept(
    root: OutputRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = root.disk
    assert isinstance(disk, CountingDisk)
    prices = Slices(given(root), root)
    monkeypatch.setattr(read, "CACHED_BYTES_MAX", 1)

    assert prices.rows() == prices.rows()
    assert disk.parts == 8


def test_a_loop_gives_the_slices_one_by_one(root: OutputRoot) -> None:
    prices = Slices(given(root), root)

    found = [(one.timestamps[0], one.rows()) for one in prices]

    assert found == [(day, [{"close": number}]) for number, day in enumerate(DAYS)]


def test_bytes_are_of_one_slice(root: OutputRoot) -> None:
    raw = Slices(given(root, raw=True), root)

    assert [one.bytes() for one in raw] == [b"0", b"1", b"2", b"3"]
    with pytest.raises(UsageError, match="these are 4 of prices"):
        raw.bytes()


def test_a_timestamp_that_was_not_given_is_refused(root: OutputRoot) -> None:
    prices = Slices(given(root), root)

    with pytest.raises(UsageError, match="none of the timestamps"):
        prices.of(DAYS[2] + timedelta(microseconds=1))
    with pytest.raises(UsageError, match="has no zone"):
        prices.of(DAYS[2].replace(tzinfo=None))


def test_no_slices_are_an_empty_table(root: OutputRoot) -> None:
    nothing = Slices(
        SlicesData(named=PRICES, root_path=root.path, root_id=root.id, outputs=()), root
    )

    assert (len(nothing), nothing.rows(), nothing.timestamps) == (0, [], [])
    assert nothing.table().num_rows == 0


def test_slices_cross_as_json_and_are_read_in_a_thread(root: OutputRoot) -> None:
    text = msgspec.json.encode(given(root))
    found: list[object] = []

    def read() -> None:
        prices = Slices(msgspec.json.decode(text, type=SlicesData))
        found.extend(row["close"] for row in prices.of(DAYS[3]).rows())

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()

    assert found == [1, 2, 3]


def test_a_file_that_went_away_is_named_when_it_is_read(root: OutputRoot) -> None:
    prices = Slices(given(root), root)
    path = next(iter(prices))._outputs[0].path
    (Path(root.path) / path).unlink()

    assert len(prices.timestamps) == 4
    with pytest.raises(DatasetDamaged, match="prices@2024-03-08") as caught:
        prices.rows()
    assert caught.value.missing


WITHOUT_ARROW = """
import sys
sys.modules["pyarrow"] = None
import msgspec
from penstock.errors import UsageError
from penstock.ids import SystemIds
from penstock.outputs.paths import SliceNames
from penstock.outputs.root import open_root
from penstock.outputs.read import Slices, SlicesData
from penstock.outputs.write import encode_slices, write_slices
root, named = open_root(sys.argv[1], SystemIds()), SliceNames(dataset="raw")
outputs = write_slices(root, named, encode_slices(b"content", [0], named, batch=False), "1:1")
given = SlicesData(named=named, root_path=root.path, root_id=root.id, outputs=outputs)
print(Slices(given).bytes())
for value in ([{"a": 1}], []):
    try:
        list(encode_slices(value, [0], named, batch=False))
    except UsageError as error:
        print(error)
try:
    list(encode_slices(None, [0], named, batch=False))
except UsageError as error:
    print(error)
"""


def test_without_pyarrow_bytes_work_and_rows_name_the_extra(tmp_path: Path) -> None:
    ended = run_forked(
        [sys.executable, "-c", WITHOUT_ARROW, str(tmp_path)],
        capture_output=True,
        cwd=REPOSITORY,
        check=True,
    )

    raw, rows, empty, nothing = ended.stdout.decode().splitlines()
    assert raw == "b'content'"
    assert rows == empty
    assert "`pip install pyarrow`" in rows
    assert nothing.startswith("raw@1970-01-01T00:00:00Z returned nothing")
