# SPDX-License-Identifier: Apache-2.0
"""What may a disk hold after the power went?

What was synced is there. Of everything later each single thing may be there or not, in any
order, and a write may be there in parts of a sector. Names in folders are things like any other.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from random import Random

from tests.faults.power.log import (
    Create,
    Delete,
    Event,
    Log,
    Rename,
    Sync,
    SyncFolder,
    Truncate,
    Write,
)

SECTOR = 512
Change = Write | Truncate
Naming = Create | Delete | Rename


@dataclass(slots=True)
class Contents:
    """One file: what is durable, and what was done to it since."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Change]] = field(default_factory=list)


class Disk:
    """Owns files and names as they would be found after a cut at the present position."""

    def __init__(self, log: Log) -> None:
        self._events = log.events
        self.position = 0
        self.version = 0  # changes when something becomes durable
        self._files: dict[int, Contents] = {}
        self._names: dict[str, int] = {}
        self._namings: list[tuple[int, Naming]] = []
        for number, (name, content) in enumerate(log.base.items(), start=1):
            self._files[number] = Contents(bytearray(content))
            for folder in _folders_of(name):
                self._names[folder] = 0
            self._names[name] = number

    def advance(self, position: int) -> None:
        """Let everything before this position of the log happen."""
        while self.position < position:
            self._happen(self._events[self.position])
            self.position += 1

    def _happen(self, event: Event) -> None:
        if isinstance(event, Write | Truncate):
            self._files[event.file].pending.append((self.position, event))
        elif isinstance(event, Create | Delete | Rename):
            self._namings.append((self.position, event))
            if isinstance(event, Create) and event.file:
                self._files[event.file] = Contents()
        elif isinstance(event, Sync):
            contents = self._files[event.file]
            covered = [change for at, change in contents.pending if at < event.covers]
            contents.pending = contents.pending[len(covered) :]
            for change in covered:
                _apply(contents.durable, change)
            self.version += bool(covered)
        elif isinstance(event, SyncFolder):
            late = []
            for at, naming in self._namings:
                if at < event.covers and event.path in {_parent(n) for n in _touched(naming)}:
                    _rename(self._names, naming)
                    self.version += 1
                else:
                    late.append((at, naming))
            self._namings = late

    def durable_only(self) -> dict[str, bytes]:
        """The worst an honest disk can do: nothing but what was synced."""
        files = {number: bytes(contents.durable) for number, contents in self._files.items()}
        return _found(self._names, files)

    def some_of_the_rest(self, random: Random) -> dict[str, bytes]:
        """What was synced, and a random part of the rest, in any order, some of it torn."""
        files = {}
        share = random.choice((0.1, 0.5, 0.9, 1.0))
        for number, contents in self._files.items():
            content = bytearray(contents.durable)
            kept = [change for _, change in contents.pending if random.random() < share]
            last = contents.pending[-1][1] if contents.pending else None
            if random.random() < 0.5:
                random.shuffle(kept)
            for change in kept:
                torn = change is last or random.random() < 0.1
                if torn and isinstance(change, Write):
                    _apply_torn(content, change, random)
                else:
                    _apply(content, change)
            files[number] = bytes(content)
        names, lost = dict(self._names), set[str]()
        for _, naming in self._namings:
            touched = _touched(naming)
            # A later change of a name cannot be there without the earlier one.
            if lost.isdisjoint(touched) and random.random() < share:
                _rename(names, naming)
            else:
                lost |= touched
        return _found(names, files)


def _found(names: dict[str, int], files: dict[int, bytes]) -> dict[str, bytes]:
    """A file is found if it has a name and every folder above it has one."""
    return {
        name: files[number]
        for name, number in names.items()
        if number and all(folder in names for folder in _folders_of(name))
    }


def _apply(content: bytearray, change: Change) -> None:
    if isinstance(change, Truncate):
        _resize(content, change.size)
        return
    end = change.offset + len(change.data)
    if len(content) < end:
        _resize(content, end)
    content[change.offset : end] = change.data


def _apply_torn(content: bytearray, write: Write, random: Random) -> None:
    """Each sector of a write is there or not: often the first ones, sometimes any."""
    end = write.offset + len(write.data)
    edges = [write.offset, *range((write.offset // SECTOR + 1) * SECTOR, end, SECTOR), end]
    sectors = list(itertools.pairwise(edges))
    kept = random.randint(0, len(sectors))
    there = sectors[:kept] if random.random() < 0.5 else random.sample(sectors, kept)
    for start, stop in there:
        data = write.data[start - write.offset : stop - write.offset]
        _apply(content, Write(write.file, start, data))


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _rename(names: dict[str, int], naming: Naming) -> None:
    if isinstance(naming, Create):
        names[naming.path] = naming.file
    elif isinstance(naming, Delete):
        names.pop(naming.path, None)
    else:
        names[naming.target] = names.pop(naming.source)


def _touched(naming: Naming) -> set[str]:
    if isinstance(naming, Rename):
        return {naming.source, naming.target}
    return {naming.path}


def _parent(name: str) -> str:
    return os.path.dirname(name) or "."


def _folders_of(name: str) -> list[str]:
    folders = []
    while name := os.path.dirname(name):
        folders.append(name)
    return folders
