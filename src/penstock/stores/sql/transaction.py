# SPDX-License-Identifier: Apache-2.0
"""One write transaction, and what it has to write before the commit.

Merged consequences: which lanes have to look for their head again, by how much the counters moved.
They are written once, before the commit, whatever the number of operations in the transaction.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from penstock.clock import BootTime
from penstock.errors import InternalError
from penstock.model.job import JobKind, JobState, LeasedJob, WorkerId
from penstock.model.journal import CallKey
from penstock.model.lease import CommitLevel, StageManifest
from penstock.model.schedule import FAILED_TICKS_KEPT
from penstock.model.spending import Account
from penstock.stores.call_rules import Sums
from penstock.stores.sql.statements import Row, Statements, as_json

Tally = tuple[int, int, int, int, int | None, int | None]
#: [job, ticks, missed, failed, last_tick_at, last_due_at]


@dataclass(slots=True)
class UnitTallies:
    """Owns what is to be written of units at the end of a transaction, all of it together.

    Nobody reads any of it inside a transaction.
    """

    tallies: dict[int, Tally] = field(default_factory=dict)
    grown: set[int] = field(default_factory=set)  # jobs, some of which may be units
    cursors: dict[str, str] = field(default_factory=dict)  # the last word counts

    def ticked(self, job_id: int, missed: int, ended_at: int, due_at: int) -> None:
        """An occurrence succeeded."""
        _, ticks, before, failed, _, _ = self.tallies.get(job_id, (job_id, 0, 0, 0, None, None))
        self.tallies[job_id] = (job_id, ticks + 1, before + missed, failed, ended_at, due_at)

    def failed(self, job_id: int) -> None:
        """A try failed."""
        _, ticks, missed, failed, *last = self.tallies.get(job_id, (job_id, 0, 0, 0, None, None))
        self.tallies[job_id] = (job_id, ticks, missed, failed + 1, last[0], last[1])
        self.grown.add(job_id)

    def copy(self) -> UnitTallies:
        tallies, grown, cursors = dict(self.tallies), set(self.grown), dict(self.cursors)
        return UnitTallies(tallies, grown, cursors)


Place = tuple[str, int]  # plan and level


@dataclass(slots=True)
class SliceTallies:
    """Owns what is to be written of slices at the end of a transaction, all of it together.

    The commit number is the last thing that a transaction takes, so nobody waits for it for long.
    """

    may_write: dict[Place, bool] = field(default_factory=dict)  # as far as was asked
    committed: set[Place] = field(default_factory=set)
    numbers: int = 0  # how many commits there are in this transaction
    rows: dict[Row, Row] = field(default_factory=dict)
    levels: list[tuple[str, int, int]] = field(default_factory=list)  # with their number

    def staged(self, app: int, job_id: int, effects: Sequence[StageManifest]) -> None:
        """One job of an app leaves these; all that are visible at once have one number."""
        number: int | None = None
        for one in effects:
            visible = one.commit or (one.plan_id, one.level) in self.committed
            if visible and number is None:
                self.numbers += 1
                number = self.numbers
            dataset = scoped(app, one.dataset)
            slice_ = (dataset, one.at)
            place = slice_ if visible else (*slice_, one.plan_id, one.level)
            self.rows[place] = (
                dataset,
                one.at,
                one.version,
                one.basis,
                number if visible else None,
                one.plan_id,
                one.level,
                job_id,
                one.document,
            )

    def commits(self, level: CommitLevel) -> None:
        """A level becomes visible, if it is not."""
        place = (level.plan_id, level.level)
        if place not in self.committed:
            self.committed.add(place)
            self.numbers += 1
            self.levels.append((*place, self.numbers))

    def statements(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        """What writes it; numbers are counted back from the last one that is taken."""
        if self.numbers:
            yield "take_numbers", (self.numbers,)
        if self.rows:
            rows = as_json([(*row[:4], self._back(row[4]), *row[5:]) for row in self.rows.values()])
            yield "drop_replaced", (rows,)
            yield "insert_slices", (rows,)
        if self.levels:
            levels = [(plan_id, level, self._back(n)) for plan_id, level, n in self.levels]
            yield "insert_commits", (as_json(levels),)

    def _back(self, number: int | None) -> int | None:
        return None if number is None else number - self.numbers

    def copy(self) -> SliceTallies:
        return SliceTallies(
            dict(self.may_write),
            set(self.committed),
            self.numbers,
            dict(self.rows),
            list(self.levels),
        )


LaneSpec = tuple[str, str, tuple[str, ...], JobKind]  # task, group, limit keys, kind

UNOWNED = 1  # the first app; it has no name where nobody has taken over what was there before apps


def scoped(app: int, name: str) -> str:
    """How the cursor or dataset of an app is known in a store.

    The first app's have the name that they had, so that nothing need be written anew for it.
    """
    return name if app == UNOWNED else f"@{app}/{name}"


def unscoped(name: str) -> tuple[int, str]:
    """The app that such a name belongs to, and what the app calls it."""
    if not name.startswith("@"):
        return UNOWNED, name
    app, _, own = name[1:].partition("/")
    return int(app), own


class PayloadsTooLarge(Exception):
    """The jobs that were asked for do not fit into one answer."""


class Transaction(Statements):
    """Owns the merged consequences of one transaction. Belongs to the writer's thread."""

    def __init__(self, now: int, boot: BootTime) -> None:
        self.now = now
        self.boot = boot
        self.app = UNOWNED  # whose operation runs; all of a transaction are of one store handle
        self.made_work = False  # somebody may have something to lease now
        self.passed: list[str] = []  # failpoints to pass once this is durable
        self._touched: set[int] = set()
        self._moves: dict[tuple[int, JobState], int] = {}
        self._arrivals: dict[tuple[str, str, int, JobState], int] = {}
        self._run_moves: dict[tuple[str, JobState], int] = {}
        self._alive: dict[WorkerId, tuple[int, str] | None] = {}
        self._sums: Sums | None = None  # of calls that cost money
        self.units = UnitTallies()
        self.slices = SliceTallies()

    @abstractmethod
    def run(self, query: str, *parameters: object) -> int:
        """Execute a named statement; how many rows it changed."""

    def lane_ids(self, specs: Mapping[str, LaneSpec]) -> dict[str, int]:
        """The lanes that a batch needs, by what they are known by; made if need be."""
        wanted = as_json([(text, s[0], s[1], as_json(s[2]), s[3]) for text, s in specs.items()])
        found = self.array("lane_ids", wanted)
        if len(found) < len(specs):
            self.run("ensure_lanes", wanted, self.app)
            found = self.array("lane_ids", wanted)
        return dict(found)

    @abstractmethod
    def insert_jobs(self, rows: Sequence[Row]) -> dict[str, int]:
        """Insert what is new of these; key → id of what was.

        A row: [key, lane, partition, priority, payload, row_state, due_at, plan_id, level].
        """

    @abstractmethod
    def find_jobs(self, keys: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Key → id and row state of jobs of our app; none of them ends before we do."""

    def differing_jobs(self, rows: Sequence[Row]) -> list[Row]:
        """Of these known jobs, those kept with another text: [place, its task, its payload].

        A row: [key, task, payload].
        """
        return self.array("differing_jobs", as_json(rows), self.app)

    @abstractmethod
    def take_jobs(self, lane_ids: Sequence[int], most: int, no: int) -> list[LeasedJob]:
        """The first jobs of each of these lanes, as their worker will hold them."""

    def merge_lanes(self, lane_ids: Sequence[int], most: int) -> list[int]:
        """The lanes of the first jobs of these, one for each job, in the order of the jobs."""
        return self.array("merge_lanes", as_json(lane_ids), most)

    @abstractmethod
    def mark_leased(self, jobs: Sequence[LeasedJob], no: int) -> None:
        """The worker holds what was taken."""

    def rename_accounts(self, old: str, new: str) -> None:
        """Count what an app has spent under its new name."""
        self.run("rename_accounts", old, new)
        self.run("forget_accounts", old)

    @abstractmethod
    def take_suspects(self, job_ids: Sequence[int], no: int) -> list[LeasedJob]:
        """Lease suspects, by id; without those for which somebody was faster."""

    @abstractmethod
    def park_lanes(self, rows: Sequence[tuple[int, str, int]]) -> None:
        """Lanes wait for a key: [lane, key, number]."""

    @abstractmethod
    def end_jobs(self, rows: Sequence[Row], no: int) -> set[int]:
        """End leases of a worker under their tokens, with their history; which were ended.

        None at all may be ended where some are not its own: then they are ended one by one.
        """

    @abstractmethod
    def end_job(self, row: Row, no: int) -> bool:
        """The same for one job."""

    @abstractmethod
    def _look_for_heads(self, lane_ids: Sequence[int]) -> None:
        """Jobs of these lanes became ready: leasing must find them."""

    @property
    def sums(self) -> Sums:
        """What calls that cost money add to accounts; most transactions have none."""
        if self._sums is None:
            self._sums = Sums()
        return self._sums

    def find_calls(self, keys: Sequence[CallKey]) -> list[Row]:
        """Calls by key, as they are until the commit; the columns of the statement."""
        return self.array("find_calls", as_json(keys))

    def add_calls(self, rows: Sequence[Row]) -> None:
        """Write down calls that nobody has begun before."""
        self.run("add_calls", as_json(rows))

    def change_calls(self, rows: Sequence[Row], answers: Sequence[Row] = ()) -> None:
        """What became of calls, and the answers that they are ended by.

        [call, state, ended_at, 2 × reserved, 2 × used, bought, reused, estimated];
        [call, status, headers, body, micros, tokens, input, output].
        """
        for answer in answers:
            self.run("keep_answer", *answer)
        self.run("change_calls", as_json(rows))

    def find_units(self, keys: Sequence[str]) -> list[Row]:
        """Jobs of our app by key, as they are until the commit; the columns of the statement."""
        return self.array("find_units", as_json(keys), self.app)

    def replan_jobs(self, rows: Sequence[Row]) -> None:
        """Units that do not run are planned otherwise: [job, lane, partition, payload]."""
        self.run("replan_jobs", as_json(rows))

    def start_units(self, rows: Sequence[Row]) -> None:
        """Units that do not run start afresh: [job, row_state, due_at, available_at]."""
        self.run("start_units", as_json(rows), self.now)

    def lay_aside(self, job_ids: Sequence[int], kept: Sequence[LeasedJob]) -> None:
        """Units that were leased just now wait; `kept`: what else was."""
        self.run("lay_aside", as_json(job_ids), self.now)

    @staticmethod
    def lane_text(spec: LaneSpec, app: int) -> str:
        """What a lane is known by: all but its kind, which follows from its task, and its app."""
        return as_json(spec[:3] if app == UNOWNED else (*spec[:3], app))

    def note_purged(self, rows: str) -> None:
        """Remember the highest of these ids, so that it is not given again."""
        self.run("note_purged", rows)

    def raise_tokens(self, floor: int) -> None:
        """Let the next lease of each job have a token above this one."""
        self.run("raise_tokens", floor)

    # Where one writes at a time there is nothing to do for the following.

    def one_at_a_time(self) -> None:
        """What follows walks over rows of others: nobody else does so until the commit."""
        return

    def is_my_turn(self) -> bool:
        """Whether this transaction may do such a walk without waiting."""
        return True

    def hold(self, query: str, *parameters: object) -> None:
        """Keep others from changing rows that were found by this query until the commit."""
        return

    def count_alone(self, keys: Sequence[str]) -> frozenset[str]:
        """Count holders of these keys alone until the commit; keys of which that cannot be had."""
        return frozenset()

    def forget_alone(self, job_ids: Set[int]) -> Set[int]:
        """Ended jobs that may be deleted: those to which no dependant was added meanwhile."""
        return job_ids

    def locks_alone(self) -> None:
        """Let nobody else take or give back locks of datasets until the commit."""
        return

    def change_caps_alone(self) -> None:
        """Let nobody count holders until the commit: caps are about to change."""
        return

    def foresee_intents(
        self, keys: Sequence[CallKey], jobs: str, accounts: Sequence[Account]
    ) -> None:
        """Intents are about to be judged by these."""
        return

    def spend_alone(self, accounts: Sequence[Account]) -> None:
        """Let nobody else reserve anything of these accounts until the commit."""
        return

    def call_ended(self, key: CallKey) -> None:
        """A call was ended by this transaction, whose time it has."""
        return

    def had_their_turn(self, lane_ids: Sequence[int]) -> None:
        """These lanes of a group with more were visited: others come next."""
        return

    def next_parking(self) -> int:
        """A number that grows with every parking: lanes wake in the order they were parked."""
        number = 1 + int(self.first("read_meta", "parkings") or 0)
        self.run("write_meta", "parkings", str(number))
        return number

    def ran_short(self, lane_ids: Sequence[int]) -> bool:
        """These lanes had fewer ready jobs than were asked for; True if some are empty now."""
        return False

    def is_ready(self, tasks: str, *, gave: bool) -> bool:
        """Whether a job of these tasks may be ready; `gave`: no lane that gave some was parked."""
        return bool(self.value("is_ready", tasks, self.app))

    def free_keys(self, refs: Sequence[tuple[int, int]]) -> None:
        """Leases of limited jobs are over: their keys have room, and parked lanes may try again."""
        wanted = as_json(refs)
        if self.run("open_freed_keys", wanted):
            self.made_work = True
        self.run("free_keys", wanted)

    def close_edges(self, edges: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Edges are satisfied, [parent, child]; those that nobody else has closed meanwhile."""
        self.run("close_edges", as_json(edges))
        return edges

    def touch(self, lane_id: int) -> None:
        """A job of this lane became ready."""
        self._touched.add(lane_id)

    def leave(self, lane_id: int) -> None:
        """A job of this lane is ready no more, and was not leased."""
        self._touched.add(lane_id)

    def touch_all(self, lane_ids: Iterable[int]) -> None:
        self._touched.update(lane_ids)

    def move(
        self, lane_id: int, source: JobState | None, target: JobState | None, count: int = 1
    ) -> None:
        """Jobs of this lane went from one state to another; None is outside the store."""
        moves = self._moves
        if source is not None:
            moves[lane_id, source] = moves.get((lane_id, source), 0) - count
        if target is not None:
            moves[lane_id, target] = moves.get((lane_id, target), 0) + count

    def arrive(self, task: str, group: str, state: JobState, count: int = 1) -> None:
        """New jobs of our app, of a known task and group, are in this state."""
        key = (task, group, self.app, state)
        self._arrivals[key] = self._arrivals.get(key, 0) + count

    def ended_in_run(self, run_id: str, state: JobState) -> None:
        self._run_moves[run_id, state] = self._run_moves.get((run_id, state), 0) + 1

    def flush_heads(self) -> None:
        """Make touched lanes known to leasing, which needs this before it looks."""
        if self._touched:
            touched = sorted(self._touched)
            self._touched.clear()
            self._look_for_heads(touched)

    def flush_counts(self) -> None:
        """Write the merged counters."""
        counts = self._merged_counts()
        if counts:
            self.run("add_counts", counts)

    def _merged_counts(self) -> str | None:
        """The change of the counters since the last time, as a batch; None without one."""
        counts: dict[tuple[str, str, str], int] = {}
        for (task, group, app, state), n in (*self._arrivals.items(), *self._named_moves()):
            scope = "task" if app == UNOWNED else f"task:{app}"
            counts[scope, state, task] = counts.get((scope, state, task), 0) + n
            counts["group", state, group] = counts.get(("group", state, group), 0) + n
        for (run_id, state), n in self._run_moves.items():
            counts["run", state, run_id] = n
        if self._sums is not None:
            for figure, n in self._sums.figures.items():
                counts["calls", figure, ""] = n
            self._sums.figures.clear()
        self._arrivals.clear()
        self._moves.clear()
        self._run_moves.clear()
        changed = [(*key, n) for key, n in counts.items() if n]
        return as_json(changed) if changed else None

    def flush_accounts(self) -> None:
        """Write what was spent and reserved."""
        accounts = self._merged_accounts()
        if accounts:
            self.run("add_to_accounts", accounts)

    def add_up_accounts(self) -> None:
        """The same, and bring the accounts of everybody up to date."""
        self.flush_accounts()

    def _merged_accounts(self) -> str | None:
        """The change of the accounts since the last time, as a batch; None without one."""
        changed = None if self._sums is None else self._sums.take_accounts()
        return as_json(changed) if changed else None

    def add_up_counts(self) -> None:
        """The same, and bring the counters of everybody up to date."""
        self.flush_counts()

    def _named_moves(self) -> list[tuple[tuple[str, str, int, JobState], int]]:
        moves = {key: n for key, n in self._moves.items() if n}
        if not moves:
            return []
        lanes = {lane_id for lane_id, _ in moves}
        names = self.lane_names(lanes)
        if len(names) != len(lanes):
            raise InternalError(f"Jobs moved in lanes that do not exist: {lanes - set(names)}.")
        return [((*names[lane_id], state), n) for (lane_id, state), n in moves.items()]

    def lane_names(self, lanes: Iterable[int]) -> dict[int, tuple[str, str, int]]:
        """Task, group and app of lanes."""
        return {
            lane: (task, group, app)
            for lane, task, group, app in self.array("lane_names", as_json(sorted(lanes)))
        }

    def finish(self) -> None:
        """Write all merged consequences; the commit follows."""
        self.flush_heads()
        self.flush_counts()
        self.flush_accounts()
        self.flush_units()
        self.flush_slices()

    def flush_slices(self) -> None:
        """Write slices and commits, with the numbers that they get."""
        for query, parameters in self._merged_slices():
            self.run(query, *parameters)

    def _merged_slices(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        slices, self.slices = self.slices, SliceTallies()
        return slices.statements()

    def plans_change(self) -> None:
        """Plans are about to change: what was noted under them is written first."""
        self.flush_slices()

    def flush_units(self) -> None:
        """Write how the ticks of units went, and their cursors, and bound their history."""
        for query, parameters in self._merged_units():
            self.run(query, *parameters)

    def _merged_units(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        """The statements that do so."""
        units, self.units = self.units, UnitTallies()
        if units.cursors:
            yield "set_cursors", (as_json(sorted(units.cursors.items())),)
        if units.tallies:
            rows = [units.tallies[job_id] for job_id in sorted(units.tallies)]
            yield "count_ticks", (as_json(rows),)
        if units.grown:
            yield "bound_history", (as_json(sorted(units.grown)), FAILED_TICKS_KEPT)

    def mark(self) -> tuple[Any, ...]:
        """A copy of the consequences so far, for an operation that may be refused."""
        return (
            set(self._touched),
            dict(self._moves),
            dict(self._arrivals),
            dict(self._run_moves),
            self.made_work,
            list(self.passed),
            None if self._sums is None else self._sums.copy(),
            self.units.copy(),
            self.slices.copy(),
        )

    def reset(self, mark: tuple[Any, ...]) -> None:
        self._touched, self._moves, self._arrivals, self._run_moves, *others = mark
        self.made_work, self.passed, self._sums, self.units, self.slices = others
        self._alive.clear()

    def alive(self, worker: WorkerId) -> tuple[int, str] | None:
        """Number and run of a worker whose lease has not expired; None otherwise."""
        if worker not in self._alive:
            row = self.row("worker_row", worker, self.boot.boot_id, self.boot.at)
            self._alive[worker] = None if row is None else (row[0], row[1])
        return self._alive[worker]

    def forget_alive(self) -> None:
        self._alive.clear()
