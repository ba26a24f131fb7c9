# SPDX-License-Identifier: Apache-2.0
"""Is every trouble of a store's place and file found, told once, and left as it is?"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest

from penstock.clock import BootTime
from penstock.model.job import NewJob
from penstock.model.views import Finding
from penstock.stores.sqlite.connection import WAL_BYTES_MAX
from penstock.stores.sqlite.doctor import (
    CHECK_SECONDS,
    Checkup,
    SystemProbe,
    boot_finding,
    library_finding,
)
from penstock.stores.sqlite.location_check import Version
from penstock.stores.sqlite.read import keys_with_prefix, look
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing.clocks import ManualClock
from tests.faults.old_stores import build
from tests.faults.sqlite_world import as_nobody


@dataclass
class FakeProbe:
    """A machine that says what the test wants."""

    refused: dict[str, str] = field(default_factory=dict)  # by file name
    free: int = 1 << 40
    kind: str = "ext4"
    uid: int = field(default_factory=os.geteuid)

    def refusal(self, path: Path) -> str | None:
        return self.refused.get(path.name)

    def free_bytes(self, folder: Path) -> int:
        return self.free

    def file_system(self, folder: Path) -> str:
        return self.kind

    def user(self) -> int:
        return self.uid


class HurriedClock(ManualClock):
    """A second passes whenever somebody looks."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sound store of some pages that nobody uses."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    store = SqliteStore.open(folder / "store.db", durability="normal")
    store.enqueue(new_jobs(300)).result()
    store.close()
    return folder / "store.db"


def new_jobs(count: int, start: int = 0) -> list[NewJob]:
    return [
        NewJob(key=f"k{n}", task="t", payload="{}", group="g") for n in range(start, start + count)
    ]


def examine(
    path: Path, probe: FakeProbe | None = None, *, full: bool = False
) -> tuple[list[Finding], Checkup]:
    clock = ManualClock()
    checkup = Checkup(path, probe or FakeProbe(), clock, clock, full=full)
    return list(checkup.findings()), checkup


def the_problem(findings: list[Finding]) -> str:
    (found,) = [finding for finding in findings if not finding.ok]
    assert found.text.endswith(".")
    assert "\n" not in found.text
    return found.text


def contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (
            FakeProbe({"private": "permission denied"}),
            "private' of the store cannot be written: pe",
        ),
        (FakeProbe({"store.db": "operation not permitted"}), "store.db' of the store cannot be"),
        (FakeProbe({"store.db-turn": "permission denied"}), "store.db-turn' of the store cannot"),
        (FakeProbe(free=1 << 20), "Only 1 MiB are free"),
        (FakeProbe(kind="nfs4"), "not known to be local (nfs4)"),
        (FakeProbe(uid=4711), "not to user 4711, who asks"),
    ],
    ids=["folder", "file", "beside", "space", "network", "owner"],
)
def test_an_unfit_place_is_told_once(path: Path, probe: FakeProbe, said: str) -> None:
    findings, _ = examine(path, probe)

    assert said in the_problem(findings)


def test_a_place_that_is_no_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert "is a file, but" in the_problem(examine(tmp_path / "file/x/store.db")[0])
    assert "is a folder; name" in the_problem(examine(tmp_path)[0])


@pytest.mark.parametrize(("name", "mode"), [("store.db", 0o644), ("store.db-turn", 0o660)])
def test_a_file_that_others_may_read_is_told(path: Path, name: str, mode: int) -> None:
    path.with_name(name).chmod(mode)

    sentence = the_problem(examine(path)[0])

    assert f"mode {mode:04o}" in sentence
    assert f"chmod 600 {path.with_name(name)}" in sentence


def test_a_folder_in_which_others_may_replace_files_is_told(path: Path) -> None:
    path.parent.chmod(0o777)
    assert f"chmod 700 {path.parent}" in the_problem(examine(path)[0])

    path.parent.chmod(0o1777)  # as /tmp: others cannot
    assert all(finding.ok for finding in examine(path)[0])


