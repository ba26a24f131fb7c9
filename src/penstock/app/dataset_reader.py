# SPDX-License-Identifier: Apache-2.0
"""Where an app keeps the slices of its datasets, and how what is committed is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.clock import SystemClock, to_micros
from penstock.config.settings import Settings
from penstock.definitions.dataset import Dataset, Moment
from penstock.errors import DatasetDamaged, OutputFailed
from penstock.ids import IdSource
from penstock.model.dataset import SliceOutput
from penstock.outputs.paths import slice_names
from penstock.outputs.read import Slices, SlicesData
from penstock.outputs.root import OutputRoot, find_root, open_root
from penstock.planning.calendars.timestamps import parse_moment
from penstock.stores.protocol import ManifestStore, SlicePage, SliceRange

if TYPE_CHECKING:
    import pyarrow

EVER = 1 << 62  # microseconds; before and after everything

_output = msgspec.json.Decoder(SliceOutput).decode


def root_folder(settings: Settings, folder: Path | None = None) -> Path:
    """Where slices are kept; a relative root lies in the folder of the project."""
    return (folder or Path.cwd()) / settings.datasets.root


def found_root(settings: Settings, folder: Path | None = None) -> OutputRoot | None:
    """The root of an app; None if nothing was ever built there."""
    return find_root(root_folder(settings, folder))


def new_root(settings: Settings, ids: IdSource, folder: Path | None = None) -> OutputRoot:
    """The root of an app; made if it is not there."""
    return open_root(root_folder(settings, folder), ids)


class CommittedSlices:
    """Reads what readers may see of one dataset: all slices in one snapshot."""

    def __init__(
        self, dataset: Dataset[..., Any], store: ManifestStore, root: OutputRoot | None
    ) -> None:
        self._dataset = dataset
        self._store = store
        self._root = root

    def table(self, start: Moment | None, end: Moment | None) -> pyarrow.Table:
        """All slices of a range as one table.

        Raises:
            DatasetDamaged: a file is gone or has changed.
        """
        return self.table_of(*self._range(start, end))

    def table_of(self, first: int, last: int) -> pyarrow.Table:
        """The same for moments in [first, last)."""
        page = self._page(first, last)
        while True:
            try:
                return self._slices(page).table()
            except DatasetDamaged as damaged:
                again = self._page(first, last)
                if not damaged.missing or again.seq == page.seq:
                    raise
                page = again  # it was replaced by a newer one, and swept

    def files(self, start: Moment | None, end: Moment | None) -> list[Path]:
        """Where the same slices are, in order of time."""
        page = self._page(*self._range(start, end))
        if not page.rows:
            return []
        root = Path(self._found().path)
        return [root / _output(row.document).path for row in page.rows]

    def _range(self, start: Moment | None, end: Moment | None) -> tuple[int, int]:
        calendar, now = self._dataset.calendar, to_micros(SystemClock().now())
        first = -EVER if start is None else parse_moment(start, calendar, now)
        return first, EVER if end is None else parse_moment(end, calendar, now)

    def _page(self, first: int, last: int) -> SlicePage:
        return self._store.slices([SliceRange(self._dataset.name, first, last - 1)]).result()

    def _slices(self, page: SlicePage) -> Slices:
        root = self._found() if page.rows else self._root or OutputRoot("", "")
        given = SlicesData(
            named=slice_names(self._dataset.spec),
            root_path=root.path,
            root_id=root.id,
            outputs=tuple(_output(row.document) for row in page.rows),
        )
        return Slices(given, root)

    def _found(self) -> OutputRoot:
        if self._root is None:
            raise OutputFailed(
                f"Slices of {self._dataset.name!r} are committed, but there is no output root; "
                "set datasets.root to the folder that they were built in."
            )
        return self._root
