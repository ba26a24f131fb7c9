# SPDX-License-Identifier: Apache-2.0
"""Is nothing at its place before it is durable, whatever dies or fails, and when?"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import failpoints
from penstock.errors import OutputFailed, UsageError
from penstock.ids import SeededIds
from penstock.model.dataset import SliceOutput, utc_micros
from penstock.outputs.garbage import collect_garbage
from penstock.outputs.paths import Disk, attempt_mark, checksum_of, part_stem
from penstock.outputs.read import read_raw
from penstock.outputs.root import OutputRoot, open_root
from penstock.outputs.write import encode_slices, write_slices
from tests.forked import run_forked
from tests.processes import REPOSITORY
from tests.unit.outputs.sim_disk import RecordingDisk, World, replayed
from tests.unit.outputs.some_slices import AT, PRICES, SLICES, write


def parts(root: OutputRoot) -> list[Path]:
    return sorted(Path(root.path).glob("prices/*/part-*"))


def staged(root: OutputRoot) -> list[str]:
    return os.listdir(Path(root.path) / ".staging")


# ── A power cut ──────────────────────────────────────────────────────────────────────────────────


def _is_premature(world: World, top: str) -> bool:
    """Is there a part that a program sees, and whose content is not certain?"""
    return any(
        "/part-" in name and not inode.certain
        for name, inode in world.seen.items()
        if name.startswith(top)
    )


def _verdict(folder: Path, count: int, forgets: str = "") -> str:
    disk = RecordingDisk(forgets)
    root = open_root(folder / "datasets", SeededIds(1), disk)
    if not world_after(disk).survives(f"{root.path}/.penstock-root", str(folder)):
        return "the id is not durable"
    outputs = write(root, count) + write(root, count, "1:2")
    if any(_is_premature(world, root.path) for world in replayed(disk.log)):
        return "a part was at its place too early"
    after = world_after(disk)
    if not all(after.survives(f"{root.path}/{one.path}", str(folder)) for one in outputs):
        return "a part would not survive"
    return "durable"


def world_after(disk: RecordingDisk) -> World:
    *_, last = replayed(disk.log)
    return last


@pytest.mark.parametrize("count", [1, 3, SLICES, 70])
def test_no_part_is_seen_before_it_is_durable_and_all_survive_the_end(
    tmp_path: Path, count: int
) -> None:
    assert _verdict(tmp_path, count) == "durable"


@pytest.mark.parametrize("forgets", ["sync", "sync_folder", "datasets", "prices"])
@pytest.mark.parametrize("count", [1, SLICES])
def test_a_forgotten_sync_would_be_noticed(tmp_path: Path, forgets: str, count: int) -> None:
    assert _verdict(tmp_path, count, forgets) != "durable"


def test_a_forgotten_sync_of_a_moment_would_be_noticed(tmp_path: Path) -> None:
    assert _verdict(tmp_path, 2, "2024-01-06T210000Z") == "a part would not survive"


def test_a_second_writer_relies_on_no_sync_of_the_first(tmp_path: Path) -> None:
    """The first made the folders and has not synced them when the second is done."""
    disk = RecordingDisk()
    root = open_root(tmp_path / "datasets", SeededIds(1), disk)
    (tmp_path / "datasets" / "prices" / "2024-01-05T210000Z").mkdir(parents=True)

    (output,) = write(root, 1)

    synced = {path for verb, path, *_ in disk.log if verb == "sync_folder"}
    assert {
        root.path,
        f"{root.path}/prices",
        os.path.dirname(f"{root.path}/{output.path}"),
    } <= synced


def test_a_second_slice_does_not_sync_the_root_again(tmp_path: Path) -> None:
    disk = RecordingDisk()
    root = open_root(tmp_path / "datasets", SeededIds(1), disk)
    write(root, 1)
    disk.log.clear()

    write(root, 1, "1:2")

    syncs = [operation[0] for operation in disk.log if operation[0].startswith("sync")]
    assert syncs == ["sync", "sync_folder", "sync_folder"]


# ── A process that dies ──────────────────────────────────────────────────────────────────────────

DYING = """
import os, signal, sys
from penstock import failpoints
from tests.unit.outputs.some_slices import write
from penstock.outputs.root import find_root
left = int(sys.argv[3])
def act(point):
    global left
    left -= point == sys.argv[2]
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
failpoints.arm(act)
write(find_root(sys.argv[1]), attempt="2:1")
"""


@pytest.mark.parametrize(
    ("point", "hits"),
    [
        ("dataset.part_written", (1, 4, SLICES)),
        ("dataset.part_synced", (1,)),
        ("dataset.renamed", (1, 4, SLICES)),
        ("dataset.dir_synced", (1,)),
    ],
)
def test_a_death_leaves_old_files_and_whole_new_ones(
    tmp_path: Path, point: str, hits: tuple[int, ...]
) -> None:
    assert point in failpoints.POINTS
    root = open_root(tmp_path / "datasets", SeededIds(1))
    old = write(root)
    for hit in hits:
        command = [sys.executable, "-c", DYING, root.path, point, str(hit)]
        ended = run_forked(command, capture_output=True, cwd=REPOSITORY)

        assert ended.returncode == -signal.SIGKILL, ended.stderr
        for part in parts(root):
            assert _is_whole(part)
        for day, output in enumerate(old):
            assert read_raw(root, PRICES, output) == b"slice %d" % day

    collect_garbage(
        root, "prices", lambda: [output.path for output in old], alive={attempt_mark("1:1")}
    )
    again = write(root, attempt="3:1")
    assert read_raw(root, PRICES, again[0]) == b"slice 0"


def _is_whole(part: Path) -> bool:
    """Its name is made of its content."""
    at = utc_micros(datetime.strptime(part.parent.name, "%Y-%m-%dT%H%M%S%z"))
    stems = {
        part_stem(checksum_of(part.read_bytes()), at, attempt_mark(attempt))
        for attempt in ("1:1", "2:1")
    }
    return part.name.removeprefix("part-").removesuffix(".bin") in stems


# ── A disk that refuses ──────────────────────────────────────────────────────────────────────────


class FailingDisk(Disk):
    """Refuses the n-th call of all that can be refused."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails_at = -1
        self.errno = 0
        self._lock = threading.Lock()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in REFUSABLE:
            with self._lock:
                self.calls += 1
                if self.calls == self.fails_at:
                    raise OSError(self.errno, os.strerror(self.errno))
        return found


