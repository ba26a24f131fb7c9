# SPDX-License-Identifier: Apache-2.0
"""Which known bugs must our tests find?

Each mutant is one small mistake, planted into a statement of the embedded store or into a function,
with the name of a test that must fail because of it. A mutant that does not fit the code any more
is refused: it has to be planted anew, or it would prove nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import isfunction
from pathlib import Path
from typing import Any
from unittest import mock

import apsw

from penstock.errors import StoreBusy
from penstock.model.lease import Verdict
from penstock.stores.sqlite.open import statements
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.store_future import Reply
from penstock.testing import ManualClock
from penstock.worker.completer import Completer
from tests import contract
from tests.contract import StoreWorld

QUERIES = "penstock.stores.sqlite.store.statements"
SEEDS = 3  # a simulation that takes a seed is tried with so many

Wrap = Callable[[Any], Any]


@dataclass(frozen=True)
class Mutant:
    """One planted bug. Owns nothing."""

    name: str
    killer: str  # a rule of the contract, or `module:test` of a simulation
    edits: tuple[tuple[str, str, str], ...] = ()  # (query, what it says, what the bug says)
    place: str = ""  # the dotted name of a function, if it is one
    wrap: Wrap = lambda function: function

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Live with the bug for a while."""
        with contextlib.ExitStack() as stack:
            if self.edits:
                stack.enter_context(mock.patch(QUERIES, self._queries))
            if self.place:
                stack.enter_context(mock.patch(self.place, self.wrap(_resolve(self.place))))
            yield

    def _queries(self) -> dict[str, str]:
        queries = dict(statements())
        for name, right, wrong in self.edits:
            if right not in queries.get(name, ""):
                raise LookupError(f"Mutant {self.name!r} does not fit: {name} has no {right!r}.")
            queries[name] = queries[name].replace(right, wrong)
        return queries


def _resolve(place: str) -> Any:
    owner, _, name = place.rpartition(".")
    try:
        return getattr(importlib.import_module(owner), name)
    except ModuleNotFoundError:
        module, _, cls = owner.rpartition(".")
        return getattr(getattr(importlib.import_module(module), cls), name)


def rules() -> dict[str, Callable[[StoreWorld], None]]:
    """The rules of the store contract, by name."""
    found = {name: getattr(contract, name) for name in dir(contract)}
    return {
        name: rule
        for name, rule in found.items()
        if name.startswith("test_") and isfunction(rule) and rule.__code__.co_argcount == 1
    }


