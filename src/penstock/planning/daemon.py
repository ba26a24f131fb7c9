# SPDX-License-Identifier: Apache-2.0
"""What shall a daemon check and arm? Made once per start, from definitions and settings."""

from __future__ import annotations

import hashlib

import msgspec

from penstock.model.schedule import UnitPlan


class PreflightPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One unit of a preflight, as it shall run."""

    unit: str  # preflight:repository_exists:thumbrise/autosolve; the key of its job
    task: str  # preflight:repository_exists
    name: str  # repository_exists
    partition: str  # "": it is global
    payload: str  # strict JSON text: the values of its partition, by argument


class DaemonPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `penstock run` does besides the queue."""

    preflights: tuple[PreflightPlan, ...] = ()
    schedules: tuple[UnitPlan, ...] = ()  # with the first tick of each, if it is new
    shares: dict[str, tuple[str, ...]]  # partition → those that it lies in, "" first, itself last


def spread_of(unit: str) -> float:
    """A number in [0, 1) from a unit's name, the same at every start."""
    digest = hashlib.blake2b(unit.encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48