@pytest.mark.parametrize("trouble", ["flipped", "truncated", "text"])
def test_a_corrupted_file_is_told_once_and_left(path: Path, trouble: str) -> None:
    data = bytearray(path.read_bytes())
    if trouble == "flipped":
        for offset in range(4_096, len(data), 4_096):
            data[offset : offset + 32] = b"\xde\xad" * 16
    elif trouble == "truncated":
        data = data[: len(data) // 2]
    else:
        data = bytearray(b"my shopping list\n" * 500)
    path.write_bytes(data)
    before = contents(path.parent)

    for full in (False, True):
        findings, checkup = examine(path, full=full)
        sentence = the_problem(findings)
        assert "is corrupted (" in sentence
        assert "penstock restore FILE --yes" in sentence
        assert checkup.facts is None
    assert contents(path.parent) == before


def test_a_wrong_index_is_found_by_a_full_look(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("update counters set n = n + 1 where scope = 'task'")
    connection.close()

    assert all(finding.ok for finding in examine(path)[0])
    sentence = the_problem(examine(path, full=True)[0])
    assert "The counter of task 't' in queued is 301, a count gives 300." in sentence
    assert "please report it" in sentence


@pytest.mark.parametrize(
    ("pragma", "value", "said"),
    [
        ("user_version", 99, "made by a newer Penstock"),
        ("application_id", 7, "is a database of another program"),
    ],
)
def test_a_file_that_is_not_for_us_is_told_and_not_touched(
    path: Path, pragma: str, value: int, said: str
) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma(pragma, value)
    connection.close()
    before = contents(path.parent)

    assert said in the_problem(examine(path)[0])
    assert contents(path.parent) == before


def test_an_older_schema_is_well_and_not_migrated(tmp_path: Path) -> None:
    path = tmp_path / "old" / "store.db"
    path.parent.mkdir(mode=0o700)
    build(path, 1)
    path.chmod(0o600)
    before = contents(path.parent)

    findings, checkup = examine(path)

    assert all(finding.ok for finding in findings)
    assert any("when it is opened" in finding.text for finding in findings)
    assert checkup.facts is None
    assert contents(path.parent) == before


def test_a_look_at_the_file_is_given_up_after_a_while_and_says_so(path: Path) -> None:
    clock = HurriedClock()
    checkup = Checkup(path, FakeProbe(), clock, clock, full=False)
    store = SqliteStore.open(path, durability="normal")
    store.enqueue(new_jobs(5_000, 1_000)).result()
    store.close()

    (found,) = [finding for finding in checkup.findings() if finding.check == "integrity"]

    assert found.ok
    assert found.text == f"nothing found in {CHECK_SECONDS:g} s; --full looks at everything"


def test_a_log_without_bounds_is_told_with_who_to_look_for(path: Path) -> None:
    store = SqliteStore.open(path, durability="normal")
    os.truncate(path.with_name("store.db-wal"), 3 * WAL_BYTES_MAX)

    sentence = the_problem(examine(path)[0])

    assert "has grown to 192 MiB" in sentence
    assert f"fuser {path}" in sentence
    os.truncate(path.with_name("store.db-wal"), 0)
    store.close()


def test_a_store_in_use_is_looked_at_without_a_trace(path: Path) -> None:
    store = SqliteStore.open(path, durability="normal")
    store.enqueue(new_jobs(1, 1_000)).result()
    before = contents(path.parent)

    _, checkup = examine(path, full=True)

    assert checkup.facts is not None
    assert sum(checkup.facts.stats.states.values()) == 301
    after = contents(path.parent)
    index = "store.db-shm"  # where connections mark what they read
    assert {**after, index: b""} == {**before, index: b""}
    store.close()


def test_a_log_left_by_a_crash_is_read_and_left_as_it_is(path: Path) -> None:
    store = SqliteStore.open(path, durability="normal")
    store.enqueue(new_jobs(1, 1_000)).result()
    crashed = path.parent / "crashed"
    shutil.copytree(path.parent, crashed)
    store.close()
    before = contents(crashed)

    _, checkup = examine(crashed / "store.db")
    assert checkup.facts is not None
    assert sum(checkup.facts.stats.states.values()) == 301
    assert contents(crashed) == before

    (crashed / "store.db-shm").unlink()
    findings, checkup = examine(crashed / "store.db")
    assert all(finding.ok for finding in findings)
    assert checkup.facts is None
    assert "not checked: the log" in findings[-1].text
    assert sorted(contents(crashed)) == ["store.db", "store.db-turn", "store.db-wal"]


def test_a_look_begins_again_if_somebody_came_meanwhile(path: Path) -> None:
    looks: list[int] = []
    opened: list[SqliteStore] = []

    def see(connection: apsw.Connection) -> int:
        count = connection.execute("select count(*) from jobs").fetchall()[0][0]
        looks.append(int(str(count)))
        if not opened:
            opened.append(SqliteStore.open(path, durability="normal"))
            opened[0].enqueue(new_jobs(1, 1_000)).result()
        return looks[-1]

    assert look(path, see) == 301
    assert looks == [300, 301]
    opened[0].close()


def test_the_kernel_is_asked_what_may_be_written(tmp_path: Path) -> None:
    probe = SystemProbe()
    file = tmp_path / "file"
    file.write_text("")

    assert probe.refusal(tmp_path) is None
    assert probe.refusal(file) is None
    assert probe.free_bytes(tmp_path) > 0
    assert probe.user() == os.geteuid()
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who is refused")
def test_another_user_is_told_what_may_not_be_written() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "store.db").write_text("")

        def refusals() -> None:
            probe = SystemProbe()
            raise PermissionError(f"{probe.refusal(folder)}, {probe.refusal(folder / 'store.db')}")

        said = as_nobody(refusals)

    assert said == "PermissionError permission denied, permission denied"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who is refused")
def test_a_folder_that_another_user_may_not_enter_is_told() -> None:
    with tempfile.TemporaryDirectory() as name:  # 0700
        path = Path(name) / "store.db"

        def refused() -> None:
            raise PermissionError(the_problem(examine(path)[0]))

        said = as_nobody(refused)

    assert f"'{path}' cannot be read: permission denied" in said


def test_a_link_to_a_store_is_looked_at_where_the_store_is(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    store = SqliteStore.open(path, durability="normal")
    store.enqueue(new_jobs(1, 1_000)).result()

    _, checkup = examine(link)

    assert checkup.facts is not None
    assert sum(checkup.facts.stats.states.values()) == 301  # with what is in the log
    assert keys_with_prefix(link, "k100", 9) == ["k100", "k1000"]
    store.close()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ((3, 40, 1), "has the WAL-reset bug"),
        ((3, 52, 0), "has the WAL-reset bug"),
        ((3, 50, 7), "is too old for Penstock's statements"),
        ((3, 51, 3), None),
        ((3, 54, 1), None),
    ],
)
def test_f33_the_doctor_tells_of_a_sqlite_that_is_not_fit(
    version: Version, said: str | None
) -> None:
    finding = library_finding(version)

    assert finding.ok == (said is None)
    if said is not None:
        assert said in finding.text
        assert "install apsw >= 3.53" in finding.text


def test_a_machine_without_a_boot_id_is_told() -> None:
    class Nameless:
        def boot_time(self) -> BootTime:
            return BootTime("unknown", 1)

    assert not boot_finding(Nameless()).ok
    assert boot_finding(ManualClock()).ok


def test_a_store_that_is_closed_is_one_file(path: Path) -> None:
    """A copy of it alone is then the whole store; the turn file holds nothing."""
    assert sorted(contents(path.parent)) == ["store.db", "store.db-turn"]
    assert path.with_name("store.db-turn").stat().st_size == 0
