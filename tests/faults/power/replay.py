# SPDX-License-Identifier: Apache-2.0
"""Was anything lost that somebody was told was safe?

For each cut the disk is built as it may be found, the real store opens it after a reboot, and
the oracle compares: what was answered before the cut is there, what was under way is there or
not, nothing else has changed.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import apsw

from penstock.clock import BootTime
from penstock.errors import PenstockError
from penstock.model.job import JobState, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.power.disk import Disk
from tests.faults.power.log import (
    Acked,
    Began,
    Create,
    Delete,
    Log,
    Rename,
    Snapshot,
    Sync,
    SyncFolder,
    Truncate,
)
from tests.faults.power.workload import TASKS, snapshot

FIRST_END = 5  # row states from here on are ends
FINISH_EVERY = 25  # every so many reopened disks the work is done to its end
EXAMPLES = 10  # of what went wrong are kept


@dataclass(slots=True)
class Found:
    """What the store said after the reboot."""

    held: Snapshot
    corrupt: list[str]
    broken: list[str]


@dataclass(slots=True)
class Report:
    """Counts of a campaign. Sound if nothing that must be 0 is anything else."""

    cuts: int = 0
    disks: int = 0  # opened with the real store
    finished: int = 0  # of them: worked on until nothing was left
    enqueues: int = 0  # acknowledged in the recorded runs
    ends: int = 0
    lost_enqueues: int = 0
    lost_ends: int = 0
    other: int = 0  # an acknowledged change is not there, or something nobody asked for is
    corrupt: int = 0
    broken: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return self.lost_enqueues + self.lost_ends + self.other

    def sound(self) -> bool:
        return not (self.lost or self.corrupt or self.broken)

    def lines(self) -> list[str]:
        return [
            f"cuts {self.cuts}, disks opened {self.disks}, worked to the end {self.finished}",
            f"acknowledged enqueues {self.enqueues}, acknowledged ends {self.ends}",
            f"lost {self.lost} (enqueues {self.lost_enqueues}, ends {self.lost_ends}, "
            f"other {self.other})",
            f"corrupt {self.corrupt}",
            f"broken invariants {self.broken}",
            *self.examples,
        ]

    def remember(self, text: str) -> None:
        if len(self.examples) < EXAMPLES:
            self.examples.append(text)


class AfterReboot:
    """A boot clock of another boot: leases from before the cut are nobody's."""

    def boot_time(self) -> BootTime:
        return BootTime("after the power came back", 1_000_000)


