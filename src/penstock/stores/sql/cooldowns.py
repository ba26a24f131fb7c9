# SPDX-License-Identifier: Apache-2.0
"""Long cool-downs of providers: begun by a refusal, probed by one caller at a time, then over."""

from __future__ import annotations

from penstock.clock import MICROSECONDS, to_micros
from penstock.model.provider import CooldownKey
from penstock.model.views import StoredCooldown
from penstock.stores.protocol import LEARNED_READ, LEARNED_SECONDS, PROBE_SECONDS
from penstock.stores.sql.transaction import Transaction
from penstock.stores.sql.views import SqlReader


def begin_cooldown(tx: Transaction, key: CooldownKey, seconds: float, document: str) -> None:
    """Let nothing be sent for so long, and forget what was over long ago."""
    tx.run("begin_cooldown", *key, tx.now, tx.now + to_micros(seconds), document)
    tx.run("forget_cooldowns", tx.now - to_micros(LEARNED_SECONDS))


def take_probe(tx: Transaction, key: CooldownKey, at_once: bool) -> bool:
    """Give the caller the right to probe, if nobody has it."""
    until = tx.now + to_micros(PROBE_SECONDS)
    return bool(tx.run("take_probe", *key, tx.now, until, int(at_once)))


def end_cooldown(tx: Transaction, key: CooldownKey) -> None:
    tx.run("end_cooldown", *key)


def cooldowns(reader: SqlReader, now: int) -> list[StoredCooldown]:
    """What is kept, with the time that is left by the clock of the store."""
    return [
        stored_cooldown(CooldownKey(*row[:3]), *row[3:], now=now)
        for row in reader.rows("list_cooldowns", LEARNED_READ)
    ]


def stored_cooldown(
    key: CooldownKey, begun_at: int, until_at: int, probed_until: int, document: str, *, now: int
) -> StoredCooldown:
    """A cool-down as it is seen now; a clock that was set back makes it no longer than it was."""
    probed_seconds = (probed_until - now) / MICROSECONDS
    return StoredCooldown(
        key=key,
        begun_at=begun_at,
        until_at=until_at,
        left_seconds=max(0, until_at - max(now, begun_at)) / MICROSECONDS,
        probed_seconds=probed_seconds if 0 < probed_seconds <= PROBE_SECONDS else 0.0,
        document=document,
    )
