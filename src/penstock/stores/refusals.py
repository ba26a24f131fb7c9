# SPDX-License-Identifier: Apache-2.0
"""How is somebody refused who uses a store that is not his to use any more?"""

from __future__ import annotations

from penstock.errors import StoreClosed, StoreForked


def closed() -> StoreClosed:
    """It was closed."""
    return StoreClosed("The store is closed; open it again to use it.")


def forked(which: str = "the store") -> StoreForked:
    """It was opened by the process that this one was forked from."""
    return StoreForked(
        f"This process was forked while {which} was open, so it cannot use it. Start processes "
        "with 'spawn' (multiprocessing.get_context('spawn')), or close the store before forking."
    )
