# SPDX-License-Identifier: Apache-2.0
"""What did a run do to its disk, in which order, and what was it told?"""

from __future__ import annotations

from pathlib import Path

import msgspec

#: What a person could know of the store: jobs, cursors and manifests, by name.
Snapshot = dict[str, list[str | int | None]]


class Write(msgspec.Struct, frozen=True, tag="write"):
    """Bytes went into a file."""

    file: int
    offset: int
    data: bytes


class Truncate(msgspec.Struct, frozen=True, tag="truncate"):
    """A file got this size."""

    file: int
    size: int


class Sync(msgspec.Struct, frozen=True, tag="sync"):
    """What was done to a file before position `covers` is durable."""

    file: int
    covers: int


class Create(msgspec.Struct, frozen=True, tag="create"):
    """A name appeared in a folder; file 0 is a folder."""

    path: str
    file: int


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """A name vanished."""

    path: str


class Rename(msgspec.Struct, frozen=True, tag="rename"):
    """A file has another name, at once."""

    source: str
    target: str


class SyncFolder(msgspec.Struct, frozen=True, tag="sync_folder"):
    """The names that a folder had at position `covers` are durable."""

    path: str
    covers: int


class Began(msgspec.Struct, frozen=True, tag="began"):
    """A step was handed to the store."""

    step: int


class Acked(msgspec.Struct, frozen=True, tag="acked"):
    """The store has answered a step: from here on it must survive."""

    step: int


Event = Write | Truncate | Sync | Create | Delete | Rename | SyncFolder | Began | Acked


class Step(msgspec.Struct, frozen=True):
    """What was asked, and what the store held after the answer."""

    what: str
    whole: bool  # one transaction: all of it or nothing
    after: Snapshot


class Log(msgspec.Struct):
    """One recorded run."""

    database: str  # its path below the recorded folder
    base: dict[str, bytes] = {}  # durable files from before
    before: Snapshot = {}
    events: list[Event] = []
    steps: list[Step] = []

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.msgpack.encode(self))


def read_log(path: Path) -> Log:
    return msgspec.msgpack.decode(path.read_bytes(), type=Log)
