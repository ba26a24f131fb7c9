# SPDX-License-Identifier: Apache-2.0
"""Who builds what, in words?"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.model.lock import LockView

NAMES_SHOWN = 5  # of datasets, in one sentence


def holders(locks: Sequence[LockView]) -> str:
    """Who builds what, as a clause."""
    runs: dict[str, list[str]] = {}
    for lock in locks:
        runs.setdefault(lock.run_id, []).append(lock.name)
    said = []
    for run_id, names in runs.items():
        shown = ", ".join(names[:NAMES_SHOWN])
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        said.append(f"{shown}{more} {'is' if len(names) == 1 else 'are'} being built by {run_id}")
    return ", ".join(said)


def lost_locks(locks: Sequence[LockView], names: Collection[str], run_id: str) -> str:
    """Why a run stops that had the locks of these datasets, and has them no more."""
    others = [one for one in locks if one.name in names and one.run_id != run_id]
    who = holders(others) if others else "nobody has them now"
    return (
        f"The locks of this build were lost, because they were not renewed in time: {who}. "
        "Nothing more was changed; the same build goes on when they are free."
    )
