# SPDX-License-Identifier: Apache-2.0
"""Warns of datasets whose code has changed since their newest slices, but not their version.

A slice keeps the fingerprint of the function that built it. Only slices of the version that a plan
asks for are looked at, and of each dataset the newest of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from penstock.model.dataset import SliceMarks, SliceOutput, version_of
from penstock.stores.protocol import ManifestStore, SliceRange

log = logging.getLogger("penstock.build")

_output = msgspec.json.Decoder(SliceOutput).decode


class ChangedCode:
    """Owns which slices one plan has found. Decides nothing: what is there stays fresh."""

    def __init__(
        self,
        store: ManifestStore,
        code_of: Callable[[str], str | None],
        told: set[str] | None = None,
    ) -> None:
        """Nothing was found.

        Args:
            store: where slices are kept.
            code_of: the fingerprint of a dataset's function; None: it cannot be told.
            told: datasets that were named by plans before, and are not again.
        """
        self._store = store
        self._code_of = code_of
        self._told = set() if told is None else told
        self._newest: dict[str, int] = {}

    def marks(self, dataset: str, start: int, end: int, built: str) -> SliceMarks:
        """What is committed of a dataset in [start, end), built so."""
        found = self._store.slice_marks(dataset, start, end, built).result()
        if found.ats:
            self._newest[dataset] = found.ats[-1]
        return found

    def warn(self) -> None:
        """Name the datasets whose code is another; once for each plan."""
        ranges = [SliceRange(name, at, at) for name, at in self._newest.items()]
        for row in self._store.slices(ranges).result().rows if ranges else ():
            was, now = _output(row.document).code, self._code_of(row.dataset)
            if was is None or now is None or not _differ(was, now) or row.dataset in self._told:
                continue
            self._told.add(row.dataset)
            log.warning(
                "The code of dataset %r has changed, its version (%s) has not: slices that are "
                "there stay as they are. Give it another version= to build them anew.",
                row.dataset,
                version_of(row.built),
            )


def _differ(was: str, now: str) -> bool:
    """Whether two fingerprints of one Python are different; those of two say nothing."""
    return was != now and was.partition(":")[0] == now.partition(":")[0]
