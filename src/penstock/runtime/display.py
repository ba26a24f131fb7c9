# SPDX-License-Identifier: Apache-2.0
"""Who shows a run to a person?"""

from __future__ import annotations

from typing import Protocol

from penstock.stores.store import Store


class Display(Protocol):
    """A face of the supervisor; it only looks."""

    @property
    def pipes_workers(self) -> bool:
        """Shall what workers write come through `line`?"""
        ...

    def started(self, store: Store) -> None: ...

    def tick(self, store: Store) -> None:
        """Called a few times a second."""
        ...

    def line(self, text: str) -> None:
        """A line that a worker wrote."""
        ...

    def close(self, run_id: str | None) -> None:
        """Say what the run did; nothing if it has no name: it failed, or its store is away."""
        ...