REFUSABLE = {"create", "write", "sync", "sync_folder", "make_folder", "rename", "open_folder"}


@pytest.fixture
def failing(tmp_path: Path) -> tuple[OutputRoot, FailingDisk]:
    disk = FailingDisk()
    return open_root(tmp_path / "datasets", SeededIds(1), disk), disk


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("count", [1, SLICES])
def test_whatever_is_refused_nothing_is_left_and_one_sentence_says_why(
    failing: tuple[OutputRoot, FailingDisk], count: int, number: int
) -> None:
    root, disk = failing
    disk.calls, disk.errno = 0, number
    write(root, count)
    calls, before = disk.calls, parts(root)

    for fails_at in range(1, calls + 1):
        disk.calls, disk.fails_at = 0, fails_at
        root._synced.clear()
        with pytest.raises(OutputFailed) as caught:
            write(root, count, "1:2")

        assert caught.value.errno == number
        assert str(caught.value).count(". ") == 1
        assert os.strerror(number).lower() in str(caught.value)
        assert staged(root) == []
        assert parts(root) == before


def test_a_full_disk_says_so_in_words(failing: tuple[OutputRoot, FailingDisk]) -> None:
    root, disk = failing
    disk.calls, disk.fails_at, disk.errno = 0, 4, errno.ENOSPC

    with pytest.raises(OutputFailed) as caught:
        write(root, 1)

    assert str(caught.value) == (
        f"prices could not be written below {root.path}: no space left on device. "
        "Nothing of it is visible."
    )


def test_what_fails_to_be_encoded_leaves_nothing(tmp_path: Path) -> None:
    root = open_root(tmp_path / "datasets", SeededIds(1))
    value = {AT: b"fine", AT + timedelta(days=1): None}
    ats = [utc_micros(moment) for moment in value]

    with pytest.raises(UsageError, match="returned nothing"):
        write_slices(root, PRICES, encode_slices(value, ats, PRICES, batch=True), "1:1")

    assert (staged(root), parts(root)) == ([], [])


# ── Several at once ──────────────────────────────────────────────────────────────────────────────


def test_two_writers_of_one_slice_write_two_files(tmp_path: Path) -> None:
    root = open_root(tmp_path / "datasets", SeededIds(1))
    written: list[SliceOutput] = []

    def attempt(number: int) -> None:
        for turn in range(20):
            written.extend(write(root, 2, f"{number}:{turn}"))

    writers = [threading.Thread(target=attempt, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert len({output.path for output in written}) == len(written) == 160
    assert {read_raw(root, PRICES, output) for output in written} == {b"slice 0", b"slice 1"}


def test_a_writer_survives_a_sweeper_that_removes_its_folder(tmp_path: Path) -> None:
    class Swept(Disk):
        left = 3

        def rename(self, folder: int, name: str, into: int, new: str) -> None:
            if self.left:
                self.left -= 1
                os.rmdir(os.readlink(f"/proc/self/fd/{into}"))
            super().rename(folder, name, into, new)

    root = open_root(tmp_path / "datasets", SeededIds(1), Swept())

    (output,) = write(root, 1)

    assert read_raw(root, PRICES, output) == b"slice 0"


def test_an_attempt_that_writes_twice_writes_the_same_file(tmp_path: Path) -> None:
    root = open_root(tmp_path / "datasets", SeededIds(1))
    first = write(root, 1)
    stem = Path(first[0].path).stem.removeprefix("part-")
    (Path(root.path) / ".staging" / f"prices@{stem}").write_bytes(b"left by a death")

    assert write(root, 1) == first
    assert read_raw(root, PRICES, first[0]) == b"slice 0"
    assert staged(root) == []


def test_a_folder_that_is_always_removed_is_given_up(tmp_path: Path) -> None:
    class Gone(Disk):
        def rename(self, folder: int, name: str, into: int, new: str) -> None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    root = open_root(tmp_path / "datasets", SeededIds(1), Gone())

    with pytest.raises(OutputFailed, match="no such file"):
        write(root, 1)
    assert (staged(root), parts(root)) == ([], [])
