# SPDX-License-Identifier: Apache-2.0
"""Is everything swept that nobody names, and nothing else?"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.errors import OutputFailed, UsageError
from penstock.ids import SeededIds
from penstock.model.dataset import SliceOutput, utc_micros
from penstock.outputs.garbage import GarbageReport, collect_garbage, remove_attempt_files
from penstock.outputs.paths import Disk, SliceNames, attempt_mark
from penstock.outputs.root import OutputRoot, open_root
from penstock.outputs.write import encode_slices, write_slices

AT = datetime(2024, 1, 5, 21, tzinfo=UTC)


@pytest.fixture
def root(tmp_path: Path) -> OutputRoot:
    return open_root(tmp_path / "datasets", SeededIds(1))


def write(root: OutputRoot, day: int, attempt: str, dataset: str = "prices") -> SliceOutput:
    named, at = SliceNames(dataset=dataset), utc_micros(AT + timedelta(days=day))
    (output,) = write_slices(
        root, named, encode_slices(b"content", [at], named, batch=False), attempt
    )
    return output


def age(root: OutputRoot) -> None:
    """Let all files be of before; the change time cannot be set, so wait for the next tick."""
    probe = Path(root.path) / "probe"
    probe.touch()
    before = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == before:
        probe.touch()
    probe.unlink()


def files(root: OutputRoot) -> set[str]:
    top = Path(root.path)
    return {str(path.relative_to(top)) for path in top.rglob("*") if not path.is_dir()}


def nobody() -> Iterable[str]:
    return ()


def test_files_that_nobody_names_go_with_their_empty_folders(root: OutputRoot) -> None:
    kept, old, lost = write(root, 0, "1:1"), write(root, 0, "1:2"), write(root, 1, "2:1")
    age(root)

    swept = collect_garbage(root, "prices", lambda: [kept.path])

    assert swept == GarbageReport(files=2, bytes=old.bytes + lost.bytes, folders=1)
    assert files(root) == {".penstock-root", kept.path}
    assert not (Path(root.path) / lost.path).parent.exists()


def test_staging_files_of_the_dataset_go_and_those_of_others_stay(root: OutputRoot) -> None:
    staging = Path(root.path) / ".staging"
    stem = "0" * 24
    dead, living, other = (attempt_mark(attempt) for attempt in "abc")
    for name in (f"prices@{stem}{dead}", f"prices@{stem}{living}", f"pricesx@{stem}{other}", "x"):
        (staging / name).write_bytes(b"half")
    age(root)

    swept = collect_garbage(root, "prices", nobody, alive={living})

    assert swept == GarbageReport(staged=1, bytes=4)
    left = {f"prices@{stem}{living}", f"pricesx@{stem}{other}", "x"}
    assert {path.name for path in staging.iterdir()} == left


def test_files_of_attempts_that_may_end_well_stay(root: OutputRoot) -> None:
    living, dead = write(root, 0, "1:1"), write(root, 0, "1:2")
    age(root)

    collect_garbage(root, "prices", nobody, alive={attempt_mark("1:1")})

    assert files(root) == {".penstock-root", living.path}
    assert dead.path not in files(root)


def test_what_is_written_while_the_sweep_reads_manifests_stays(root: OutputRoot) -> None:
    written = []

    def named() -> Iterable[str]:
        written.append(write(root, 0, "1:1"))
        return ()

    assert collect_garbage(root, "prices", named) == GarbageReport()
    assert (Path(root.path) / written[0].path).exists()


def test_what_we_did_not_write_and_links_stay(root: OutputRoot, tmp_path: Path) -> None:
    output = write(root, 0, "1:1")
    top = Path(root.path)
    outside = tmp_path / "outside"
    (outside / "2024-01-09T210000Z").mkdir(parents=True)
    precious = outside / "2024-01-09T210000Z" / Path(output.path).name
    precious.write_bytes(b"precious")
    moment = top / "prices" / "2024-01-09T210000Z"
    moment.symlink_to(outside / "2024-01-09T210000Z")
    (top / output.path).parent.joinpath("notes.txt").write_text("mine")
    (top / output.path).parent.joinpath("part-x.parquet").write_text("mine")
    (top / "prices" / "drafts").mkdir()
    (top / "prices" / "drafts" / Path(output.path).name).write_text("mine")
    linked = (top / output.path).with_name(
        Path(output.path).name.replace("part-", "part-")[:-5] + "0.bin"
    )
    linked.symlink_to(precious)
    folder = top / "prices" / "2024-01-05T210000Z" / Path(write(root, 0, "9:9").path).name
    folder.unlink()
    folder.mkdir()
    age(root)

    swept = collect_garbage(root, "prices", nobody)

    assert swept.files == 1
    assert not (top / output.path).exists()
    assert precious.read_bytes() == b"precious"
    for left in (moment, linked, folder, top / "prices" / "drafts" / Path(output.path).name):
        assert os.path.lexists(left)


def test_a_dataset_folder_that_is_a_link_is_not_followed(root: OutputRoot, tmp_path: Path) -> None:
    output = write(root, 0, "1:1")
    top = Path(root.path)
    (top / "prices").rename(tmp_path / "elsewhere")
    (top / "prices").symlink_to(tmp_path / "elsewhere")
    age(root)

    with pytest.raises(OutputFailed, match="could not be removed"):
        collect_garbage(root, "prices", nobody)

    assert (top / output.path).exists()


def test_a_dataset_without_files_and_a_name_that_is_none(root: OutputRoot) -> None:
    assert collect_garbage(root, "prices", nobody) == GarbageReport()
    with pytest.raises(UsageError, match="cannot be called"):
        collect_garbage(root, "../prices", nobody)


def test_of_many_slices_exactly_the_named_stay(root: OutputRoot) -> None:
    outputs = [write(root, day, f"{day}:1") for day in range(60)]
    age(root)

    swept = collect_garbage(root, "prices", lambda: (one.path for one in outputs[::3]))

    assert swept.files == swept.folders == 40
    assert files(root) == {".penstock-root"} | {one.path for one in outputs[::3]}


def test_two_sweepers_at_once_are_no_error(tmp_path: Path) -> None:
    """The other removes each thing just before we do."""

    class Ahead(Disk):
        def unlink(self, folder: int, name: str) -> None:
            super().unlink(folder, name)
            if name.startswith("part-"):
                super().unlink(folder, name)

        def open_folder(self, folder: int, name: str) -> int:
            if name == "2024-01-06T210000Z":
                raise FileNotFoundError(2, "No such file or directory")
            return super().open_folder(folder, name)

    ahead = open_root(tmp_path / "datasets", SeededIds(1), Ahead())
    ours = OutputRoot(ahead.path, ahead.id)
    first, second = write(ours, 0, "1:1"), write(ours, 1, "1:1")
    age(ours)

    assert collect_garbage(ahead, "prices", nobody) == GarbageReport()
    assert first.path not in files(ours)
    assert second.path in files(ours)


def test_an_attempt_removes_what_those_before_it_left_of_its_slices(root: OutputRoot) -> None:
    dead, other_day, other_job = write(root, 0, "1:1"), write(root, 1, "1:1"), write(root, 0, "2:1")
    staging = Path(root.path) / ".staging"
    for attempt in ("1:1", "2:1"):
        (staging / f"prices@{'0' * 24}{attempt_mark(attempt)}").touch()
    at = utc_micros(AT)
    before = files(root)
    remove_attempt_files(root, "prices", [at], {attempt_mark("1:1")})
    gone = {dead.path, f".staging/prices@{'0' * 24}{attempt_mark('1:1')}"}
    assert files(root) == before - gone
    assert {other_day.path, other_job.path} <= files(root)
    remove_attempt_files(root, "never-built", [at], {attempt_mark("1:1")})
