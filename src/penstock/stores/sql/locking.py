# SPDX-License-Identifier: Apache-2.0
"""Who holds the lock of a dataset?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock import failpoints
from penstock.clock import MICROSECONDS, BootTime
from penstock.model.lock import LocksTaken, LockView
from penstock.stores.sql.statements import Row, Statements, as_json
from penstock.stores.sql.transaction import Transaction


def take_locks(
    tx: Transaction,
    names: Sequence[str],
    run_id: str,
    mark: str,
    ttl_seconds: float,
    gone: Sequence[str],
) -> LocksTaken:
    """All or none; who loses one loses all of his, and his open plans are left."""
    tx.locks_alone()
    wanted = sorted(set(names))
    known = [_view(row) for row in tx.array("hold_locks", as_json(wanted), *_boot(tx.boot))]
    others = [lock for lock in known if lock.name in wanted and lock.run_id != run_id]
    held = [lock for lock in others if lock.alive and lock.mark not in gone]
    if held:
        return LocksTaken(taken=False, held=tuple(held))
    left: tuple[str, ...] = ()
    if others:
        left = free_all(tx, sorted({lock.run_id for lock in others}))
    if wanted:
        until = _until(tx, ttl_seconds)
        tx.run("take_locks", as_json(wanted), run_id, mark, tx.boot.boot_id, until, tx.now)
    failpoints.hit("lock.in_tx")
    return LocksTaken(taken=True, left=left)


def _boot(boot: BootTime) -> tuple[str, int]:
    return boot.boot_id, boot.at


def _until(tx: Transaction, ttl_seconds: float) -> int:
    return tx.boot.at + round(ttl_seconds * MICROSECONDS)


def free_all(tx: Transaction, runs: Sequence[str]) -> tuple[str, ...]:
    """These runs hold nothing any more; the plans that are left by it."""
    wanted = as_json(runs)
    tx.plans_change()
    tx.run("free_locks", wanted)
    return tuple(sorted(plan_id for (plan_id,) in tx.rows("leave_plans", wanted)))


def beat_locks(tx: Transaction, run_id: str, ttl_seconds: float) -> bool:
    """Renew what a run holds; False if that is nothing."""
    renewed = tx.run("beat_locks", run_id, tx.boot.boot_id, _until(tx, ttl_seconds))
    failpoints.hit("lock.in_tx")
    return renewed > 0


def release_locks(tx: Transaction, run_id: str, names: Sequence[str]) -> None:
    """Free some of a run's locks; without any its open plans are left."""
    tx.locks_alone()
    tx.run("release_locks", run_id, as_json(sorted(set(names))))
    if not tx.value("has_lock", run_id):
        free_all(tx, [run_id])


def void_locks(tx: Transaction, above: int) -> None:
    """Nobody holds anything any more, and every plan that was on its way is left."""
    tx.locks_alone()
    tx.plans_change()
    tx.run("void_locks", above)
    tx.run("leave_all_plans")


def locks_of(reader: Statements, boot: BootTime) -> list[LockView]:
    return [_view(row) for row in reader.array("list_locks", *_boot(boot))]


def _view(row: Row) -> LockView:
    name, run_id, mark, token, taken_at, alive = row
    return LockView(
        name=name, run_id=run_id, mark=mark, token=token, taken_at=taken_at, alive=bool(alive)
    )
