# SPDX-License-Identifier: Apache-2.0
"""A write transaction on the server, side by side with others.

Locks are taken in one order: the worker's row, jobs, edges, limit keys, ready lanes; budgets before
limit keys. Limit keys are waited for once in a transaction, in their order, and only tried
afterwards, or when lanes are held. What still ends in a ring is found by the server, and the whole
transaction runs again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from hashlib import blake2b
from operator import itemgetter
from typing import Any

import psycopg

from penstock.clock import BootTime
from penstock.errors import InternalError
from penstock.model.job import JobKind, LeasedJob
from penstock.model.journal import CallKey
from penstock.model.spending import Account
from penstock.stores.group_commit import Contended
from penstock.stores.postgres import bulk_insert
from penstock.stores.postgres.bulk_insert import binaries, numbers, texts
from penstock.stores.postgres.lane_cache import LaneCache, LaneFacts
from penstock.stores.postgres.pipeline import Question, RoundTrip
from penstock.stores.sql.row_state import RowState
from penstock.stores.sql.statements import Row, as_json
from penstock.stores.sql.transaction import LaneSpec, Transaction

LOOKS_MAX = 100  # for units that are leased, acknowledged or ended meanwhile
ANSWER_BYTES = 8 * 1024 * 1024  # of bodies in one statement, unless a single one is larger
MERGED_AT_ONCE = 10_000  # changes of accounts

_BODY = 3  # the column of it

KEY_LOCKS_MAX = 256  # of a transaction; the server has room for some thousands in all
SPEC_BYTES = 2_500  # of a lane's name in its index
MERGE_CHANGES = 2_000  # changes of counters that are left before somebody merges them

_CHANGES = re.compile(r"(?<!for )\b(insert|update|delete)\b")


def changing(queries: dict[str, str]) -> frozenset[str]:
    """The names of statements that change something; others may lock."""
    return frozenset(name for name, text in queries.items() if _CHANGES.search(text))


Cursor = psycopg.RawCursor[Row]


class PostgresTransaction(Transaction):
    """Owns the locks it has asked for, and what is still to be done about new jobs.

    The connection is the session's. Rows of calls, and units that do not run, are held from when
    they are found until the commit.
    """

    def __init__(
        self,
        cursor: Cursor,
        round_trip: RoundTrip,
        queries: dict[str, str],
        changing: frozenset[str],
        now: int,
        boot: BootTime,
        lanes: LaneCache,
        still_time: Callable[[], None],
    ) -> None:
        super().__init__(now, boot)
        self._cursor = cursor
        self._round_trip = round_trip
        self._queries = queries
        self._changing = changing
        self._lanes = lanes  # kept by the session
        self._places = lanes.places
        self._still_time = still_time
        self._copies = lanes.keys_are_new  # all batches or none: what runs again must end
        self._keys_were_new: bool | None = None  # of all batches; None without any
        self.copied = 0  # jobs; the next transaction will be like this one
        self._unheld: set[int] = set()  # lanes of new jobs that a purge may still take away
        self._behind: set[int] = set()  # lanes whose new jobs are behind where a lease begins
        self.witness: Question | None = None  # what only our commit can have made true
        self.writes = 0  # statements that may have changed something
        self._asked: dict[tuple[str, tuple[object, ...]], tuple[int, list[Row]]] = {}
        self._freed: set[str] = set()
        self._counted: set[str] = set()  # limit keys that we hold
        self._counts_all = False
        self._left: set[int] = set()  # lanes that may have become empty
        self._holds_lanes = False  # so we do not wait for limit keys any more
        self._walks: bool | None = None

    def run(self, query: str, *parameters: object) -> int:
        self.writes += 1
        self._still_time()
        self._cursor.execute(self._queries[query], parameters)
        if query == "write_attempt":
            self.witness = "was_tried", parameters[:3]
        return self._cursor.rowcount

    def rows(self, query: str, *parameters: object) -> list[Row]:
        asked = self._asked.pop((query, parameters), None)
        is_known = asked is not None and asked[0] == self.writes
        self.writes += query in self._changing
        if asked is not None and is_known:
            return asked[1]
        self._still_time()
        return self._round_trip.ask(((query, parameters),))[0]

    def ask_ahead(self, *questions: Question) -> None:
        """Ask several questions in one round trip; their answers are used if nothing is changed."""
        if all(self._asked.get(question, (-1,))[0] == self.writes for question in questions):
            return
        self._still_time()
        self.learn(questions, self._round_trip.ask(questions))

    def learn(self, questions: Sequence[Question], answers: Sequence[list[Row]]) -> None:
        """What would be answered now, as long as nothing is changed."""
        for question, rows in zip(questions, answers, strict=True):
            self._asked[question] = (self.writes, rows)

    def flush_early(self) -> None:
        """Do before the commit what can not go with it.

        Nobody need be asked which lanes were unknown, if others are told of work anyway.
        """
        if any(query in self._changing for query, _ in self._asked):
            raise InternalError("The answer to a statement that was run ahead was never read.")
        self._open_freed()
        if not self.made_work or self._left or self._unheld:
            self.flush_heads()

    def commit(self, then: Sequence[Question]) -> list[list[Row]] | None:
        """Write all merged consequences, commit, and ask what follows, in one round trip.

        Answers what was asked after the commit; None if that went wrong, and only that.
        """
        touched = sorted(self._touched)
        last = [*self._consequences(touched), ("commit", ())]
        self._still_time()
        answers: list[list[Row]] = []
        is_whole = True
        try:
            self._round_trip.ask((*last, *then), answers)
        except psycopg.errors.DivisionByZero as error:
            self._lanes.forget(touched)  # in case that one was purged
            raise Contended("Another process was adding the same lane.") from error
        except psycopg.Error:
            if len(answers) < len(last):
                raise
            is_whole = False
        self.accepted()
        return answers[len(last) :] if is_whole else None

    def hand_over(self) -> None:
        """Write all merged consequences; somebody else commits."""
        self.flush_early()
        self._round_trip.ask(self._consequences(sorted(self._touched)))

    def _consequences(self, touched: Sequence[int]) -> list[Question]:
        """What is to be written last; these lanes were touched."""
        counts = self._merged_counts()
        last: list[Question] = []
        if touched:
            self._touched.clear()
            self._begin_behind(touched)
            last.append(("keep_heads", (numbers(touched),)))
        if counts:
            last.append(("add_counts", (counts,)))
        accounts = self._merged_accounts()
        if accounts:
            last.append(("add_to_accounts", (accounts,)))
        last += self._merged_units()
        last += self._merged_slices()
        if self.made_work:
            last.append(("tell", ()))
        return last

    def flush_heads(self) -> None:
        self._open_freed()
        super().flush_heads()
        if self._left:
            left, self._left = sorted(self._left), set()
            self.ran_short(left)
        if self._unheld:
            self._with_lanes("ping")

    def add_up_counts(self) -> None:
        self.flush_counts()
        while self.run("merge_changes", MERGE_CHANGES):
            continue

    def row(self, query: str, *parameters: object) -> Row | None:
        found = super().row(query, *parameters)
        if query == "insert_job" and found is not None:
            self.witness = "was_created", (parameters[0], self.now, self.app)
            self._arrived(found[0], int(str(parameters[3])), int(str(parameters[6])))
        return found

    def find_jobs(self, keys: Sequence[str]) -> dict[str, tuple[int, int]]:
        held = self.rows("hold_jobs", texts(keys), self.app)
        found = {key: (id_, state) for key, id_, state in held}
        missing = [key for key in keys if key not in found]
        if missing:
            ended = self.rows("jobs_by_key", texts(missing), self.app)
            found |= {key: (id_, state) for key, id_, state in ended}
        missing = [key for key in missing if key not in found]
        if missing and self.rows("known_keys", texts(missing), self.app):
            raise Contended("A job was retried while another was being made to wait for it.")
        return found

    def differing_jobs(self, rows: Sequence[Row]) -> list[Row]:
        return self.rows("differing_jobs", *map(texts, zip(*rows, strict=True)), self.app)

    def take_jobs(self, lane_ids: Sequence[int], most: int, no: int) -> list[LeasedJob]:
        begun = self._places.now()
        marks = self._places.of(lane_ids)
        found = self.rows("take_jobs", numbers(lane_ids), most, no, self.now, *map(numbers, marks))
        if found:
            self.witness = "was_leased", (found[0][0], found[0][1], no)
        if len(found) < most * len(lane_ids) and self._places.forget(lane_ids):
            return self.take_jobs(lane_ids, most, no) if not found else self._leased(found)
        if self._places.matter(begun):
            self._places.note([(row[3], row[-2], row[-1], row[0]) for row in found])
        return self._leased(found)

    def _leased(self, rows: Sequence[Row]) -> list[LeasedJob]:
        facts = self._lane_facts({row[3] for row in rows})
        jobs = []
        for row in rows:
            lane_id = row[3]
            task, group, limited, kind, _ = facts[lane_id]
            job = LeasedJob(row[0], row[1], row[2], task, group, lane_id, *row[4:13])
            job.limited, job.kind = limited, kind
            jobs.append(job)
        return jobs

    def merge_lanes(self, lane_ids: Sequence[int], most: int) -> list[int]:
        marks = self._places.of(lane_ids)
        return self.array("merge_lanes", numbers(lane_ids), most, *map(numbers, marks))

    def mark_leased(self, jobs: Sequence[LeasedJob], no: int) -> None:
        return  # they are

    def rename_accounts(self, old: str, new: str) -> None:
        self.run("rename_account_changes", old, new)
        super().rename_accounts(old, new)

    def take_suspects(self, job_ids: Sequence[int], no: int) -> list[LeasedJob]:
        jobs = [
            LeasedJob(*row) for row in self.rows("take_suspects", numbers(job_ids), no, self.now)
        ]
        for job in jobs:
            job.kind = JobKind(job.kind)
            self.witness = "was_leased", (job.id, job.token, no)
        return jobs

    def lay_aside(self, job_ids: Sequence[int], kept: Sequence[LeasedJob]) -> None:
        self.run("lay_aside", numbers(job_ids), self.now)
        self.witness = None  # it may be one of these

    def park_lanes(self, rows: Sequence[tuple[int, str, int]]) -> None:
        self.ran_short([lane_id for lane_id, _, _ in rows])
        self.run("park_lanes", as_json(rows))

    def next_parking(self) -> int:
        return int(self.value("next_turn"))

    def had_their_turn(self, lane_ids: Sequence[int]) -> None:
        self.run("rotate_lanes", numbers(lane_ids))

    def ran_short(self, lane_ids: Sequence[int]) -> bool:
        """Forget lanes without ready jobs; not those into which somebody puts one just now."""
        if not lane_ids:
            return False
        self._places.forget(lane_ids)
        empty = self.array("hold_empty_lanes", numbers(lane_ids))
        self._holds_lanes = self._holds_lanes or bool(empty)
        return bool(empty) and self.run("drop_empty_lanes", numbers(empty)) > 0

    def leave(self, lane_id: int) -> None:
        self._left.add(lane_id)

    def end_jobs(self, rows: Sequence[Row], no: int) -> set[int]:
        if not rows or len({row[0] for row in rows}) < len(rows):
            return set()  # one job twice: the second end is judged after the first
        ids, tokens, states, results, errors, started, ended, _ = zip(
            *sorted(rows, key=itemgetter(0)),
            strict=True,  # locked by id
        )
        found = self.rows(
            "end_jobs",
            numbers(ids),
            numbers(tokens),
            numbers(states),
            texts(results),
            texts(errors),
            numbers(started),
            numbers(ended),
            no,
        )
        if found:
            (job_id,) = found[0]
            self.witness = "was_ended", (job_id, tokens[ids.index(job_id)], no)
        return {job_id for (job_id,) in found}

    def end_job(self, row: Row, no: int) -> bool:
        return bool(self.end_jobs([row], no))

    def close_edges(self, edges: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        return [(parent, child) for parent, child in self.rows("close_edges", as_json(edges))]

    @staticmethod
    def lane_text(spec: LaneSpec, app: int) -> str:
        """Its digest where it is long: an index holds no more than 2,704 bytes."""
        text = Transaction.lane_text(spec, app)
        data = text.encode()
        return text if len(data) <= SPEC_BYTES else f"#{blake2b(data, digest_size=32).hexdigest()}"

    def lane_names(self, lanes: Iterable[int]) -> dict[int, tuple[str, str, int]]:
        return {
            lane: (task, group, app)
            for lane, (task, group, _, _, app) in self._lane_facts(lanes).items()
        }

    def _lane_facts(self, lanes: Iterable[int]) -> dict[int, LaneFacts]:
        wanted = set(lanes)
        known = self._lanes.facts
        missing = wanted - known.keys()
        if missing:
            for lane, *facts in self.rows("lane_facts", numbers(missing)):
                known[lane] = (facts[0], facts[1], facts[2], JobKind(facts[3]), facts[4])
        return {lane: known[lane] for lane in wanted if lane in known}

    def _look_for_heads(self, lane_ids: Sequence[int]) -> None:
        """Make lanes known to have ready jobs, and keep them known until the commit.

        A lease that finds a lane empty forgets it; it must not do so between our look and commit.
        """
        missing = list(lane_ids)
        self._holds_lanes = True
        self._begin_behind(missing)
        for _ in range(LOOKS_MAX):
            known = {
                lane_id for (lane_id,) in self._with_lanes("hold_ready_lanes", numbers(missing))
            }
            missing = [lane_id for lane_id in missing if lane_id not in known]
            if missing:
                made = set(self.array("refresh_heads", numbers(missing)))
                if made:
                    self.made_work = True
                missing = [lane_id for lane_id in missing if lane_id not in made]
            if not missing:
                return
        self._lanes.forget(missing)
        raise Contended(
            "Lanes were removed each time that they were refreshed, or no longer exist."
        )

    def _begin_behind(self, lane_ids: Sequence[int]) -> None:
        """Jobs became ready: a lease begins at the front of the lane, unless all are behind."""
        self._places.forget([lane_id for lane_id in lane_ids if lane_id not in self._behind])

    def is_ready(self, tasks: str, *, gave: bool) -> bool:
        return gave or super().is_ready(tasks, gave=gave)  # lanes stay known until found empty

    def one_at_a_time(self) -> None:
        if not self._walks:
            self.rows("lock_walk")
            self._walks = True

    def is_my_turn(self) -> bool:
        if self._walks is None:
            self._walks = bool(self.value("try_walk"))
        return self._walks

    def hold(self, query: str, *parameters: object) -> None:
        self.rows(query, *parameters)

    def free_keys(self, refs: Sequence[tuple[int, int]]) -> None:
        self._freed.update(self.array("free_keys", as_json(refs)))

    def _open_freed(self) -> None:
        """Tell lanes that wait for keys which were given back; who parks one now is waited for."""
        if not self._freed:
            return
        freed, self._freed = sorted(self._freed), set()
        missing = self.count_alone(freed)
        if missing:
            raise Contended(f"Another process was counting the holders of {min(missing)!r}.")
        if self.run("open_freed_keys", texts(freed)):
            self.made_work = True

    def foresee_intents(
        self, keys: Sequence[CallKey], jobs: str, accounts: Sequence[Account]
    ) -> None:
        """In one round trip; all is read when the accounts are locked, so by later statements."""
        questions = [self._finding(keys), ("job_tokens", (jobs,))]
        if accounts:
            if not self._may_wait():
                return
            questions.insert(0, ("lock_accounts", (_names(accounts),)))
            questions.append(("read_accounts", (as_json(accounts),)))
        self.ask_ahead(*questions)

    def _may_wait(self) -> bool:
        """Whether waiting for a lock cannot deadlock: we hold no lock that others wait for."""
        return not (self._counted or self._counts_all or self._holds_lanes or self._walks)

    def spend_alone(self, accounts: Sequence[Account]) -> None:
        """Lock accounts; without waiting if we hold limit keys or lanes.

        Advisory locks, not row locks: adding to an account without a budget never waits.
        """
        names = _names(accounts)
        if self._may_wait():
            self.rows("lock_accounts", names)
        elif not self.value("try_lock_accounts", names):
            raise Contended("Another process was reserving from the same budget.")

    def count_alone(self, keys: Sequence[str]) -> frozenset[str]:
        self._open_freed()
        wanted = [key for key in keys if key not in self._counted]
        if not wanted or self._counts_all:
            return frozenset()
        if not self._counted and len(wanted) > KEY_LOCKS_MAX:
            self.rows("lock_caps")  # whoever counts shares it
            self._counts_all = True
            return frozenset()
        if not self._counted:
            self.rows("share_caps")
        if not self._counted and not self._holds_lanes:
            self.rows("lock_keys", texts(wanted))
            self._counted.update(wanted)
            return frozenset()
        had = {key for key, is_mine in self.rows("try_lock_keys", texts(wanted)) if is_mine}
        self._counted |= had
        return frozenset(wanted) - had

    def forget_alone(self, job_ids: Set[int]) -> Set[int]:
        held = self.array("hold_ended", numbers(sorted(job_ids)))
        return set(self.array("without_unfinished", numbers(held)))

    def note_purged(self, rows: str) -> None:
        return  # a sequence gives no id twice

    def raise_tokens(self, floor: int) -> None:
        return  # a lease looks at the floor itself

    def change_caps_alone(self) -> None:
        self.rows("lock_caps")

    def locks_alone(self) -> None:
        self.rows("lock_datasets")

    def mark(self) -> tuple[Any, ...]:
        return (*super().mark(), self.writes)

    def is_untouched_since(self, mark: tuple[Any, ...]) -> bool:
        return bool(self.writes == mark[-1])

    def reset(self, mark: tuple[Any, ...]) -> None:
        super().reset(mark[:-1])

    def merge_changes_if_many(self) -> None:
        """Add the changes of counters up, if they are many and nobody else is at it."""
        if self.value("count_changes") > MERGE_CHANGES and self.is_my_turn():
            self.run("merge_changes", 5 * MERGE_CHANGES)
        if self.value("count_account_changes") > MERGE_CHANGES and self.is_my_turn():
            self.run("merge_account_changes", 5 * MERGE_CHANGES)

    # New jobs

    def lane_ids(self, specs: Mapping[str, LaneSpec]) -> dict[str, int]:
        """Those that are known already are held with the jobs that are put into them."""
        known = self._lanes.numbers
        if all(text in known for text in specs):
            found = {text: known[text] for text in specs}
            self._unheld.update(found.values())
            return found
        found = super().lane_ids(specs)
        known |= found
        return found

    def insert_jobs(self, rows: Sequence[Row]) -> dict[str, int]:
        created: dict[str, int] = {}
        for part in bulk_insert.slices(rows):
            created |= self._insert_slice(part)
        if created:
            self.witness = "was_created", (next(iter(created)), self.now, self.app)
            for lane_id, priority, due_at in {(row[1], row[3], row[6]) for row in rows}:
                self._arrived(lane_id, priority, due_at)
        return created

    def _arrived(self, lane_id: int, priority: int, due_at: int) -> None:
        """A new job stands behind what was taken last, unless its priority is higher."""
        if self._places.is_behind(lane_id, -priority, due_at):
            self._behind.add(lane_id)
        else:
            self._places.forget([lane_id])

    def _insert_slice(self, rows: Sequence[Row]) -> dict[str, int]:
        keys = [row[0] for row in rows]
        if self._copies and len(rows) >= bulk_insert.COPY_MIN and _differ(keys):
            return self._copy(rows, keys)
        columns = (*bulk_insert.arrays(rows), self.now)
        created: dict[str, int]
        (_, _, _, _, _, state, due_at, _, _), *others = rows
        if all(row[5] == state and row[6] == due_at for row in others):
            created = dict(self._with_lanes("accept_jobs", *columns, state, due_at, self.app))
        else:
            created = dict(self._with_lanes("insert_jobs", *columns, self.app))
            if created:
                self.run("place_jobs", *bulk_insert.places(rows, created), self.now)
        self._keys_were_new = self._keys_were_new is not False and len(created) == len(rows)
        return created

    def _copy(self, rows: Sequence[Row], keys: Sequence[str]) -> dict[str, int]:
        """The shortest way, while nobody has enqueued any of these keys; else all runs again."""
        ids = self._ids_for(rows)
        self.writes += 1
        self._still_time()
        try:
            with self._cursor.copy(self._queries["copy_jobs"]) as copy:
                for piece in bulk_insert.jobs_copied(rows, ids, self.now, self.app):
                    copy.write(piece)
                places = bulk_insert.hot_copied(rows, ids, self.now)
        except psycopg.errors.UniqueViolation as error:
            self._lanes.keys_are_new = False
            raise Contended("A key of the batch was known already.") from error
        self._still_time()
        with self._cursor.copy(self._queries["copy_hot"]) as copy:
            copy.write(places)
        self.copied += len(rows)
        return dict(zip(keys, ids, strict=True))

    def accepted(self) -> None:
        """It is committed: the next batches are likely to be like these."""
        if self._keys_were_new is not None:
            self._lanes.keys_are_new = self._keys_were_new

    def _ids_for(self, rows: Sequence[Row]) -> list[int]:
        """Ids in stock will do, unless a job waits for another, whose id must be lower."""
        count, stock = len(rows), self._lanes.ids
        if count <= len(stock) and all(row[5] != RowState.WAITING for row in rows):
            ids = stock[:count]
            del stock[:count]
            return ids
        return [job_id for (job_id,) in self._with_lanes("reserve_ids", count)]

    def _with_lanes(self, query: str, *parameters: object) -> list[Row]:
        """Ask something about new jobs, and hold their lanes in the same round trip."""
        if not self._unheld:
            return self.rows(query, *parameters)
        wanted, self._unheld = self._unheld, set()
        self.writes += 1
        self._still_time()
        kept, answered = self._round_trip.ask(
            (("keep_lanes", (numbers(sorted(wanted)),)), (query, parameters))
        )
        gone = wanted.difference(lane_id for (lane_id,) in kept)
        if gone:
            self._lanes.forget(gone)
            raise Contended("A lane was purged while jobs were put into it.")
        return answered

    # Calls that cost money

    def find_calls(self, keys: Sequence[CallKey]) -> list[Row]:
        query, parameters = self._finding(keys)
        return self.rows(query, *parameters)

    @staticmethod
    def _finding(keys: Sequence[CallKey]) -> Question:
        jobs, fingerprints, ordinals = zip(*keys, strict=True)
        return "find_calls", (numbers(jobs), texts(fingerprints), numbers(ordinals))

    def add_calls(self, rows: Sequence[Row]) -> None:
        jobs, fingerprints, ordinals, tokens, *places, begun, micros, tokens_kept, resent = zip(
            *rows, strict=True
        )
        made = self.rows(
            "add_calls",
            numbers(jobs),
            texts(fingerprints),
            numbers(ordinals),
            numbers(tokens),
            *map(texts, places),
            numbers(begun),
            numbers(micros),
            numbers(tokens_kept),
            numbers(resent),
        )
        if len(made) < len(rows):
            raise Contended("Another process has begun the same call just now.")
        self._saw(CallKey(*rows[0][:3]))

    def change_calls(self, rows: Sequence[Row], answers: Sequence[Row] = ()) -> None:
        *first, last = _slices(answers)
        for part in first:
            self._write(_keeping(part))
        calls, states, *others = zip(*rows, strict=True)
        change = "change_calls", (numbers(calls), texts(states), *map(numbers, others))
        self._write(*([_keeping(last)] if last else []), change)

    def _write(self, *questions: Question) -> None:
        self.writes += 1
        self._still_time()
        self._round_trip.ask(questions)

    def call_ended(self, key: CallKey) -> None:
        self._saw(key)

    def _saw(self, key: CallKey) -> None:
        self.witness = "was_called", (*key, self.now)

    def add_up_accounts(self) -> None:
        self.flush_accounts()
        while self.run("merge_account_changes", MERGED_AT_ONCE):
            continue

    # Units of schedules

    def find_units(self, keys: Sequence[str]) -> list[Row]:
        """Held first and read afterwards: what is read is not older than the lock."""
        wanted, held, running = texts(keys), set[int](), int(RowState.IN_PROGRESS)
        questions = [
            (query, (wanted, self.app))
            for query in ("hold_units", "hold_ended_units", "find_units")
        ]
        for _ in range(LOOKS_MAX):
            self._still_time()
            at_rest, ended, found = self._round_trip.ask(questions)
            held.update(job_id for (job_id,) in (*at_rest, *ended))
            if all(row[3] == running or row[1] in held for row in found):
                return found
        raise Contended("Units were leased and ended each time that they were read.")

    def start_units(self, rows: Sequence[Row]) -> None:
        batch = (as_json(rows), self.now)
        self._write(("start_units", batch), ("revive_units", batch))


def _keeping(rows: Sequence[Row]) -> Question:
    calls, status, headers, bodies, *others = zip(*rows, strict=True)
    columns = (numbers(calls), numbers(status), texts(headers), binaries(bodies))
    return "keep_answers", (*columns, *map(numbers, others))


def _slices(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Parts whose bodies are bounded together, at least one in each; the last may be empty."""
    begin = size = 0
    for place, row in enumerate(rows):
        size += len(row[_BODY])
        if size > ANSWER_BYTES and place > begin:
            yield rows[begin:place]
            begin, size = place, len(row[_BODY])
    yield rows[begin:]


def _differ(keys: Sequence[str]) -> bool:
    return len({*keys}) == len(keys)


def _names(accounts: Sequence[Account]) -> str:
    return texts([as_json(account) for account in accounts])
