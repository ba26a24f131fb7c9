# SPDX-License-Identifier: Apache-2.0
"""What does a reader see of the datasets of `build_app`, and may that be?

It asks the database and the disk itself and uses no code of ours, so that it cannot share our
mistakes.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import apsw
import psycopg

from penstock.model.dataset import version_of

LEVELS = {"east": 0, "west": 0, "pair": 1, "week": 2}
DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")
BEFORE = "2023-12-31"  # which a lookback from the first day reaches
SLICES = (
    *(f"east@{day}" for day in (BEFORE, *DAYS)),
    *(f"{name}@{day}" for name in ("west", "pair", "week") for day in DAYS),
)
BATCHES = (("week@2024-01-01", "week@2024-01-02"),)
NOTHING = "0"  # the version of what is not there

_ROWS = """
select m.dataset, m.at, m.version, m.document, coalesce(m.seq, c.seq)
from {0}manifests as m left join {0}commits as c on c.plan_id = m.plan_id and c.level = m.level
"""


class Row(NamedTuple):
    """One manifest."""

    slice: str
    version: str
    path: str
    checksum: str
    seq: int | None  # None: nobody may see it


def manifests(url: str) -> list[Row]:
    """All manifests, visible or not, in one snapshot."""
    found: list[tuple[str, int, str, str, int | None]] = []
    if url.startswith("sqlite:///"):
        file = url.removeprefix("sqlite:///")
        with contextlib.suppress(apsw.SQLError, apsw.CantOpenError):  # it is not there yet
            connection = apsw.Connection(file, flags=apsw.SQLITE_OPEN_READONLY)
            with contextlib.closing(connection):
                connection.set_busy_timeout(10_000)
                found = list(connection.execute(_ROWS.format("")))
    else:
        with contextlib.suppress(psycopg.errors.UndefinedTable), psycopg.connect(url) as server:
            found = server.execute(_ROWS.format("penstock.").encode()).fetchall()
    return [_row(*row) for row in found]


def _row(dataset: str, at: int, version: str, document: str, seq: int | None) -> Row:
    told = json.loads(document)
    day = datetime.fromtimestamp(at / 1e6, UTC)
    name = f"{dataset}@{day:%Y-%m-%d}"
    return Row(name, version_of(version), told["path"], told["checksum"], seq)


def visible(rows: list[Row]) -> dict[str, Row]:
    """What readers see: of each slice the newest commit."""
    newest: dict[str, Row] = {}
    for row in rows:
        if row.seq is not None and (
            row.slice not in newest or row.seq > (newest[row.slice].seq or 0)
        ):
            newest[row.slice] = row
    return newest


def wrong(seen: dict[str, Row], root: Path, *, eager: bool) -> list[str]:
    """Why this cannot be what a reader sees, if it cannot."""
    found = [said for row in seen.values() for said in _wrong_file(row, root)]
    versions = {name: seen[name].version if name in seen else NOTHING for name in SLICES}
    if eager:
        parts = [{versions[name] for name in batch} for batch in BATCHES]
        return found + [f"half a job is seen: {versions}" for part in parts if len(part) > 1]
    levels: dict[int, set[str]] = defaultdict(set)
    for name, version in versions.items():
        levels[LEVELS[name.partition("@")[0]]].add(version)
    if any(len(one) > 1 for one in levels.values()):
        return [*found, f"half a level is seen: {versions}"]
    inner = [int(next(iter(levels[level]))) for level in sorted(levels)]
    if inner != sorted(inner, reverse=True):
        found.append(f"a level is newer than the one below: {versions}")
    return found


def _wrong_file(row: Row, root: Path) -> list[str]:
    try:
        data = (root / row.path).read_bytes()
    except OSError as error:
        return [f"{row.slice} is committed and cannot be read: {error}"]
    if blake2b(data, digest_size=16).hexdigest() != row.checksum:
        return [f"{row.slice} is not what its manifest says"]
    told = json.loads(data)
    if (told["name"], told["version"]) != (row.slice, row.version):
        return [f"{row.slice} of version {row.version} says that it is {told}"]
    if any(version != row.version for _, version in told["from"]):
        return [f"a mixture: {told}"]
    return []


def files(root: Path) -> set[str]:
    """Every file of slices, and what is left of writing them."""
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and path.name not in (".penstock-root", ".penstock-store")
    }
