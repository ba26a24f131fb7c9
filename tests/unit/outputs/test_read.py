# SPDX-License-Identifier: Apache-2.0
"""Is whatever is not what was written noticed, and named with the command that mends it?"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from penstock.errors import DatasetDamaged, OutputFailed, UsageError
from penstock.ids import SeededIds
from penstock.model.dataset import SliceOutput, utc_micros
from penstock.outputs.paths import Disk, SliceNames, folder_name, is_folder_name, split_path
from penstock.outputs.read import Slices, SlicesData, read_content, read_raw, read_table
from penstock.outputs.root import OutputRoot, open_root
from penstock.outputs.write import encode_slices, write_slices

AT = datetime(2024, 1, 5, 21, tzinfo=UTC)
PRICES = SliceNames(dataset="prices", tz="America/New_York", daily=True)


@pytest.fixture
def root(tmp_path: Path) -> OutputRoot:
    return open_root(tmp_path / "datasets", SeededIds(1))


def write(root: OutputRoot, value: object, day: int = 0) -> SliceOutput:
    at = utc_micros(AT + timedelta(days=day))
    return write_slices(root, PRICES, encode_slices(value, [at], PRICES, batch=False), "1:1")[0]


def slices(root: OutputRoot, *outputs: SliceOutput) -> Slices:
    return Slices(SlicesData(named=PRICES, root_path=root.path, root_id=root.id, outputs=outputs))


def damage(root: OutputRoot, output: SliceOutput) -> DatasetDamaged:
    with pytest.raises(DatasetDamaged) as caught:
        read_content(root, PRICES, output)
    assert caught.value.path == output.path
    assert str(caught.value).startswith(f"The file {output.path} of prices@2024-01-05 is damaged: ")
    assert str(caught.value).endswith(
        "Build it again with: penstock build prices --from 2024-01-05 --to 2024-01-06 --force"
    )
    return caught.value


def test_a_flipped_bit_is_noticed_wherever_it_is(root: OutputRoot) -> None:
    output = write(root, [{"a": number, "b": "x" * number} for number in range(50)])
    file = Path(root.path) / output.path
    content = file.read_bytes()

    for place in range(0, len(content), 7):
        broken = bytearray(content)
        broken[place] ^= 1 << place % 8
        file.write_bytes(broken)
        assert "its checksum differs" in str(damage(root, output))
    file.write_bytes(content)

    assert read_table(root, PRICES, output).num_rows == 50


def test_a_file_of_another_length_is_noticed(root: OutputRoot) -> None:
    output = write(root, b"content")
    file = Path(root.path) / output.path

    file.write_bytes(b"conten")
    assert "should have 7 bytes and has 6" in str(damage(root, output))
    file.write_bytes(b"")
    assert "has 0" in str(damage(root, output))
    file.write_bytes(b"content and more")
    assert "has more" in str(damage(root, output))


def test_a_file_or_folder_that_is_gone_is_noticed(root: OutputRoot) -> None:
    output = write(root, b"content")
    file = Path(root.path) / output.path

    file.unlink()
    assert damage(root, output).missing
    file.parent.rmdir()
    assert damage(root, output).missing
    file.parent.touch()
    assert damage(root, output).missing


def test_a_link_a_folder_or_a_pipe_in_its_place_is_not_read(
    root: OutputRoot, tmp_path: Path
) -> None:
    output = write(root, b"content")
    file = Path(root.path) / output.path
    elsewhere = tmp_path / "elsewhere"

    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert "a link is in its place" in str(damage(root, output))
    file.unlink()
    os.mkfifo(file)
    assert "it is not a file" in str(damage(root, output))
    file.unlink()
    file.mkdir()
    assert "it is not a file" in str(damage(root, output))


@pytest.mark.parametrize("level", [1, 2])
def test_a_folder_that_is_a_link_is_not_followed(
    root: OutputRoot, tmp_path: Path, level: int
) -> None:
    output = write(root, b"content")
    folder = (Path(root.path) / output.path).parents[level - 1]
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")

    assert "damaged" in str(damage(root, output))
    with pytest.raises(OutputFailed):
        write(root, b"other")
    assert [path.name for path in (tmp_path / "elsewhere").rglob("part-*")] == [
        Path(output.path).name
    ]


PART = f"part-{'0' * 40}.bin"
PLACES = (
    "",
    ".",
    "..",
    "/etc/passwd",
    "../../etc/passwd",
    "prices/../../etc/passwd",
    f"prices/../{PART}",
    f"../prices/2024-01-05T210000Z/{PART}",
    f"/prices/2024-01-05T210000Z/{PART}",
    f"prices//2024-01-05T210000Z/{PART}",
    f"prices/./{PART}",
    f"prices/2024-01-05T210000Z/../{PART}",
    f"prices/2024-01-05T210000Z/{PART}/",
    f"prices/2024-01-05T210000Z/{PART}\0.bin",
    f"prices/2024-01-05T210000Z/{PART}\n",
    f"prices\\2024-01-05T210000Z\\{PART}",
    f"prices/%2e%2e/{PART}",
    f"prices/..\\..\\etc/{PART}",
    f"prices/2024-01-05T21:00:00Z/{PART}",
    f"prices/{'2' * 5000}/{PART}",
    f"{'p' * 129}/2024-01-05T210000Z/{PART}",
    f".staging/2024-01-05T210000Z/{PART}",
    f"other/2024-01-05T210000Z/{PART}",
    f"prıces/2024-01-05T210000Z/{PART}",
    f"prices/2024-01-05T210000Z/{PART.upper()}",
    "prices/2024-01-05T210000Z/.penstock-root",
    "prices/2024-01-05T210000Z/part-1.bin",
    f"prices/٢٠٢٤-01-05T210000Z/{PART}",
)


@pytest.mark.parametrize("path", PLACES)
def test_a_manifest_cannot_name_anything_but_a_part(root: OutputRoot, path: str) -> None:
    output = msgspec.structs.replace(write(root, b"content"), path=path)

    assert "its manifest names a path that no slice has" in str(damage(root, output))


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "-x", "1x", "x" * 129, "a\0", "a\n"])
def test_a_dataset_cannot_be_called_anything_that_leads_elsewhere(
    root: OutputRoot, name: str
) -> None:
    named = SliceNames(dataset=name)

    with pytest.raises(UsageError, match="cannot be called"):
        write_slices(root, named, encode_slices(b"", [0], named, batch=False), "1:1")
    assert sorted(os.listdir(root.path)) == [".penstock-root", ".staging"]


def test_a_disk_that_does_not_read_is_no_damage(tmp_path: Path) -> None:
    class Broken(Disk):
        def open_file(self, folder: int, name: str) -> int:
            if name.startswith("part-"):
                raise PermissionError(13, "Permission denied")
            return super().open_file(folder, name)

    root = open_root(tmp_path / "datasets", SeededIds(1), Broken())
    output = write(root, b"content")

    with pytest.raises(OutputFailed, match="cannot be read: permission denied"):
        read_raw(root, PRICES, output)


def test_bytes_that_are_no_parquet_are_damage(root: OutputRoot) -> None:
    output = msgspec.structs.replace(write(root, b"PAR1 no PAR1"), kind="parquet")

    with pytest.raises(DatasetDamaged, match="cannot be read as Parquet"):
        read_table(root, PRICES, output)


def test_slices_with_other_columns_and_wider_numbers_join(root: OutputRoot) -> None:
    first = write(root, [{"a": 1, "b": "x"}], 0)
    second = write(root, [{"c": True, "a": 2.5}], 1)
    third = write(root, [{"a": None, "b": None}], 2)

    assert slices(root, first, second, third).rows() == [
        {"a": 1.0, "b": "x", "c": None},
        {"a": 2.5, "b": None, "c": True},
        {"a": None, "b": None, "c": None},
    ]


def test_slices_whose_types_do_not_meet_are_named_both(root: OutputRoot) -> None:
    outputs = [write(root, [{"a": None, "close": 1}], 0), write(root, [{"close": 1.5}], 1)]
    outputs.append(write(root, [{"close": "dear"}], 3))

    with pytest.raises(UsageError) as caught:
        slices(root, *outputs).table()

    assert str(caught.value) == (
        "Column 'close' is int64 in prices@2024-01-05 and string in prices@2024-01-08: "
        "read them separately, or build one of them again."
    )


def test_tables_are_not_bytes_and_bytes_are_no_table(root: OutputRoot) -> None:
    table, raw = write(root, [{"a": 1}], 0), write(root, b"x", 1)

    with pytest.raises(UsageError, match=r"prices@2024-01-05 is a table, not bytes"):
        slices(root, table).bytes()
    with pytest.raises(UsageError, match=r"prices@2024-01-06 is raw bytes, not a table"):
        slices(root, table, raw).rows()


def test_folders_of_moments_are_in_order_of_time() -> None:
    second = 1_000_000
    ats = [-62135596800 * second, -1, 0, 1, 500_000, second, second + 1, utc_micros(AT)]

    names = [folder_name(at) for at in ats]

    assert names == sorted(names)
    assert all(map(is_folder_name, names))
    assert all(split_path(f"prices/{name}/{PART}") for name in names)
    assert names[-1] == "2024-01-05T210000Z"
    assert names[3] == "1970-01-01T000000Z.000001"


def test_the_command_that_mends_names_the_second_where_a_day_has_several() -> None:
    hourly = SliceNames(dataset="ticks")

    assert hourly.rebuild_command(utc_micros(AT)) == (
        "penstock build ticks --from 2024-01-05T21:00:00Z --to 2024-01-05T21:00:01Z --force"
    )
    assert hourly.rebuild_command(utc_micros(AT) + 1) == (
        "penstock build ticks --from 2024-01-05T21:00:00.000001Z --to 2024-01-05T21:00:01Z --force"
    )


def test_a_type_that_no_pair_disputes_is_still_told(root: OutputRoot) -> None:
    """Numbers that fractions cannot hold: the types join, and the values do not."""
    outputs = [write(root, [{"a": 2**60 + 1}], 0), write(root, [{"a": 0.5}], 1)]

    with pytest.raises(UsageError, match="Slices of prices cannot be joined"):
        slices(root, *outputs).table()