def broken_rule(name: str) -> str | None:
    """How the embedded store breaks this rule of the contract now; None if it does not."""
    clock = ManualClock()
    rule = rules()[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        store = SqliteStore.open(path, clock=clock, boot_clock=clock, durability="normal")
        try:
            rule(StoreWorld(store, clock))
            damage = [] if "closed_store" in name else store.check().result()
            return str(damage) if damage else None
        except (apsw.SQLError, apsw.BindingsError):
            raise  # not a bug but nonsense
        except Exception as error:
            return repr(error)
        finally:
            store.close()


def broken_simulation(name: str) -> str | None:
    """How a simulation of a worker fails now; None if it does not."""
    module, _, test = name.partition(":")
    run = getattr(importlib.import_module(module), test)
    takes_seed = "seed" in run.__code__.co_varnames[: run.__code__.co_argcount]
    for seed in range(SEEDS if takes_seed else 1):
        try:
            run(seed) if takes_seed else run()
        except Exception as error:
            return repr(error)
    return None


def killed(mutant: Mutant) -> bool:
    """Does the test that the mutant names find it?"""
    with mutant.planted():
        return failure(mutant.killer) is not None


def failure(killer: str) -> str | None:
    """How this test fails now; None if it passes."""
    return broken_simulation(killer) if ":" in killer else broken_rule(killer)


async def _ask_once(
    buffer: Completer, call: Callable[[], Reply[Any]], reply: Reply[Any] | None = None
) -> Any:
    try:
        return await (reply or call())
    except StoreBusy:
        return []


# What is taken out of a statement leaves its parameters behind: a call that does not fit its
# statement is no bug that anybody could make.
HELD = "and worker = ?8 and row_state = 4"
HELD_MANY = "and +jobs.worker = ?2 and +jobs.row_state = 4"

MUTANTS = (
    Mutant(
        "an end is not asked for its token",
        "test_an_end_under_an_old_token_is_stale",
        (
            ("end_job", "token = ?2", "?2 > 0"),
            ("end_jobs", "+jobs.token = ended.value ->> 1", "true"),
        ),
    ),
    Mutant(
        "an end asks neither for state nor for holder",
        "test_an_end_by_another_worker_is_stale",
        (("end_job", HELD, "and ?8 > 0"), ("end_jobs", HELD_MANY, "and ?2 > 0")),
    ),
    Mutant(
        "a failure is not asked for its token",
        "test_a_failure_under_an_old_token_is_stale",
        (("fail_job", "and token = ?2 and", "and ?2 > 0 and"),),
    ),
    Mutant(
        "a dead worker's end is taken",
        "test_an_expired_worker_ends_nothing_although_nobody_took_its_jobs_back",
        (("worker_row", "expires_at > ?3", "?3 > 0"),),
    ),
    Mutant(
        ">= for > at the instant of expiry",
        "test_a_beat_names_the_living_and_revives_nobody",
        (
            ("worker_row", "expires_at > ?3", "expires_at >= ?3"),
            ("beat_worker", "expires_at > ?3", "expires_at >= ?3"),
        ),
    ),
    Mutant(
        "a beat revives an expired worker",
        "test_a_beat_names_the_living_and_revives_nobody",
        (("beat_worker", "expires_at > ?3", "?3 > 0"),),
    ),
    Mutant(
        "a sweep that is not finished says that it is",
        "test_calls_that_find_nothing_for_themselves_take_back_what_all_dead_workers_held",
        place="penstock.stores.sql.lease.sweep",
        wrap=lambda sweep: lambda tx: sweep(tx) and False,
    ),
    Mutant(
        "a lease is released twice",
        "test_a_job_is_released_once",
        (("release_job", "worker = ?3 and row_state = 4", "?3 > 0 and row_state < 5"),),
    ),
    Mutant(
        "a lease does not move the token",
        "test_the_token_counts_the_leases_of_a_job",
        (("mark_leased", "token = token + 1, ", ""), ("take_jobs", "jobs.token + 1", "jobs.token")),
    ),
    Mutant(
        "an attempt is counted twice",
        "test_a_job_ends_in_error_when_its_attempts_are_used_up",
        (("fail_job", "attempts = attempts + ?4,", "attempts = attempts + 2 * ?4,"),),
    ),
    Mutant(
        "a retry does not wait",
        "test_a_failed_attempt_is_tried_again_after_its_delay",
        (("fail_job", "when ?3 > ?11 then 1 else 2", "when ?3 > ?11 then 2 else 2"),),
    ),
    Mutant(
        "limit keys are not given back",
        "test_every_end_of_a_lease_frees_its_keys",
        (("free_keys", "delete from held where", "delete from held where false and"),),
    ),
    Mutant(
        "a freed limit key wakes nobody",
        "test_a_free_slot_lets_exactly_one_of_many_lanes_run",
        (("open_freed_keys", "where exists", "where false and exists"),),
    ),
    Mutant(
        "a cap lets one more in",
        "test_no_more_leases_than_the_cap_hold_a_key",
        (("count_holders", "select count(*)", "select count(*) - 1"),),
    ),
    Mutant(
        "an end forgets the last of its dependants",
        "test_the_last_dependency_that_is_done_releases_its_dependant",
        (
            (
                "edges_to_settle",
                "and edges.open = 1",
                "and edges.open = 1 and edges.child_id < (select max(id) from jobs)",
            ),
        ),
    ),
    Mutant(
        "dependants of a failed job run",
        "test_a_success_edge_skips_when_its_parent_did_not_end_well",
        (("edges_to_settle", "jobs.row_state, jobs.key", "5 as row_state, jobs.key"),),
    ),
    Mutant(
        "a duplicate end is told to be accepted",
        "test_the_same_end_again_is_a_duplicate_and_changes_nothing",
        place="penstock.stores.sql.ack._verdict",
        wrap=lambda _: lambda tx, job_id, token: Verdict.ACCEPTED,
    ),
    Mutant(
        "a paused store leases",
        "test_while_paused_nothing_is_handed_out",
        (("lease_view", "= '1'", "= 'yes'"),),
    ),
    Mutant(
        "delayed jobs fall due early",
        "test_a_job_that_falls_due_takes_no_later_one_along",
        (("promote_due", "available_at <= ?1", "available_at <= ?1 + 60000000"),),
    ),
    Mutant(
        "retry-failed forgets what was skipped",
        "test_what_was_skipped_because_of_a_failure_is_put_back",
        (("revive_later", "where exists", "where false and exists"),),
    ),
    Mutant(
        "a suspect that ran alone is not told from others",
        "test_a_solo_job_that_was_reaped_is_charged_a_crash",
        (("mark_solo", "solo = 1", "solo = 0"),),
    ),
    Mutant(
        "two workers run suspects of one cell",
        "test_a_cell_belongs_to_the_worker_that_runs_some_of_it",
        (("list_suspects", "jobs.cell = 0 or", "true or"),),
    ),
    Mutant(
        "the second job of a key replaces the first",
        "test_the_first_job_of_a_key_wins_in_the_store",
        (
            ("insert_jobs", "do nothing", "do update set payload = excluded.payload"),
            ("insert_job", "do nothing", "do update set payload = excluded.payload"),
        ),
    ),
    Mutant(
        "purging forgets a job that somebody waits for",
        "test_a_job_that_an_unfinished_job_hangs_on_is_kept",
        (("old_jobs", "child.row_state < 5", "child.row_state < 0"),),
    ),
    Mutant(
        "a detached body is still heard",
        "tests.simulation.test_worker_lease:"
        "test_a_lost_attempt_that_swallows_cancellation_does_not_hold_a_drain",
        place="penstock.worker.executor.JobExecutor.detach_all",
        wrap=lambda _: lambda slots: [],
    ),
    Mutant(
        "an end that meets a busy store is dropped",
        "tests.faults.test_leases:"
        "test_f17_an_acknowledgement_that_meets_a_busy_store_for_longer_than_its_lease_lands_once",
        place="penstock.worker.completer.Completer._persist",
        wrap=lambda _: _ask_once,
    ),
    Mutant(
        "a slot is not given back",
        "tests.simulation.test_worker_lease:test_while_acknowledgements_wait_nothing_more_is_begun",
        place="penstock.worker.executor.JobExecutor._vacate",
        wrap=lambda _: lambda slots, attempt: None,
    ),
)
