# SPDX-License-Identifier: Apache-2.0
"""The slot table: what a worker runs right now, readable by its supervisor even after its death.

A piece of shared memory: a header and one record per slot. The worker writes the records, the
supervisor the lease deadline. A record's job id is written last and cleared first, so that a
record with a job id is whole. Monotonic time is the same for all processes of a machine.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from typing import NamedTuple

from penstock.model.job import JobId, WorkerId
from penstock.model.lease import JobRef

VERSION = 2
WORKER_ID_BYTES = 64
_HEADER = struct.Struct("<qq64sdd")  # version, slots, worker id, lease deadline, last loop turn
_LEASE = struct.Struct("<d")
_RECORD = struct.Struct("<qqdq")  # job, token, deadline (0: none), attempts left
_DEADLINE = struct.Struct("<d")
_DEADLINE_OFFSET = 16  # inside a record
_JOB = struct.Struct("<q")
_LEASE_OFFSET = 16 + WORKER_ID_BYTES
_TURN_OFFSET = _LEASE_OFFSET + 8


class SlotRecord(NamedTuple):
    """One running attempt."""

    ref: JobRef
    deadline_monotonic: float  # 0: no limit
    attempts_left: int  # that the job may have, this one included


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """What a worker runs, read at one moment."""

    worker: WorkerId | None
    loop_turn_monotonic: float
    running: tuple[SlotRecord, ...]


class SlotTable:
    """Owns the mapping. One writer per field; no lock."""

    def __init__(self, fd: int, slots: int, *, fresh: bool) -> None:
        self.fd = fd
        self.slots = slots
        size = _HEADER.size + slots * _RECORD.size
        if fresh:
            os.ftruncate(fd, size)
        self._map = mmap.mmap(fd, size)
        if fresh:
            _HEADER.pack_into(self._map, 0, VERSION, slots, b"", 0.0, 0.0)

    @classmethod
    def create(cls, slots: int) -> SlotTable:
        """Make a table that a child process can inherit by its file descriptor."""
        fd = os.memfd_create("penstock-slots", 0)
        return cls(fd, slots, fresh=True)

    @classmethod
    def attach(cls, fd: int) -> SlotTable:
        """Map a table that a worker has laid out, under a file descriptor of its own."""
        slots = os.fstat(fd).st_size - _HEADER.size
        return cls(os.dup(fd), slots // _RECORD.size, fresh=False)

    def set_worker(self, worker: WorkerId) -> None:
        self._map[16 : 16 + WORKER_ID_BYTES] = worker.encode().ljust(WORKER_ID_BYTES, b"\0")

    def occupy(
        self, slot: int, job_id: int, token: int, deadline_monotonic: float, attempts_left: int
    ) -> None:
        offset = _HEADER.size + slot * _RECORD.size
        _RECORD.pack_into(self._map, offset, 0, token, deadline_monotonic, attempts_left)
        _JOB.pack_into(self._map, offset, job_id)

    def vacate(self, slot: int) -> None:
        if self._map.closed:
            return  # a body that was left behind ends after its worker
        _JOB.pack_into(self._map, _HEADER.size + slot * _RECORD.size, 0)

    def clear(self) -> None:
        """Nothing runs."""
        for slot in range(self.slots):
            self.vacate(slot)

    def set_deadline(self, slot: int, deadline_monotonic: float) -> None:
        """Move the time limit of a running attempt; 0 for none."""
        offset = _HEADER.size + slot * _RECORD.size + _DEADLINE_OFFSET
        _DEADLINE.pack_into(self._map, offset, deadline_monotonic)

    def turn(self, now_monotonic: float) -> None:
        """The event loop is alive."""
        _LEASE.pack_into(self._map, _TURN_OFFSET, now_monotonic)

    def set_lease_until(self, until_monotonic: float) -> None:
        _LEASE.pack_into(self._map, _LEASE_OFFSET, until_monotonic)

    def lease_until(self) -> float:
        (until,) = _LEASE.unpack_from(self._map, _LEASE_OFFSET)
        return float(until)

    def last_turn(self) -> float:
        (turn,) = _LEASE.unpack_from(self._map, _TURN_OFFSET)
        return float(turn)

    def snapshot(self) -> SlotSnapshot:
        _, _, worker, _, turn = _HEADER.unpack_from(self._map, 0)
        running = []
        for slot in range(self.slots):
            job_id, token, deadline, attempts_left = _RECORD.unpack_from(
                self._map, _HEADER.size + slot * _RECORD.size
            )
            if job_id:
                running.append(SlotRecord(JobRef(JobId(job_id), token), deadline, attempts_left))
        name = worker.rstrip(b"\0").decode()
        return SlotSnapshot(WorkerId(name) if name else None, turn, tuple(running))

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)
