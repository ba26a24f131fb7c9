# SPDX-License-Identifier: Apache-2.0
"""Registers workers, renews their leases by heartbeats, and keeps what they say of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock import failpoints
from penstock.clock import MICROSECONDS
from penstock.errors import InternalError
from penstock.model.job import JobState, WorkerId
from penstock.model.lease import JobRef, WorkerInfo, dimension_key
from penstock.model.provider import ProviderModelKey
from penstock.stores.protocol import LEARNED_SECONDS, QUESTION_SECONDS, QUESTIONS_KEPT, lease_voided
from penstock.stores.sql.dead_workers import note_max_crashes
from penstock.stores.sql.plans import void_locks
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction


def ask(tx: Transaction, worker: WorkerId, ref: JobRef) -> int:
    """Write a question down, and forget old ones."""
    asked = tx.row("ask", worker, *ref, tx.now)
    if asked is None:
        raise InternalError("A question was stored without a number.")
    number = int(asked[0])
    oldest = tx.now - round(QUESTION_SECONDS * MICROSECONDS)
    tx.run("forget_questions", oldest, number - QUESTIONS_KEPT)
    return number


def answer(tx: Transaction, question: int, document: str) -> bool:
    return bool(tx.run("answer", question, document, tx.now))


def void_leases(tx: Transaction, above: int) -> int:
    """End every lease and every worker, and raise all tokens; how many leases there were."""
    tx.one_at_a_time()
    floor = max(above, int(tx.value("highest_token")))
    tx.run("void_history", tx.now, as_json(lease_voided()))
    tx.units.grown.update(tx.array("leased_units"))
    voided = tx.array("leased_by_lane")
    tx.run("void_jobs", tx.now)
    for lane_id, count in voided:
        tx.move(lane_id, JobState.IN_PROGRESS, JobState.QUEUED, count)
        tx.touch(lane_id)
    tx.run("void_holders")
    tx.run("void_detached")
    tx.run("unpark_all")
    tx.run("end_all_workers", tx.now)
    void_locks(tx, above)
    tx.raise_tokens(floor)
    tx.run("write_meta", "token_floor", str(floor))
    tx.forget_alive()
    tx.made_work = True
    return sum(count for _, count in voided)


AFTER_COLON = ";"  # keys of a dimension lie between `host:` and `host;`


def register(tx: Transaction, worker: WorkerInfo, ttl_seconds: float) -> None:
    """Make a worker known and alive; caps may have changed, so every lane may try again."""
    if tx.row("worker_no", worker.id) is not None:
        raise InternalError(f"Worker {worker.id!r} is registered already; ids must be random.")
    tx.run(
        "insert_worker",
        worker.id,
        worker.run_id,
        tx.boot.boot_id,
        tx.boot.at + round(ttl_seconds * MICROSECONDS),
        tx.now,
        worker.host,
        worker.pid,
        as_json(worker.tasks),
        tx.app,
    )
    note_max_crashes(tx, worker)
    failpoints.hit("register.in_tx")
    tx.forget_alive()
    if tx.run("unpark_all"):
        tx.made_work = True


def beat(
    tx: Transaction, worker_ids: Sequence[WorkerId], ttl_seconds: float
) -> frozenset[WorkerId]:
    """Heartbeat: renew the leases of those that are still alive."""
    until = tx.boot.at + round(ttl_seconds * MICROSECONDS)
    alive = frozenset(
        worker
        for worker in worker_ids
        if tx.run("beat_worker", worker, tx.boot.boot_id, tx.boot.at, until)
    )
    failpoints.hit("beat.in_tx")
    return alive


def expire(tx: Transaction, worker_ids: Sequence[WorkerId]) -> int:
    """End the time of workers that are still alive; whoever waits for work takes their jobs."""
    boot = tx.boot
    count = sum(tx.run("expire_worker", one, boot.boot_id, boot.at) for one in worker_ids)
    if count:
        tx.forget_alive()
        tx.made_work = True
    return count


def publish(tx: Transaction, worker: WorkerId, document: str) -> None:
    tx.run("publish_status", worker, document, tx.now)


def save_learned(tx: Transaction, limits: Mapping[ProviderModelKey, str]) -> None:
    """Keep what was learned, and forget what is old."""
    for key, document in sorted(limits.items()):
        tx.run("save_learned", *key, document, tx.now)
    tx.run("forget_learned", tx.now - round(LEARNED_SECONDS * MICROSECONDS))


def set_paused(tx: Transaction, paused: bool) -> None:
    tx.run("write_meta", "paused", "1" if paused else "0")
    tx.made_work = True


def set_cap(tx: Transaction, limit_key: str, cap: int | None) -> None:
    """Override a cap, or forget the override; whoever waits for the key may try again."""
    tx.change_caps_alone()
    if cap is None:
        tx.run("drop_cap", limit_key)
    else:
        tx.run("set_cap", limit_key, cap)
    dimension = limit_key.removesuffix("*") if limit_key == dimension_key(limit_key) else None
    if dimension is not None:
        opened = tx.run("open_dimension", dimension, dimension[:-1] + AFTER_COLON)
    else:
        opened = bool(tx.value("is_parked_on", limit_key)) and tx.run("open_key", limit_key)
    if opened:
        tx.made_work = True