class Campaign:
    """Owns the counts over one or more recorded runs."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.report = Report()
        self._folder = folder
        self._random = Random(seed)

    def replay(self, log: Log, cuts: int) -> None:
        """Cut the power at so many places of one run; each once at its worst, once at random."""
        oracle = Oracle(log)
        self.report.enqueues += oracle.enqueues
        self.report.ends += oracle.ends
        disk = Disk(log)
        version, worst = -1, Found({}, [], [])
        for position in choose_cuts(log, cuts, self._random):
            disk.advance(position)
            self.report.cuts += 1
            if disk.version != version:  # else it would be the same disk again
                version, worst = disk.version, self._open(log, disk.durable_only())
            oracle.judge(position, worst, self.report)
            image = disk.some_of_the_rest(self._random)
            oracle.judge(position, self._open(log, image), self.report)

    def _open(self, log: Log, image: dict[str, bytes]) -> Found:
        self.report.disks += 1
        finish = self.report.disks % FINISH_EVERY == 0
        self.report.finished += finish
        root = self._folder / "disk"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for name, content in image.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        try:
            return examine(root / log.database, finish=finish)
        except (PenstockError, apsw.Error, UnicodeError) as error:  # damaged text is none
            return Found({}, [f"{type(error).__name__}: {error}"], [])


def examine(path: Path, *, finish: bool) -> Found:
    """Open the real store after the reboot and look at everything."""
    with ExitStack() as stack:
        store = SqliteStore.open(path, boot_clock=AfterReboot(), durability="normal")
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        # The last to close, and it spares the checkpoint: nobody will open this disk again.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        stack.callback(connection.close)
        stack.callback(store.close)
        held = snapshot(connection)
        verdict = connection.execute("pragma integrity_check").fetchall()
        corrupt = [str(row[0]) for row in verdict if row[0] != "ok"]
        broken = store.check().result()
        if finish:
            broken += work_to_the_end(store) + store.check().result()
        return Found(held, corrupt, broken)


def work_to_the_end(store: SqliteStore) -> list[str]:
    """Let a new worker take and end everything that is due, suspects apart; what it could not."""
    worker = WorkerId("after the reboot")
    store.register(WorkerInfo(id=worker, run_id="again", tasks=TASKS), 600).result()
    for quarantine in (False, True, False):
        request = LeaseRequest(
            worker=worker, tasks=TASKS, limit=50, caps=ConfiguredCaps(), quarantine=quarantine
        )
        while jobs := store.lease(request).result().jobs:
            store.ack(worker, [JobEnd(job, JobState.DONE, 1, 2) for job in jobs]).result()
    troubles = []
    if left := store.outlook(worker, "again").result().suspects:
        troubles.append(f"{left} suspects cannot be worked on after the reboot")
    if held := store.stats().result().states[JobState.IN_PROGRESS]:
        troubles.append(f"{held} jobs are still held by workers from before")
    return troubles


class Oracle:
    """Knows what was answered and what was under way at every position of a log."""

    def __init__(self, log: Log) -> None:
        self._states = [log.before, *(step.after for step in log.steps)]
        self._steps = log.steps
        self._marks = [
            (at, event) for at, event in enumerate(log.events) if isinstance(event, Acked | Began)
        ]
        self.enqueues = self.ends = 0
        for before, after in zip(self._states, self._states[1:], strict=False):
            self.enqueues += sum(_is_job(name) and name not in before for name in after)
            self.ends += sum(
                _has_ended(name, after) and not _has_ended(name, before) for name in after
            )

    def judge(self, position: int, found: Found, report: Report) -> None:
        acked, began = 0, 0
        for at, mark in self._marks:
            if at >= position:
                break
            if isinstance(mark, Acked):
                acked = mark.step + 1
            else:
                began = mark.step + 1
        where = f"cut {position} after {acked} steps"
        for trouble in found.corrupt:
            report.corrupt += 1
            report.remember(f"{where}: {trouble}")
        for trouble in found.broken:
            report.broken += 1
            report.remember(f"{where}: {trouble}")
        if not found.corrupt:
            self._compare(where, acked, began, found.held, report)

    def _compare(self, where: str, acked: int, began: int, held: Snapshot, report: Report) -> None:
        old = self._states[acked]
        new = self._states[began]
        if held in (old, new):
            return
        under_way = began > acked
        whole = not under_way or self._steps[acked].whole
        torn = True
        for name in old.keys() | new.keys() | held.keys():
            value = held.get(name)
            if value in (old.get(name), new.get(name)):
                continue
            torn = False
            if _is_job(name) and value is None:
                report.lost_enqueues += 1
            elif _has_ended(name, old) and not _has_ended(name, held):
                report.lost_ends += 1
            else:
                report.other += 1
            report.remember(f"{where}: {name} is {value}, was {old.get(name)}")
        if torn and whole:  # every single thing is old or new, but not all of one transaction
            report.other += 1
            report.remember(f"{where}: a half of {self._steps[acked].what!r} is there")


def _is_job(name: str) -> bool:
    return name.startswith("job ")


def _has_ended(name: str, states: Snapshot) -> bool:
    row_state = states[name][0] if name in states else None
    return _is_job(name) and isinstance(row_state, int) and row_state >= FIRST_END


def choose_cuts(log: Log, count: int, random: Random) -> list[int]:
    """Where names, sizes and the database change first, then around syncs, then anywhere."""
    rare: set[int] = set()
    syncs: set[int] = set()
    databases = {
        event.file
        for event in log.events
        if isinstance(event, Create) and event.path.startswith(log.database) and event.file
        if not event.path.endswith(("-wal", "-journal", "-turn"))
    }
    for at, event in enumerate(log.events):
        if isinstance(event, Create | Delete | Rename | SyncFolder | Truncate):
            rare |= {at, at + 1}
        elif isinstance(event, Sync):
            (rare if event.file in databases else syncs).update((at, at + 1))
    syncs -= rare
    chosen: set[int] = set()
    for places, share in ((rare, 0.5), (syncs, 0.85)):
        room = round(count * share) - len(chosen)
        chosen.update(random.sample(sorted(places), min(room, len(places))))
    everywhere = [at for at in range(len(log.events) + 1) if at not in chosen]
    cuts = [*chosen, *random.sample(everywhere, min(count - len(chosen), len(everywhere)))]
    while len(cuts) < count:  # a short run is cut more than once at a place, each time otherwise
        cuts.append(random.randrange(len(log.events) + 1))
    return sorted(cuts)
