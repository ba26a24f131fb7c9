# SPDX-License-Identifier: Apache-2.0
"""Does somebody who reads while a build runs ever see half of a level?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, Penstock, Slices
from penstock.calendars import Daily

START, END, DAYS = "2024-01-01", "2024-01-04", 3
WAIT_SECONDS = 60.0


def app_of(version: int, pause: Callable[[], None]) -> Penstock:
    """`prices` and `rates`, and `value` of both; each row tells its version."""
    app = Penstock("read")

    @app.dataset(calendar=Daily(), version=version, max_attempts=1)
    def prices(ctx: Context, at: datetime) -> list[dict[str, Any]]:
        pause()
        return [{"version": version}]

    @app.dataset(calendar=Daily(), version=version, max_attempts=1)
    async def rates(ctx: Context, at: datetime) -> list[dict[str, Any]]:
        return [{"version": version}]

    @app.dataset(
        calendar=Daily(), needs=[prices.exact(), rates.exact()], version=version, max_attempts=1
    )
    def value(ctx: Context, at: datetime, prices: Slices, rates: Slices) -> list[dict[str, Any]]:
        pause()
        assert prices.rows() == rates.rows() == [{"version": version}]
        return prices.rows()

    return app


class Reader:
    """Reads everything again and again in a thread of its own, as another program would."""

    def __init__(self) -> None:
        self._app = app_of(0, lambda: None)
        self._thread = threading.Thread(target=self._run)
        self._looked = threading.Condition()
        self._stop = False
        self.looks: list[dict[str, list[int]]] = []
        self.failed: BaseException | None = None

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join(WAIT_SECONDS)
        self._app.close()

    def await_look(self) -> None:
        """Until it has begun and ended a look; a body that calls this is in the midst of things."""
        with self._looked:
            wanted = len(self.looks) + 2
            assert self._looked.wait_for(
                lambda: len(self.looks) >= wanted or self.failed is not None, WAIT_SECONDS
            )

    def _run(self) -> None:
        try:
            while not self._stop:
                seen = {}
                for name in ("value", "prices", "rates"):  # what is derived before its sources
                    table = self._app.datasets[name].read(START, END)
                    seen[name] = [row["version"] for row in table.to_pylist()]
                with self._looked:
                    self.looks.append(seen)
                    self._looked.notify_all()
        except BaseException as error:
            with self._looked:
                self.failed = error
                self._looked.notify_all()


def test_a_reader_sees_each_level_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Reader() as reader:
        for version in (1, 2, 3):
            app = app_of(version, reader.await_look)
            try:
                assert app.build("value", start=START, end=END).ok
            finally:
                app.close()
        reader.await_look()
    assert reader.failed is None
    for seen in reader.looks:
        for versions in seen.values():
            assert versions == versions[:1] * DAYS
        newest = {name: max(versions, default=0) for name, versions in seen.items()}
        assert newest["value"] <= newest["prices"]  # read later, so never older
        assert newest["prices"] <= newest["rates"]
    first = reader.looks[0]
    assert first == {"value": [], "prices": [], "rates": []}
    assert reader.looks[-1] == dict.fromkeys(first, [3] * DAYS)
    assert len({str(seen) for seen in reader.looks}) > 3  # it has seen what is between
