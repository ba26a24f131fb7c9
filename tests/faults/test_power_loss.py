# SPDX-License-Identifier: Apache-2.0
"""The power goes at any write or sync: nothing that was acknowledged is lost.

A real run is recorded, the record is proved against the kernel's, then the power is cut at a
hundred places (`make soak-power`: at thousands). The last tests prove that the harness can fail.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.faults.power.disk import Disk
from tests.faults.power.kernel import STRACE, seen_by_kernel, seen_by_recorder
from tests.faults.power.log import (
    Create,
    Delete,
    Event,
    Log,
    Rename,
    Sync,
    SyncFolder,
    Truncate,
    Write,
    read_log,
)
from tests.faults.power.replay import Campaign, Report
from tests.processes import REPOSITORY

CUTS = 100
SEED = 20_261_115


def record(folder: Path, *options: str, before: tuple[str, ...] = ()) -> Log:
    """Run the workload in a process of its own and read what it noted."""
    root = folder / "root"
    root.mkdir()
    command = [*before, sys.executable, "-m", "tests.faults.power.workload", str(root)]
    subprocess.run(
        [*command, str(folder / "log"), *options], check=True, cwd=REPOSITORY, timeout=60
    )
    return read_log(folder / "log")


def cut(folder: Path, log: Log, cuts: int) -> Report:
    campaign = Campaign(folder, SEED)
    campaign.replay(log, cuts)
    return campaign.report


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return record(tmp_path_factory.mktemp("recorded"), "--seed", "2")


@pytest.mark.faults
def test_f11_power_loss_at_any_write_or_sync_loses_no_acknowledged_work(
    recorded: Log, tmp_path: Path
) -> None:
    report = cut(tmp_path, recorded, CUTS)

    assert report.sound(), "\n".join(report.lines())
    assert report.cuts == CUTS
    assert report.disks > CUTS
    assert report.enqueues > 100
    assert report.ends > 50
    kinds = {step.what for step in recorded.steps}
    assert kinds >= {"enqueue", "batch", "lease", "ack", "ack with effects", "fail", "cancel"}
    assert kinds >= {"purge", "revoke", "release", "retry failed", "reap", "enqueue and ack"}
    assert any(isinstance(event, Delete) for event in recorded.events)  # a log was given up
    assert any(isinstance(event, Truncate) for event in recorded.events)


@pytest.mark.faults
def test_f11_a_new_store_has_its_name_only_after_the_way_to_it_is_durable(recorded: Log) -> None:
    """Another process may use the name at once, and knows nothing of folders that were made."""
    named = recorded.events.index(Rename(f"{recorded.database}-new", recorded.database))

    before = recorded.events[:named]
    after = recorded.events[named + 1 :]
    for made, folder in (("new", "."), ("new/folder", "new")):
        position = before.index(Create(made, 0))
        assert any(
            isinstance(event, SyncFolder) and event.path == folder and event.covers > position
            for event in before
        )
    assert isinstance(after[0], SyncFolder)
    assert after[0].path == "new/folder"


@pytest.mark.faults
def test_f11_the_record_is_what_the_kernel_saw(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace to compare the record with the kernel's view")
    trace = tmp_path / "trace"
    probe = subprocess.run([*STRACE, "-o", str(trace), "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("needs the right to trace processes (ptrace)")

    log = record(tmp_path, "--steps", "25", before=(*STRACE, "-o", str(trace)))

    seen = seen_by_kernel(trace, tmp_path / "root")
    assert len(seen) > 300
    assert {what for what, _, _ in seen} == {
        *("write", "truncate", "sync", "unlink", "mkdir", "rename"),
    }
    assert seen_by_recorder(log) == seen


@pytest.mark.faults
def test_f11_normal_durability_loses_acknowledged_work_and_the_oracle_says_so(
    tmp_path: Path,
) -> None:
    log = record(tmp_path, "--seed", "2", "--steps", "40", "--durability", "normal")

    report = cut(tmp_path, log, 12)

    assert report.lost_enqueues > 0
    assert report.corrupt == report.broken == 0  # it forgets, it does not lie


@pytest.mark.faults
@pytest.mark.parametrize("ignored", ["log", "folders"])
def test_f11_a_sync_that_is_not_done_is_found_by_the_oracle(
    ignored: str, recorded: Log, tmp_path: Path
) -> None:
    """Plant the bug: the disk is never told to sync the write-ahead log, or no folder."""
    logs = {
        event.file
        for event in recorded.events
        if isinstance(event, Create) and event.path.endswith("-wal")
    }

    def is_ignored(event: Event) -> bool:
        if ignored == "folders":
            return isinstance(event, SyncFolder)
        return isinstance(event, Sync) and event.file in logs

    # A mark takes the place of each, so that positions stay what they are.
    events = [Create("ignored", 0) if is_ignored(event) else event for event in recorded.events]
    planted = Log(recorded.database, recorded.base, recorded.before, events, recorded.steps)

    report = cut(tmp_path, planted, 8)

    assert report.lost_enqueues > 0
    assert not report.sound()


def content_after(events: list[Event], seed: int | None = None) -> dict[str, bytes]:
    disk = Disk(Log("f", events=events))
    disk.advance(len(events))
    return disk.durable_only() if seed is None else disk.some_of_the_rest(Random(seed))


def test_the_disk_keeps_what_was_synced_and_may_lose_the_rest() -> None:
    events: list[Event] = [
        Create("f", 1),
        Write(1, 0, b"a" * 1024),
        Sync(1, 2),
        SyncFolder(".", 3),
        Write(1, 512, b"b" * 1024),
        Truncate(1, 100),
    ]

    found = {content_after(events, seed)["f"] for seed in range(200)}

    assert content_after(events) == {"f": b"a" * 1024}
    assert {b"a" * 1024, b"a" * 100} <= found  # nothing of the rest, all of it
    assert b"a" * 512 + b"b" * 1024 in found  # the write without the later truncation
    assert b"a" * 512 + b"b" * 512 in found  # a torn write


def test_the_disk_forgets_a_file_whose_name_was_not_synced() -> None:
    events: list[Event] = [Create("new", 0), Create("new/f", 1), Write(1, 0, b"x"), Sync(1, 3)]

    assert content_after(events) == {}
    assert content_after([*events, SyncFolder("new", 4)]) == {}  # its folder has no name
    assert content_after([*events, SyncFolder("new", 4), SyncFolder(".", 5)]) == {"new/f": b"x"}
    assert {tuple(content_after(events, seed)) for seed in range(50)} == {(), ("new/f",)}


def test_the_disk_renames_at_once_or_not_at_all() -> None:
    events: list[Event] = [
        Create("old", 1),
        Write(1, 0, b"1"),
        Create("tmp", 2),
        Write(2, 0, b"2"),
        Sync(1, 4),
        Sync(2, 4),
        SyncFolder(".", 6),
        Rename("tmp", "old"),
    ]

    found = [content_after(events, seed) for seed in range(50)]

    assert content_after(events) == {"old": b"1", "tmp": b"2"}
    assert {"old": b"2"} in found
    assert all(disk in ({"old": b"2"}, {"old": b"1", "tmp": b"2"}) for disk in found)


def test_a_sync_does_not_cover_what_was_written_while_it_ran() -> None:
    events: list[Event] = [
        Create("f", 1),
        Write(1, 0, b"before"),
        Write(1, 0, b"during"),
        Sync(1, 2),
        SyncFolder(".", 4),
    ]

    assert content_after(events) == {"f": b"before"}
